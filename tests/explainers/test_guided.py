"""Guided backpropagation, the deconvnet and guided Grad-CAM."""

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import Deconvolution, GuidedBackprop, GuidedGradCam
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.errors import MethodNotApplicable
from explainers.hooks import change_relus
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import CLASSES, PLAIN, Head, pictures, seeded
from tests.explainers.odd_nets import Call, Shared, sequential
from tests.explainers.torchvision_nets import build
from tests.references.gradient import deconvnet, guided_backprop

METHODS = {"guided_backprop": guided_backprop, "deconvnet": deconvnet}
each_method = pytest.mark.parametrize("method", METHODS)


# Closed forms


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        # Behind the ReLUs come back the second layer's weights: (1, 1, -2, 3) for class 0, (-1, 2, 1, -1) for class 1.
        # The ReLUs' inputs for the picture (1, 2, 0, 1) are (2, -1, 3, -2): the first and third are open.
        # The gradient is rows 0 and 2 of the first layer times 1 and -2, times -1 and 1.
        ("saliency", Target(0), [-1.0, -2, -2, -2]),
        ("saliency", Target(1), [0.0, 1, 1, 1]),
        # Guided: open and positive. Row 0 for class 0, row 2 for class 1.
        ("guided_backprop", Target(0), [1.0, 0, 0, 0]),
        ("guided_backprop", Target(1), [1.0, 1, 1, 1]),
        # Deconvnet: positive. Rows 0 + 1 + 3 * row 3 for class 0, 2 * row 1 + row 2 for class 1.
        ("deconvnet", Target(0), [1.0, -4, 2, 0]),
        ("deconvnet", Target(1), [1.0, -1, 5, 1]),
        # Class 0 minus class 1 brings back (2, -1, -3, 4).
        ("guided_backprop", Target(0, versus=1), [2.0, 0, 0, 0]),
        ("deconvnet", Target(0, versus=1), [2.0, -4, 0, 0]),
    ],
)
def test_by_hand(method: str, target: Target, expected: list[float]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(requires_grad=False)
    net[1].weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, -1, 2, 0], [1, 1, 1, 1], [0, -1, 0, 0]]))
    net[1].bias.copy_(torch.tensor([1.0, 1, -1, 0]))
    net[3].weight.copy_(torch.tensor([[1.0, 1, -2, 3], [-1, 2, 1, -1]]))
    x = torch.tensor([1.0, 2, 0, 1]).reshape(1, 1, 2, 2)
    assert net[1](net[0](x)).tolist() == [[2.0, -1, 3, -2]]
    (answer,) = explain(Subject(net, net), x, [[target]], method=method, parameters={"reduction": "signed_sum"})
    assert answer.attributions[0].raw.ravel().tolist() == expected


# However a ReLU is written

RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "module": nn.ReLU(),
    "in-place module": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "Tensor.relu_": Tensor.relu_,
    "threshold": nn.Threshold(0.0, 0.0),
    "in-place threshold": nn.Threshold(0.0, 0.0, inplace=True),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_": lambda x: x.clamp_(min=0),
    "clamp_min": lambda x: x.clamp_min(0),
}
RELU6S: dict[str, Callable[[Tensor], Tensor]] = {
    "module": nn.ReLU6(),
    "in-place module": nn.ReLU6(inplace=True),
    "F.relu6": F.relu6,
    "F.relu6 in place": lambda x: F.relu6(x, inplace=True),
    "F.hardtanh": lambda x: F.hardtanh(x, 0, 6),
    "F.hardtanh_": lambda x: F.hardtanh_(x, 0.0, 6.0),
    "clamp": lambda x: x.clamp(0, 6),
}


def with_relu(relu: Callable[[Tensor], Tensor]) -> nn.Module:
    return sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        Call(lambda x: relu(3 * x)),
        nn.Conv2d(6, 8, 3),
        Call(relu),
        nn.MaxPool2d(2),
        Head(8),
    )


@each_method
@pytest.mark.parametrize(
    ("relu", "literal"),
    [*((relu, nn.ReLU()) for relu in RELUS.values()), *((relu, nn.ReLU6()) for relu in RELU6S.values())],
    ids=[*RELUS, *(f"6: {name}" for name in RELU6S)],
)
def test_however_a_relu_is_written(
    method: str, relu: Callable[[Tensor], Tensor], literal: Callable[[Tensor], Tensor]
) -> None:
    net, x = with_relu(relu), pictures(2, 9, 7)
    rounds = maps(Subject(net, net), method, x, [[Target(1), Target(3, versus=0)]] * 2)
    for n in range(2):
        assert_same(rounds[0][n], METHODS[method](with_relu(literal), x[n : n + 1], 1))
        assert_same(rounds[1][n], METHODS[method](with_relu(literal), x[n : n + 1], 3, 0))


@each_method
@pytest.mark.parametrize("unfrozen", [False, True])
def test_one_relu_that_runs_twice_counts_twice(method: str, unfrozen: bool) -> None:
    net, literal, x = seeded(Shared(inplace=True)), seeded(Shared(inplace=False)), pictures(1, 9, 7)
    net.requires_grad_(unfrozen)
    (map_,) = maps(Subject(net, net), method, x, [[Target(2)]])
    assert_same(map_[0], METHODS[method](literal, x, 2))


@pytest.mark.parametrize(
    "activation",
    [nn.SiLU(), nn.LeakyReLU(), nn.Hardtanh(), nn.Threshold(0.1, 0.0), Call(lambda x: x.clamp(min=-1))],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("method", [*METHODS, "guided_gradcam"])
def test_a_network_without_relus_is_refused(method: str, activation: nn.Module) -> None:
    net = sequential(nn.Conv2d(3, 4, 3), activation, Head(4))
    layers = ["0"] if method == "guided_gradcam" else []
    with pytest.raises(MethodNotApplicable, match="no ReLU on the way"):
        explain(Subject(net, net), pictures(1, 9, 7), [[Target(0)]], method=method, layers=layers)


@each_method
def test_a_relu_aside_does_not_count(method: str) -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), Head(4)

        def forward(self, x: Tensor) -> Tensor:
            self.other = F.relu(x).detach().sum()
            return self.head(self.conv(x))

    net = seeded(Aside())
    with pytest.raises(MethodNotApplicable, match="no ReLU on the way"):
        explain(Subject(net, net), pictures(1, 9, 7), [[Target(0)]], method=method)


@each_method
def test_a_relu_that_torch_hides_is_not_passed_over_in_silence(method: str) -> None:
    """Torch wraps what changes a part of a tensor in place; the step inside cannot be reached."""

    def half(x: Tensor) -> Tensor:
        x[:, :2].relu_()
        return x

    net = sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), Call(half), Head(4))
    with pytest.raises(MethodNotApplicable, match="a part or a view of a tensor in place"):
        explain(Subject(net, net), pictures(1, 9, 7), [[Target(0)]], method=method)


def test_the_changed_graph_goes_without_the_garbage_collector() -> None:
    x = torch.ones(3, requires_grad=True)
    values = x * 2
    score = F.relu(values).sum()
    assert change_relus(score, lambda _behind, before: before) == 1
    held = weakref.ref(values)
    gc.disable()
    try:
        torch.autograd.grad(score, x)
        del score, values
        assert held() is None
    finally:
        gc.enable()


# Captum


@pytest.fixture
def quiet() -> Iterator[None]:
    """Captum warns of the hooks that it sets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Setting (forward, )?backward hooks on ReLU")
        yield


CAPTUM = {"guided_backprop": GuidedBackprop, "deconvnet": Deconvolution}


@each_method
@pytest.mark.usefixtures("quiet")
def test_captum_agrees_where_relus_are_modules(method: str) -> None:
    net, x = build("resnet18").float(), pictures(2, 64, 64).float()
    for module in net.modules():  # captum cannot hook modules that work in place
        if isinstance(module, nn.ReLU):
            module.inplace = False
    expected = CAPTUM[method](net).attribute(x.clone().requires_grad_(), torch.tensor([3, 8])).sum(dim=1)
    options = {"reduction": "signed_sum"}
    answers = explain(Subject(net, net), x, [[Target(3)], [Target(8)]], method=method, parameters=options)
    for n in range(2):
        assert_same(answers[n].attributions[0].raw, expected[n].detach(), 1e-5)


@each_method
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("relu", [F.relu, nn.ReLU6()], ids=["functional", "ReLU6"])
def test_captum_passes_over_other_relus(method: str, relu: Callable[[Tensor], Tensor]) -> None:
    """Captum hooks `nn.ReLU` modules alone: of this network it returns the plain gradient, without a word."""
    net, x = with_relu(relu), pictures(1, 9, 7)
    theirs = CAPTUM[method](net).attribute(x.clone().requires_grad_(), 1).sum(dim=1).detach()
    options = {"reduction": "signed_sum"}
    (plain,) = maps(Subject(net, net), "saliency", x, [[Target(1)]], **options)
    (ours,) = maps(Subject(net, net), method, x, [[Target(1)]], **options)
    assert_same(theirs, plain)
    assert_same(ours[0], METHODS[method](net, x, 1, reduction="signed_sum"))
    assert (ours - plain).abs().max() > 0.1 * plain.abs().max()


@pytest.mark.usefixtures("quiet")
def test_captum_agrees_on_guided_gradcam() -> None:
    net, x = PLAIN.build(inplace=False).float(), pictures(2, 9, 7).float()
    captum = GuidedGradCam(net, net[2]).attribute(
        x.clone().requires_grad_(), torch.tensor([0, 3]), interpolate_mode="bilinear"
    )
    answers = explain(Subject(net, net), x, [[Target(0)], [Target(3)]], method="guided_gradcam", layers=["2"])
    for n in range(2):
        assert_same(answers[n].attributions[0].raw, captum[n].sum(dim=0).detach(), 1e-5)


# Guided Grad-CAM


@pytest.mark.parametrize("layers", [["0"], ["2"], ["0", "2"]], ids=str)
@pytest.mark.parametrize("fusion", ["mean", "maximum"])
def test_guided_gradcam_is_the_product_of_the_two(layers: list[str], fusion: str) -> None:
    """Of the true Grad-CAM: that of the changed backward pass, which some implementations share, differs."""
    net, x = (
        sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), Head(6)),
        pictures(2, 9, 7),
    )
    subject, targets = Subject(net, net), [[Target(0), Target(1, versus=3)]] * 2
    product = maps(subject, "guided_gradcam", x, targets, layers, fusion=fusion)
    located = maps(subject, "gradcam", x, targets, layers, fusion=fusion)
    detail = maps(subject, "guided_backprop", x, targets, reduction="signed_sum")
    for k in range(2):
        large = F.interpolate(located[k][:, None].relu(), size=(9, 7), mode="bilinear")[:, 0]
        assert_same(product[k], large * detail[k])


# What they show


def untrained_top(net: nn.Sequential) -> None:
    """Draw the last two layers anew, in the same spread."""
    generator = torch.Generator().manual_seed(100)
    for layer in (net[-1], net[-3]):
        layer.weight.normal_(0, float(layer.weight.std()), generator=generator)


def test_guided_backpropagation_fails_the_randomisation_check() -> None:
    """Adebayo et al. 2018, arXiv:1810.03292: another classifier on the same features, nearly the same map."""

    def build_net() -> nn.Sequential:
        convolutions = [
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        ]
        return sequential(*convolutions, nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    net, other, x = build_net(), build_net(), pictures(4, 16, 16)
    untrained_top(other)
    similar = {}
    for method in ("saliency", "guided_backprop", "deconvnet"):
        one, two = (
            maps(Subject(each, each), method, x, [[Target(0)]] * 4)[0].flatten(1).numpy() for each in (net, other)
        )
        similar[method] = float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(one, two, strict=True)]))
    assert similar["saliency"] < 0.3
    assert similar["deconvnet"] > similar["saliency"] + 0.15
    assert similar["guided_backprop"] > 0.6
