"""An explanation leaves everything as it was: for success, and for every way to fail, over the whole registry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Explanation, Rank, Subject, Target, explain, get, names
from explainers.errors import (
    BadParameter,
    LayerNeverRan,
    LayerNotSpatial,
    LayerNotTaken,
    LayerOutputNotTensor,
    NonFiniteMap,
    NonFiniteScores,
    NotConnected,
    TargetOutOfRange,
    UnknownLayer,
    VersusEqualsTarget,
)
from tests.explainers.checks import applies, bits, few, looks_at, maps, snapshot, with_cases
from tests.explainers.nets import PLAIN, Case, Head, pictures, seeded
from tests.explainers.odd_nets import BreaksBackward, Call, Cut, Roots, UnderMode, breaks_forward, sequential

METHODS = names()
ON_PLAIN = [name for name in METHODS if applies(name, PLAIN)]
LAYERED = [name for name in METHODS if get(name).max_layers > 0]
WITHOUT_RELU = [name for name in METHODS if applies(name, Case("without ReLU", nn.Identity, "", has_relu=False))]
DIFFERENTIATING = [name for name in WITHOUT_RELU if get(name).uses_gradients]


class Unused(nn.Module):
    """Has a part that it does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = PLAIN.build(), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def ends_in(*tail: nn.Module) -> Callable[[], nn.Module]:
    return lambda: sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), *tail, Head(4))


@dataclass(frozen=True)
class Failure:
    """A way to fail: a model (None: a good one) or a request that is wrong, and the error, raised or answered."""

    error: type[Exception]
    build: Callable[[], nn.Module] | None = None
    layer: str = "2"
    targets: Sequence[Target] = (Target(0),)
    parameters: dict[str, object] = field(default_factory=dict)
    extra_layers: int = 0
    channels: int = 3
    value: float = 0.5
    answered: bool = False

    def model(self) -> nn.Module:
        return PLAIN.build() if self.build is None else self.build()

    def happens(self, subject: Subject, method: str) -> None:
        """Make the request, and check that it fails in this way, for each of two pictures or for both at once."""
        request: dict[str, Any] = {
            "inputs": self.pictures(),
            "targets": [self.targets] * 2,
            "method": method,
            "layers": [self.layer] * (min(get(method).max_layers, 1) + self.extra_layers),
            "parameters": few(method) | self.parameters,
        }
        x, before, version = request["inputs"], bits(request["inputs"]), request["inputs"]._version
        if self.answered:
            assert [type(answer) for answer in explain(subject, **request)] == [self.error] * 2
        else:
            with pytest.raises(self.error):
                explain(subject, **request)
        assert (bits(x), x._version, x.requires_grad) == (before, version, False)

    def pictures(self) -> Tensor:
        return torch.full((2, self.channels, 9, 7), self.value, dtype=torch.float64)


WRONG_REQUESTS = {
    "too many layers": Failure(LayerNotTaken, extra_layers=1),
    "unknown parameter": Failure(BadParameter, parameters={"no_such_parameter": 1}),
    "target": Failure(TargetOutOfRange, targets=(Target(0), Target(5)), answered=True),
    "negative target": Failure(TargetOutOfRange, targets=(Target(-1),), answered=True),
    "rank": Failure(TargetOutOfRange, targets=(Target(Rank(5)),), answered=True),
    "versus": Failure(VersusEqualsTarget, targets=(Target(1, versus=1),), answered=True),
    "nan": Failure(NonFiniteScores, value=float("nan"), answered=True),
    "wrong channels": Failure(RuntimeError, channels=4),
}
WRONG_LAYERS = {
    "unknown layer": Failure(UnknownLayer, layer="nope"),
    "flat layer": Failure(LayerNotSpatial, layer="5"),
    "never ran": Failure(LayerNeverRan, lambda: seeded(Unused()), layer="unused"),
    "tuple": Failure(LayerOutputNotTensor, ends_in(Call(lambda x: (x, x)), Call(lambda pair: pair[0]))),
    "integers": Failure(LayerOutputNotTensor, ends_in(Call(lambda x: x.argsort(dim=1)), Call(lambda x: x.double()))),
}
WRONG_MODELS = {
    "forward breaks": Failure(ArithmeticError, ends_in(Call(breaks_forward)), layer="1"),
    "backward breaks": Failure(ArithmeticError, ends_in(Call(BreaksBackward.apply)), layer="1"),
    "detached": Failure(NotConnected, ends_in(Cut()), layer="1"),
    "no_grad inside": Failure(NotConnected, ends_in(UnderMode(torch.no_grad, nn.ReLU())), layer="1"),
    "inference_mode inside": Failure(NotConnected, ends_in(UnderMode(torch.inference_mode, nn.ReLU())), layer="1"),
    "infinite slope": Failure(
        NonFiniteMap,
        lambda: sequential(nn.Conv2d(3, 4, 3, bias=False), Roots(), Head(4)),
        layer="0",
        value=0.0,
        answered=True,
    ),
}


def over_the_registry(wrong: dict[str, Failure], methods: list[str]) -> list[Any]:
    return [pytest.param(method, wrong[name], id=f"{method}-{name}") for name in wrong for method in methods]


FAILURES = [
    *over_the_registry(WRONG_REQUESTS, ON_PLAIN),
    *over_the_registry({name: wrong for name, wrong in WRONG_MODELS.items() if "forward" in name}, WITHOUT_RELU),
    *over_the_registry({name: wrong for name, wrong in WRONG_MODELS.items() if "forward" not in name}, DIFFERENTIATING),
    *over_the_registry(WRONG_LAYERS, LAYERED),
]


@pytest.mark.parametrize("unfrozen", [False, True], ids=["frozen", "unfrozen"])
@pytest.mark.parametrize(("method", "failure"), FAILURES)
def test_a_failure_changes_nothing(method: str, failure: Failure, unfrozen: bool) -> None:
    net = failure.model().requires_grad_(unfrozen)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    subject = Subject(net, net)
    before = snapshot(net)
    for _ in range(2):
        failure.happens(subject, method)
        assert snapshot(net) == before


@pytest.mark.parametrize(
    ("method", "failure"),
    [
        *over_the_registry(WRONG_REQUESTS, ON_PLAIN),
        *over_the_registry({k: v for k, v in WRONG_LAYERS.items() if v.build is None}, LAYERED),
    ],
)
def test_the_next_good_request_works(method: str, failure: Failure) -> None:
    net, x, targets = PLAIN.build(), PLAIN.pictures(2), [[Target(0)], [Target(1)]]
    where = looks_at(method, PLAIN)
    (expected,) = maps(Subject(net, net), method, x, targets, **where, **few(method))
    subject = Subject(net, net)
    for _ in range(3):
        failure.happens(subject, method)
        (actual,) = maps(subject, method, x, targets, **where, **few(method))
        assert torch.equal(actual, expected)


@pytest.mark.parametrize(("method", "parameters", "case"), with_cases(METHODS))
def test_success_changes_nothing(method: str, parameters: dict[str, object], case: Case) -> None:
    net, x = case.build(), case.pictures(2)
    targets = [[Target(), Target(1)], [Target(Rank(1), versus=Rank(0))]]
    subject = Subject(net, net)
    before, pixels, version = snapshot(net), bits(x), x._version
    for _ in range(3):
        answers = explain(subject, x, targets, method=method, parameters=parameters, **looks_at(method, case))
        assert all(isinstance(answer, Explanation) for answer in answers)
        assert snapshot(net) == before
        assert (bits(x), x._version, x.requires_grad, x.grad, x.grad_fn) == (pixels, version, False, None, None)


class InTheMiddleOfItsLife(nn.Module):
    """A part that trains beside parts that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True), Head(4)
        )
        self.aside = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("method", ON_PLAIN)
def test_gradients_modes_and_hooks_of_others_stay(method: str) -> None:
    net = seeded(InTheMiddleOfItsLife()).requires_grad_()
    net.aside.train()
    net.net[0].bias.requires_grad_(requires_grad=False)
    net(pictures(1, 9, 7, seed=5))[0, 0].backward()
    fired: list[str] = []
    handles = [
        net.net[1].register_forward_hook(lambda *_: fired.append("forward")),
        net.net[1].register_full_backward_hook(lambda *_: fired.append("backward")),
    ]
    x = pictures(2, 9, 7).requires_grad_()
    x.grad = torch.ones_like(x)
    subject = Subject(net, net)
    before, pixels, gradient = snapshot(net), bits(x), bits(x.grad)
    for layer in ("net.0", "net.1", "net.2", "net.3", "net.4"):
        for _ in range(2):
            fired.clear()
            answers = explain(
                subject,
                x,
                [[Target(0)]] * 2,
                method=method,
                layers=[layer] * min(get(method).max_layers, 1),
                parameters=few(method),
            )
            assert all(isinstance(answer, Explanation) for answer in answers)
            assert "forward" in fired
            assert snapshot(net) == before
            assert (bits(x), bits(x.grad), x.requires_grad, x.is_leaf) == (pixels, gradient, True, True)
    for handle in handles:
        handle.remove()


def test_the_snapshot_sees_what_it_is_to_see() -> None:
    """Each of these changes must show, or the tests above prove nothing."""
    net = PLAIN.build()
    before = snapshot(net)
    assert snapshot(net) == before
    weight = net[0].weight
    changes: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (net[1].train, net[1].eval),
        (lambda: setattr(net[1], "inplace", False), lambda: setattr(net[1], "inplace", True)),
        (weight.requires_grad_, lambda: weight.requires_grad_(requires_grad=False)),
        (lambda: setattr(weight, "grad", torch.ones_like(weight)), lambda: setattr(weight, "grad", None)),
        (
            lambda: setattr(net[2], "_is_full_backward_hook", True),
            lambda: setattr(net[2], "_is_full_backward_hook", None),
        ),
    ]
    for change, undo in changes:
        change()
        assert snapshot(net) != before
        undo()
        assert snapshot(net) == before
    handle = net[2].register_forward_hook(lambda *_: None)
    assert snapshot(net) != before
    handle.remove()
    state = torch.get_rng_state()
    torch.rand(1)
    assert snapshot(net) != before
    torch.set_rng_state(state)
    with torch.no_grad():
        assert snapshot(net) != before
    assert snapshot(net) == before
    weight.view(-1)[:1].mul_(1.0)  # the same bits, written again
    assert snapshot(net) != before
