import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from explainers import Subject
from explainers.hooks import capture, observe
from tests.explainers.checks import snapshot
from tests.explainers.ledger import Ledger
from tests.explainers.nets import PLAIN, Head, pictures, seeded
from tests.explainers.odd_nets import (
    Call,
    RefusesForward,
    Shared,
    breaks_forward,
)

# Observing


def test_observe_tells_every_module_in_the_order_of_completion() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(inplace=True), nn.Identity()), Head(4)).eval()
    seen: list[tuple[str, nn.Module, object]] = []
    before = snapshot(net)
    x = torch.zeros(1, 3, 5, 5)
    with torch.inference_mode(), observe(net, lambda *what: seen.append(what)):
        result = net(x)
    assert [name for name, _, _ in seen] == ["0", "1.0", "1.1", "1", "2.fc", "2", ""]
    assert all(module is net.get_submodule(name) for name, module, _ in seen)
    assert seen[-1][2] is result  # the very output, not a copy
    assert snapshot(net) == before


def test_observe_tells_each_call_of_a_shared_module() -> None:
    net = seeded(Shared(inplace=False))
    seen: list[str] = []
    with observe(net, lambda name, _module, _output: seen.append(name)):
        net(pictures(1, 9, 7))
    assert seen == ["conv1", "relu", "conv2", "relu", "head.fc", "head", ""]


def test_observe_tells_when_a_module_begins_and_with_what() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Identity()), Head(4)).eval()
    x = torch.zeros(1, 3, 5, 5)
    events: list[str] = []
    begun: dict[str, object] = {}

    def begin(name: str, module: nn.Module, args: Sequence[object]) -> None:
        assert module is net.get_submodule(name)
        events.append(f"<{name}")
        begun[name] = args[0]

    before = snapshot(net)
    with observe(net, lambda name, _module, _output: events.append(f"{name}>"), begin):
        net(x)
    assert events == ["<", "<0", "0>", "<1", "<1.0", "1.0>", "<1.1", "1.1>", "1>", "<2", "<2.fc", "2.fc>", "2>", ">"]
    assert begun[""] is x
    assert begun["1"] is begun["1.0"]
    assert snapshot(net) == before


def test_observe_tells_named_arguments_behind_the_others() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(2, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bilinear(x, input2=x + 1)

    net, x, begun = Net().eval(), torch.zeros(1, 2), {}
    with observe(net, lambda *_: None, lambda name, _module, arguments: begun.update({name: arguments})):
        net(x)
    first, second = begun["bilinear"]
    assert first is x
    assert torch.equal(second, x + 1)


@pytest.mark.parametrize("module", [RefusesForward(4, 4, 1), Call(breaks_forward)], ids=["registration", "forward"])
def test_observe_leaves_nothing_when_it_fails(module: nn.Module, ledger: Ledger) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), module)
    before = snapshot(net)
    with pytest.raises((RuntimeError, ArithmeticError)), observe(net, lambda *_: None):
        net(torch.zeros(1, 3, 5, 5))
    assert ledger.registered >= 2
    assert snapshot(net) == before


def test_observe_leaves_nothing_when_the_observer_fails() -> None:
    net = PLAIN.build()

    def observer(*_what: object) -> None:
        raise ArithmeticError

    before = snapshot(net)
    with pytest.raises(ArithmeticError), observe(net, observer):
        net(PLAIN.pictures(1))
    assert snapshot(net) == before


def test_a_copy_of_a_model_made_during_a_capture_is_not_our_business() -> None:
    """Documents why captures are short: a deep copy takes the hooks along."""
    net = PLAIN.build()
    with capture(Subject(net, net), ["2"]):
        clone = copy.deepcopy(net)
    assert len(net[2]._forward_hooks) == 0
    assert len(clone[2]._forward_hooks) == 1
