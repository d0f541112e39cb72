import copy

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, Saliency
from torch import nn

from explainers import Subject, Target, explain
from explainers.errors import NotConnected
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import CASES, PLAIN, Case, pictures, seeded
from tests.explainers.odd_nets import Cut, UnderMode
from tests.explainers.torchvision_nets import build
from tests.references.gradient import saliency

REDUCTIONS = ("max_abs", "signed_sum")

# Closed forms


def linear() -> nn.Module:
    """Two colour channels of 2 x 2 pixels, two classes."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[1.0, -2, 3, 0.5, -4, 1, -3, 0.25], [1.0, 1, 1, 1, 1, 1, 1, 1]]))
    return net.eval()


@pytest.mark.parametrize(
    ("target", "reduction", "expected"),
    [
        # The gradient of a linear score is its weights: channels [[1, -2], [3, 0.5]] and [[-4, 1], [-3, 0.25]].
        (Target(0), "max_abs", [[4.0, 2.0], [3.0, 0.5]]),
        (Target(0), "signed_sum", [[-3.0, -1.0], [0.0, 0.75]]),
        # Minus class 1, whose weights are all 1: [[0, -3], [2, -0.5]] and [[-5, 0], [-4, -0.75]].
        (Target(0, versus=1), "max_abs", [[5.0, 3.0], [4.0, 0.75]]),
        (Target(0, versus=1), "signed_sum", [[-5.0, -3.0], [-2.0, -1.25]]),
    ],
)
def test_of_a_linear_model_is_its_weights(target: Target, reduction: str, expected: list[list[float]]) -> None:
    net = linear()
    for x in (torch.zeros(1, 2, 2, 2), pictures(1, 2, 2, channels=2).float()):
        (answer,) = explain(Subject(net, net), x, [[target]], method="saliency", parameters={"reduction": reduction})
        assert answer.attributions[0].raw.tolist() == expected


def test_input_times_gradient_of_a_linear_model_is_each_value_s_part_of_the_score() -> None:
    # Weights as above, x = 1 .. 8: channel 0 gives [[1, -4], [9, 2]], channel 1 [[-20, 6], [-21, 2]].
    net, x = linear(), torch.arange(1.0, 9).reshape(1, 2, 2, 2)
    (answer,) = explain(Subject(net, net), x, [[Target(0)]], method="input_x_gradient")
    assert answer.attributions[0].raw.tolist() == [[-19.0, 2.0], [-12.0, 4.0]]


def test_input_times_gradient_adds_up_to_the_score_without_biases() -> None:
    # A network of ReLUs without biases is homogeneous, y(k x) = k y(x), so by Euler x * dy/dx adds up to y(x).
    net = PLAIN.build()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    x = PLAIN.pictures(2)
    for k, map_ in enumerate(maps(Subject(net, net), "input_x_gradient", x, [[Target(0), Target(3, versus=1)]] * 2)):
        y = net(x)
        assert_same(map_.sum(dim=(1, 2)), y[:, 0] if k == 0 else y[:, 3] - y[:, 1])


def test_a_grayscale_model_has_one_channel_to_reduce() -> None:
    net = seeded(nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 3 * 2, 3)))
    x = pictures(1, 5, 4, channels=1)
    (signed,) = maps(Subject(net, net), "saliency", x, [[Target(2)]], reduction="signed_sum")
    (largest,) = maps(Subject(net, net), "saliency", x, [[Target(2)]])
    assert signed.min() < 0
    assert_same(largest, signed.abs())


# The literal twin


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_literal_twin(case: Case, reduction: str) -> None:
    net, literal = case.build(), case.build(inplace=False)
    x = case.pictures(3)
    targets = [[Target(0)], [Target(4)], [Target(2, versus=1)]]
    (actual,) = maps(Subject(net, net), "saliency", x, targets, reduction=reduction)
    assert actual.dtype == torch.float64
    for n, (of, versus) in enumerate([(0, None), (4, None), (2, 1)]):
        assert_same(actual[n], saliency(literal, x[n : n + 1], of, versus, reduction=reduction))


@pytest.mark.parametrize("name", ["densenet121", "resnet18", "mnasnet1_0"])
def test_inplace_networks_equal_their_twin(name: str) -> None:
    net = build(name)
    x = pictures(1, 64, 64)
    (actual,) = maps(Subject(net, net), "saliency", x, [[Target(3)]], reduction="signed_sum")
    assert_same(actual[0], saliency(net, x, 3, reduction="signed_sum"))


# Derivatives, by other means


def smooth() -> nn.Module:
    return seeded(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3), nn.SiLU(), nn.Flatten()))


def test_every_pixel_is_a_central_difference_of_the_score() -> None:
    # SiLU is smooth, so (y(x + h) - y(x - h)) / 2h differs from the derivative by the order of h^2 = 1e-10.
    net, x, h = smooth(), pictures(1, 5, 4), 1e-5
    gradient = torch.zeros(3, 5, 4, dtype=torch.float64)
    for place in np.ndindex(3, 5, 4):
        step = torch.zeros_like(x)
        step[(0, *place)] = h
        gradient[place] = (net(x + step) - net(x - step))[0, 7] / (2 * h)
    subject = Subject(net, net)
    assert_same(maps(subject, "saliency", x, [[Target(7)]])[0][0], gradient.abs().amax(dim=0), 1e-8)
    assert_same(maps(subject, "saliency", x, [[Target(7)]], reduction="signed_sum")[0][0], gradient.sum(dim=0), 1e-8)


def test_the_score_passes_gradcheck() -> None:
    net = smooth()
    assert torch.autograd.gradcheck(lambda x: net(x)[0, 7], pictures(1, 5, 4).requires_grad_())


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "densenet121", "shufflenet_v2_x0_5"])
def test_captum_agrees(name: str) -> None:
    net = build(name).float()
    x = pictures(2, 64, 64).float()
    leaf = x.clone().requires_grad_()  # captum warns about an input that does not want a gradient
    targets = [[Target(3)], [Target(8)]]
    captum = Saliency(net).attribute(leaf, torch.tensor([3, 8]), abs=False)
    for reduction, expected in (("max_abs", captum.abs().amax(dim=1)), ("signed_sum", captum.sum(dim=1))):
        answers = explain(Subject(net, net), x, targets, method="saliency", parameters={"reduction": reduction})
        for n in range(2):
            assert_same(answers[n].attributions[0].raw, expected[n].detach(), 1e-5)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_captum_agrees_on_input_times_gradient(name: str) -> None:
    net, x = build(name).float(), pictures(2, 64, 64).float()
    expected = InputXGradient(net).attribute(x.clone().requires_grad_(), torch.tensor([3, 8])).sum(dim=1)
    answers = explain(Subject(net, net), x, [[Target(3)], [Target(8)]], method="input_x_gradient")
    for n in range(2):
        assert_same(answers[n].attributions[0].raw, expected[n].detach(), 1e-5)


# Number formats, memory formats, cut gradients


def test_channels_last_pictures_give_the_same_map() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(2)
    targets = [[Target(0)], [Target(1)]]
    (expected,) = maps(Subject(net, net), "saliency", x, targets)
    (actual,) = maps(Subject(net, net), "saliency", x.to(memory_format=torch.channels_last), targets)
    assert_same(actual, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision_models_give_float32_maps(dtype: torch.dtype, tolerance: float) -> None:
    # bfloat16 has 8 significant bits, float16 11: a relative error of 2^-8 and 2^-11 per operation, some ten of them.
    net = smooth()
    half = copy.deepcopy(net).to(dtype)
    x = pictures(1, 5, 4)
    (expected,) = maps(Subject(net, net), "saliency", x, [[Target(7)]])
    (actual,) = maps(Subject(half, lambda inputs: half(inputs).float()), "saliency", x.to(dtype), [[Target(7)]])
    assert actual.dtype == torch.float32
    assert_same(actual, expected, tolerance)


@pytest.mark.parametrize("unfrozen", [False, True])
@pytest.mark.parametrize("where", ["detach", "no_grad", "inference_mode"])
def test_a_model_that_cuts_the_gradient_is_named(where: str, unfrozen: bool) -> None:
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    first = nn.Sequential(nn.Conv2d(3, 4, 3), Cut()) if where == "detach" else UnderMode(modes[where], nn.ReLU())
    net = nn.Sequential(first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3))
    net(torch.zeros(1, 3, 5, 5))
    net.eval().requires_grad_(unfrozen)
    with pytest.raises(NotConnected, match="does not depend on the picture"):
        explain(Subject(net, net), torch.zeros(1, 3, 5, 5), [[Target(0)]], method="saliency")
