import copy

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from explainers import Subject, Target, explain
from tests.explainers.checks import assert_same, looks_at, maps
from tests.explainers.nets import CASES, CLASSES, PLAIN, Case, Head, pictures, seeded
from tests.explainers.peers import as_pytorch_grad_cam_shows_it
from tests.explainers.torchvision_nets import build
from tests.references.cam import activation_and_gradient, gradcam, weighted_sum

# Closed forms


def test_a_hand_sized_network_gives_the_hand_computed_map() -> None:
    # A: channel 0 is the picture, channel 1 is minus twice the picture. y_1 = 3 mean(A_0) + 5 mean(A_1).
    # dy_1/dA_0 = 3 / 4 in each of the four cells, dy_1/dA_1 = 5 / 4; so alpha = (3/4, 5/4) and
    # map = 3/4 x + 5/4 (-2 x) = -7/4 x, with x = [[1, -2], [0, 4]].
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -2.0]).reshape(2, 1, 1, 1))
        net[3].weight.copy_(torch.tensor([[7.0, 7.0], [3.0, 5.0]]))
    x = torch.tensor([[[[1.0, -2.0], [0.0, 4.0]]]], dtype=torch.float64)
    (answer,) = explain(Subject(net.eval(), net), x, [[Target(1)]], method="gradcam", layers=["0"])
    assert answer.attributions[0].raw.tolist() == [[-1.75, 3.5], [0.0, -7.0]]


@pytest.mark.parametrize("index", range(CLASSES))
def test_conv_gap_linear_is_cam_divided_by_the_number_of_cells(index: int) -> None:
    # y_k = b_k + sum_c w_kc mean_ij(A_c), so dy_k/dA_c[i, j] = w_kc / (h w) = alpha_c, and the map is
    # sum_c w_kc A_c / (h w): Zhou's CAM over the number of cells. Its sum is y_k - b_k.
    net = seeded(nn.Sequential(nn.Conv2d(3, 6, 3), Head(6)))
    x = pictures(2, 6, 9)
    activation = net[0](x)
    weight, bias = net[1].fc.weight[index], net[1].fc.bias[index]
    cam = torch.stack([sum(weight[c] * activation[n, c] for c in range(6)) for n in range(2)])
    (actual,) = maps(Subject(net, net), "gradcam", x, [[Target(index)]] * 2, ["0"])
    assert_same(actual, cam / (4 * 7))
    assert_same(actual.sum(dim=(1, 2)), net(x)[:, index] - bias)


def test_the_map_is_signed_and_odd_in_the_score() -> None:
    net = PLAIN.build()
    negated = copy.deepcopy(net)
    negated[5].fc.weight.neg_()
    negated[5].fc.bias.neg_()
    x = PLAIN.pictures(1)
    (positive,) = maps(Subject(net, net), "gradcam", x, [[Target(0)]], ["2"])
    (negative,) = maps(Subject(negated, negated), "gradcam", x, [[Target(0)]], ["2"])
    assert positive.min() < 0 < positive.max()
    assert_same(negative, -positive)


# The literal twin


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_literal_twin_on_first_and_later_captures(case: Case) -> None:
    net, literal = case.build(), case.build(inplace=False)
    subject = Subject(net, net)
    x, where = case.pictures(3), looks_at("gradcam", case)
    targets = [[Target(0)], [Target(4)], [Target(2, versus=1)]]
    expected = [
        gradcam(literal, x[n : n + 1], of, versus, layer=case.layer, to_grid=case.to_grid)
        for n, (of, versus) in enumerate([(0, None), (4, None), (2, 1)])
    ]
    for _ in range(3):
        (actual,) = maps(subject, "gradcam", x, targets, **where)
        assert actual.dtype == torch.float64
        for n in range(3):
            assert_same(actual[n], expected[n])


def test_the_weights_are_central_differences_of_the_score() -> None:
    # alpha_c is the mean over cells of dy/dA_c[i, j]: the change of y per cell when the whole channel is lifted by h,
    # divided by the number of cells. SiLU is smooth, so the error is of order h^2 = 1e-10.
    head = seeded(nn.Sequential(nn.SiLU(), nn.Conv2d(6, 4, 3), nn.SiLU(), Head(4)), seed=1)
    net = nn.Sequential(seeded(nn.Conv2d(3, 6, 3)), head).eval()
    x = pictures(1, 7, 6)
    activation, h, cells = net[0](x), 1e-5, 5 * 4
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for c in range(6):
        lift = torch.zeros_like(activation)
        lift[:, c] = h
        change = (head(activation + lift) - head(activation - lift))[0, 3] / (2 * h)
        expected += change / cells * activation[0, c]
    (actual,) = maps(Subject(net, net), "gradcam", x, [[Target(3)]], ["0"])
    assert_same(actual[0], expected, 1e-8)


# Networks that change the layer's output in place

INPLACE = (
    ("densenet121", "features.norm5"),
    ("resnet50", "layer4.2.bn3"),
    ("vgg16", "features.28"),
    ("mnasnet1_0", "layers.15"),
)


@pytest.mark.parametrize(("name", "layer"), INPLACE)
def test_inplace_consumers_change_nothing(name: str, layer: str) -> None:
    net = build(name)
    subject = Subject(net, net)
    x = pictures(1, 64, 64)
    expected = gradcam(net, x, 3, layer=layer)
    for _ in range(3):
        (actual,) = maps(subject, "gradcam", x, [[Target(3)]], [layer])
        assert_same(actual[0], expected)
    assert subject.backward_hookable == {(layer,): (False,)}


# Number formats and memory formats


def test_channels_last_pictures_and_models_give_the_same_map() -> None:
    net = PLAIN.build()
    last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    x = PLAIN.pictures(2)
    targets = [[Target(0)], [Target(1)]]
    (expected,) = maps(Subject(net, net), "gradcam", x, targets, ["2"])
    subject = Subject(last, last)
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x.to(memory_format=torch.channels_last), targets, ["2"])
        assert_same(actual, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision_models_give_float32_maps(dtype: torch.dtype, tolerance: float) -> None:
    # bfloat16 has 8 significant bits, float16 11: a relative error of 2^-8 and 2^-11 per operation, some ten of them.
    net = PLAIN.build()
    half = copy.deepcopy(net).to(dtype)
    x = PLAIN.pictures(1)
    (expected,) = maps(Subject(net, net), "gradcam", x, [[Target(0)]], ["2"])
    subject = Subject(half, lambda inputs: half(inputs).float())
    for _ in range(2):
        (actual,) = maps(subject, "gradcam", x.to(dtype), [[Target(0)]], ["2"])
        assert actual.dtype == torch.float32
        assert_same(actual, expected, tolerance)


def test_a_float16_layer_whose_sum_overflows_is_answered() -> None:
    # 64 cells of 2000 add up to 128 000, beyond float16's 65 504; summed in float32 it is exact. y is the mean of the
    # one channel, so alpha = 1 / 64 and the map is 2000 / 64 = 31.25 in each cell. A = 2000 is exact in float16.
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AvgPool2d(8), nn.Flatten()).eval().requires_grad_(False)
    net[0].weight.fill_(2000.0)
    half = net.half()
    x = torch.ones(1, 1, 8, 8, dtype=torch.float16)
    (answer,) = explain(Subject(half, half), x, [[Target(0)]], method="gradcam", layers=["0"])
    assert answer.attributions[0].raw.dtype == np.float32
    assert (answer.attributions[0].raw == 31.25).all()


# Second opinions

PEERS = (
    ("resnet18", "layer4"),
    ("resnet18", "layer3"),
    ("mobilenet_v3_small", "features.11"),
    ("densenet121", "features.denseblock4"),
    ("vgg11", "features.20"),
    ("shufflenet_v2_x0_5", "stage4"),
)


def ours(net: nn.Module, x: Tensor, targets: list[int], layer: str) -> list[np.ndarray]:
    answers = explain(Subject(net, net), x, [[Target(of)] for of in targets], method="gradcam", layers=[layer])
    return [answer.attributions[0].raw for answer in answers]


def most_positive(net: nn.Module, x: Tensor, layer: str) -> list[int]:
    """Return, per picture, a class with much evidence for it: pytorch-grad-cam shows nothing else."""
    every = [[Target(of) for of in range(10)]] * len(x)
    answers = explain(Subject(net, net), x, every, method="gradcam", layers=[layer])
    return [max(range(10), key=lambda of: answer.attributions[of].raw.max()) for answer in answers]


@pytest.mark.parametrize(("name", "layer"), PEERS)
def test_captum_and_pytorch_grad_cam_agree(name: str, layer: str) -> None:
    net = build(name).float()
    x = pictures(2, 64, 64).float()
    targets = most_positive(net, x, layer)
    raw = ours(net, x, targets, layer)
    module = net.get_submodule(layer)
    leaf = x.clone().requires_grad_()  # both peers build their graph from the input

    captum = LayerGradCam(net, module).attribute(leaf, torch.tensor(targets), relu_attributions=False)
    for n in range(2):
        assert_same(raw[n], captum[n, 0].detach(), 1e-5)

    with GradCAM(model=net, target_layers=[module]) as cam:
        theirs = cam(input_tensor=leaf, targets=[ClassifierOutputTarget(of) for of in targets])
    for n in range(2):
        assert_same(as_pytorch_grad_cam_shows_it(raw[n], (64, 64)), theirs[n], 1e-5)


@pytest.mark.parametrize(
    ("name", "layer", "consumer"),
    [("densenet121", "features.norm5", None), ("resnet18", "layer4.1.bn2", "layer4")],
)
def test_before_an_inplace_consumer_captum_agrees_and_pytorch_grad_cam_is_wrong(
    name: str, layer: str, consumer: str | None
) -> None:
    """pytorch-grad-cam keeps the layer's output without a copy, so it is the consumer's output that it weighs."""
    net = build(name)
    x = pictures(1, 64, 64)
    before, gradient = activation_and_gradient(net, x, 3, layer=layer)
    after = before.relu() if consumer is None else activation_and_gradient(net, x, 3, layer=consumer)[0]
    leaf = x.clone().requires_grad_()
    (raw,) = ours(net, x, [3], layer)

    captum = LayerGradCam(net, net.get_submodule(layer)).attribute(leaf, 3, relu_attributions=False)
    assert_same(raw, captum[0, 0].detach(), 1e-5)

    with GradCAM(model=net, target_layers=[net.get_submodule(layer)]) as cam:
        cam(input_tensor=leaf, targets=[ClassifierOutputTarget(3)])
        (stored,) = cam.activations_and_grads.activations
        (returned,) = cam.activations_and_grads.gradients
    assert_same(returned, gradient)
    assert_same(stored, after)
    mixed = weighted_sum(after, gradient).numpy()
    assert np.abs(mixed - raw).max() > 0.1 * np.abs(raw).max()
