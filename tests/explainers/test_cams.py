"""The relatives of Grad-CAM: closed forms, axioms and second opinions; the literal twins are in test_contract."""

from typing import Any

import numpy as np
import pytest
import torch
from pytorch_grad_cam import EigenGradCAM, FinerCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget, FinerWeightedTarget
from torch import Tensor, nn

from explainers import Subject, Target, explain
from tests.explainers.checks import assert_same, looks_at, maps
from tests.explainers.nets import CASES, Case, Head, pictures
from tests.explainers.odd_nets import sequential
from tests.explainers.peers import as_pytorch_grad_cam_shows_it
from tests.explainers.torchvision_nets import build


def weighted_pixels(weights: list[float]) -> nn.Module:
    """Return a network whose layer "0" is the picture, 1 x 1 x n, and whose one score is its weighted sum."""
    net = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(len(weights), 1)).double().requires_grad_(False).eval()
    net[2].weight.copy_(torch.tensor([weights]))
    net[2].bias.zero_()
    return net


def of_pixels(method: str, weights: list[float], pixels: list[float], **parameters: object) -> list[float]:
    net, x = weighted_pixels(weights), torch.tensor(pixels, dtype=torch.float64).reshape(1, 1, 1, -1)
    (map_,) = maps(Subject(net, net), method, x, [[Target(0)]], ["0"], **parameters)
    return map_.flatten().tolist()


# One channel of two or three cells A, whose gradients g are the weights


def test_gradcam_plus_plus_by_hand() -> None:
    # A = (1, 2), g = (1/2, -1): sum A = 3, alpha_1 = (1/4) / (2/4 + 3/8) = 2/7; alpha_2 counts nothing, for g < 0.
    # The channel's weight is 2/7 * 1/2 = 1/7.
    assert of_pixels("gradcam++", [0.5, -1.0], [1.0, 2.0]) == pytest.approx([1 / 7, 2 / 7], rel=1e-14)


def test_gradcam_plus_plus_of_tiny_gradients_is_not_zero() -> None:
    # g = 1e-25: g^3 is below what float32 can hold, and a denominator of 2 g^2 + ... + 1e-6 would give 0.
    # alpha = 1 / (2 + 3e-25) = 1/2, the weight is 1/2 * 1e-25 from each of the two cells.
    net, x = weighted_pixels([1e-25, 1e-25]).float(), torch.tensor([[[[1.0, 2.0]]]])
    (answer,) = explain(Subject(net, net), x, [[Target(0)]], method="gradcam++", layers=["0"])
    assert answer.attributions[0].raw.flatten().tolist() == pytest.approx([1e-25, 2e-25], rel=1e-6)


def test_gradcam_plus_plus_without_a_denominator_gives_no_weight() -> None:
    # A = (1, -5), g = (1/2, 1/2): the denominator is 2/4 - 4/8 = 0 in both cells.
    assert of_pixels("gradcam++", [0.5, 0.5], [1.0, -5.0]) == [0.0, 0.0]


def test_hirescam_and_layercam_by_hand() -> None:
    # A g = (2, -6, -2); with negative gradients set to zero: (2, 0, -2).
    assert of_pixels("hirescam", [1.0, -2.0, 0.5], [2.0, 3.0, -4.0]) == [2.0, -6.0, -2.0]
    assert of_pixels("layercam", [1.0, -2.0, 0.5], [2.0, 3.0, -4.0]) == [2.0, 0.0, -2.0]


def test_xgradcam_by_hand() -> None:
    # Shares of A = (1, 3): 1/4 and 3/4; g = (2, -1): the weight is 2/4 - 3/4 = -1/4.
    assert of_pixels("xgradcam", [2.0, -1.0], [1.0, 3.0]) == [-0.25, -0.75]
    # A = (3, -3) has no shares.
    assert of_pixels("xgradcam", [2.0, -1.0], [3.0, -3.0]) == [0.0, 0.0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_xgradcam_conserves_what_hirescam_adds_up_to(case: Case) -> None:
    """Its second axiom: per channel, sum of alpha_c A_c = sum of A_c g_c."""
    net, x, targets = case.build(), case.pictures(2), [[Target(0)], [Target(2, versus=4)]]
    one, other = (maps(Subject(net, net), m, x, targets, **looks_at(m, case))[0] for m in ("xgradcam", "hirescam"))
    assert_same(one.sum(dim=(1, 2)), other.sum(dim=(1, 2)))


def test_hirescams_sum_is_the_score_but_for_the_bias() -> None:
    # Behind the layer everything is linear: y(A) = y(0) + <A, dy/dA>.
    net = sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), nn.AvgPool2d(2), Head(4))
    x = pictures(2, 9, 7)
    without = net[1:](torch.zeros_like(net[0](x)))
    (map_,) = maps(Subject(net, net), "hirescam", x, [[Target(3)]] * 2, ["0"])
    assert_same(map_.sum(dim=(1, 2)), (net(x) - without)[:, 3])


# Principal components


def test_eigencam_of_one_pattern_is_the_pattern() -> None:
    # Two channels u_c * p with u = (3, 4), |u| = 5, and the pattern p = (1, 2): the first direction is u / 5, the map
    # is A u / 5 = 5 p. For -p it is -5 p: the activation's sum, 7 p, tells the sign; a turned vector changes nothing.
    for sign in (1.0, -1.0):
        net = (
            nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Flatten(), nn.Linear(4, 1)).double().requires_grad_(False)
        )
        net[0].weight.copy_(torch.tensor([3.0, 4.0]).reshape(2, 1, 1, 1))
        x = sign * torch.tensor([[[[1.0, 2.0]]]], dtype=torch.float64)
        (map_,) = maps(Subject(net.eval(), net), "eigencam", x, [[Target(0)]], ["0"])
        assert map_.flatten().tolist() == pytest.approx([5.0 * sign, 10.0 * sign], rel=1e-12)


def test_eigencam_does_not_depend_on_the_order_of_the_channels() -> None:
    net, x = build("resnet18"), pictures(2, 64, 64)
    (one,) = maps(Subject(net, net), "eigencam", x, [[Target(0)]] * 2, ["layer4"])
    turned = {"layer4": lambda grid: grid.flip(1)}
    (other,) = maps(Subject(net, net), "eigencam", x, [[Target(0)]] * 2, ["layer4"], turned)
    assert_same(one, other)


def test_the_components_of_nothing_are_nothing() -> None:
    for method in ("eigencam", "eigengradcam"):
        assert of_pixels(method, [1.0, 2.0], [0.0, 0.0]) == [0.0, 0.0]
    assert of_pixels("eigengradcam", [0.0, 0.0], [1.0, 2.0]) == [0.0, 0.0]


def test_eigengradcam_shows_evidence_against_the_class_as_such() -> None:
    # A g = (-1, -4): one channel, so the direction is 1 up to its sign, which HiResCAM's map settles.
    assert of_pixels("eigengradcam", [-1.0, -2.0], [1.0, 2.0]) == pytest.approx([-1.0, -4.0])


# Finer-CAM


def test_finercam_is_gradcam_of_the_difference_to_the_nearest_classes() -> None:
    net = sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), Head(6))
    x = pictures(1, 9, 7)
    y = net(x)[0]
    nearest = sorted(range(1, 5), key=lambda d: float((y[d] - y[0]).abs()))
    subject = Subject(net, net)
    every = maps(subject, "gradcam", x, [[Target(of) for of in range(5)]], ["0"])
    (one,) = maps(subject, "finercam", x, [[Target(0)]], ["0"], classes=1)
    assert_same(one, every[0] - every[nearest[0]])
    (two,) = maps(subject, "finercam", x, [[Target(0)]], ["0"], classes=2, strength=0.5)
    assert_same(two, every[0] - 0.25 * every[nearest[0]] - 0.25 * every[nearest[1]])
    (all_,) = maps(subject, "finercam", x, [[Target(0)]], ["0"], classes=100)
    assert_same(all_, every[0] - sum(every[1:]) / 4)
    (none,) = maps(subject, "finercam", x, [[Target(0)]], ["0"], strength=0)
    assert_same(none, every[0])
    (versus,) = maps(subject, "finercam", x, [[Target(0, versus=2)]], ["0"], strength=0.5)
    assert_same(versus, every[0] - 0.5 * every[2])


def test_finercam_of_a_model_of_one_class_is_gradcam() -> None:
    net = sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1))
    x = pictures(1, 9, 7)
    one, other = (maps(Subject(net, net), method, x, [[Target(0)]], ["0"])[0] for method in ("finercam", "gradcam"))
    assert_same(one, other)


# Second opinions

PEERS = (("resnet18", "layer4"), ("mobilenet_v3_small", "features.11"), ("densenet121", "features.denseblock4"))
METHODS = {"gradcam++": GradCAMPlusPlus, "hirescam": HiResCAM, "layercam": LayerCAM, "xgradcam": XGradCAM}


def shown_by(peer: Any, net: nn.Module, x: Tensor, layers: list[str], target: Any) -> np.ndarray:
    with peer(model=net, target_layers=[net.get_submodule(layer) for layer in layers]) as cam:
        return cam(input_tensor=x.clone().requires_grad_(), targets=[target])[0]


def ours(method: str, net: nn.Module, x: Tensor, target: Target, layer: str, **parameters: object) -> np.ndarray:
    subject = Subject(net, net)
    (answer,) = explain(subject, x, [[target]], method=method, layers=[layer], parameters=parameters)
    return answer.attributions[0].raw


@pytest.mark.parametrize(("name", "layer"), PEERS)
@pytest.mark.parametrize("method", METHODS)
def test_pytorch_grad_cam_agrees(method: str, name: str, layer: str) -> None:
    # Its constants 1e-6 and 1e-7 in the denominators count for nothing where gradients and activations are not small:
    # scores a thousand times as large have gradients a thousand times as large.
    net = build(name).float()
    scaled = nn.Sequential(net, Times(1000.0)).eval() if method == "gradcam++" else net
    path = f"0.{layer}" if scaled is not net else layer
    x = pictures(1, 64, 64).float()
    raws = {of: ours(method, scaled, x, Target(of), path) for of in range(10)}
    best = max(raws, key=lambda of: raws[of].max())
    theirs = shown_by(METHODS[method], scaled, x, [path], ClassifierOutputTarget(best))
    assert_same(as_pytorch_grad_cam_shows_it(raws[best], (64, 64)), theirs, 1e-5)


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_pytorch_grad_cams_finercam_agrees_for_one_class() -> None:
    # Its weight w of the one reference cancels but for a constant, w / (w + 1e-9): the scores are made small so that w,
    # a softmax, is about 1/10.
    net, x = nn.Sequential(build("resnet18").float(), Times(0.01)).eval(), pictures(1, 64, 64).float()
    y = net(x)[0]
    nearest = next(d for d in torch.argsort((y - y[3]).abs()).tolist() if d != 3)
    raw = ours("finercam", net, x, Target(3), "0.layer4", classes=1)
    theirs = shown_by(FinerCAM, net, x, ["0.layer4"], FinerWeightedTarget(3, [nearest], 1.0))
    assert_same(as_pytorch_grad_cam_shows_it(raw, (64, 64)), theirs, 1e-5)


def test_pytorch_grad_cams_eigengradcam_is_turned_around_by_chance() -> None:
    """An arbitrary sign: with the channels in reverse order its map of the same network may be the other way round.

    One channel of A g = (1, 4) is evidence for the class. Its direction is (+1) or (-1), and LAPACK chooses.
    """
    net, x = weighted_pixels([1.0, 2.0]).float(), torch.tensor([[[[1.0, 2.0]]]])
    shown = shown_by(EigenGradCAM, net, x, ["0"], ClassifierOutputTarget(0))
    # What it does first is to subtract the mean, 2.5, from each place: only the difference of the places is left, so
    # that one of them has no evidence at all, whichever the sign. Ours is proportional to (1, 4).
    assert shown.min() == 0.0
    assert of_pixels("eigengradcam", [1.0, 2.0], [1.0, 2.0]) == pytest.approx([1.0, 4.0])
