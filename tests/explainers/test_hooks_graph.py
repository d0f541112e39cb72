from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, explain
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import PLAIN, Head, pictures
from tests.explainers.odd_nets import Call, sequential

# The graph begins at the layer


class Probe(nn.Module):
    """Hands its input on and notes whether it came with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.saw_graph: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.saw_graph.append(x.requires_grad or x.grad_fn is not None)
        return x * 1


class Forbidden(torch.autograd.Function):
    """Must never be asked for a gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> Tensor:
        raise AssertionError("the backward pass went beyond the layer")


def test_no_graph_exists_before_the_layer() -> None:
    before, after = Probe(), Probe()
    net = sequential(nn.Conv2d(3, 4, 3), before, nn.Conv2d(4, 4, 3), after, nn.ReLU(), Head(4))
    subject = Subject(net, net)
    x = pictures(1, 9, 7).requires_grad_()  # even if the caller's input wants a gradient
    for _ in range(2):
        explain(subject, x, [[Target(0), Target(1)]], method="gradcam", layers=["2"])
    assert before.saw_graph == [False, False]
    assert after.saw_graph == [True, True]
    assert x.grad is None


def test_autograd_saves_nothing_before_the_layer() -> None:
    counts: list[int] = []
    saved: list[tuple[int, ...]] = []
    net = sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        Call(lambda x: counts.append(len(saved)) or x),
        nn.Conv2d(6, 6, 1),
        Head(6),
    )
    subject = Subject(net, net)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        for _ in range(2):
            before = len(saved)
            explain(subject, pictures(1, 9, 7), [[Target(0)]], method="gradcam", layers=["3"])
            assert counts.pop() - before == 0
            assert len(saved) > before  # the convolution behind it does save


@pytest.mark.parametrize("unfrozen", [False, True])
def test_the_backward_pass_ends_at_the_layer(unfrozen: bool) -> None:
    net = sequential(nn.Conv2d(3, 4, 3), Call(Forbidden.apply), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True), Head(4))
    net.requires_grad_(unfrozen)
    subject = Subject(net, net)
    for layer in ("2", "3"):
        for _ in range(2):
            explain(subject, pictures(1, 9, 7), [[Target(0), Target(1)]], method="gradcam", layers=[layer])
    with pytest.raises(AssertionError, match="beyond the layer"):  # the trap works
        explain(subject, pictures(1, 9, 7), [[Target(0)]], method="saliency")


# The caller's mode and the parameters' flags


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("method", ["gradcam", "saliency"])
def test_the_callers_grad_mode_does_not_matter(mode: Callable[[], Any], method: str) -> None:
    net = PLAIN.build(inplace=False)
    layers = ["2"] if method == "gradcam" else []
    targets = [[Target(0), Target(1)], [Target(2)]]
    expected = maps(Subject(net, net), method, PLAIN.pictures(2), targets, layers)
    subject = Subject(net, net)
    for _ in range(2):
        with mode():
            x = PLAIN.pictures(2)  # under inference_mode it is an inference tensor
            actual = maps(subject, method, x, targets, layers)
            enabled = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            assert enabled == {torch.no_grad: (False, False), torch.inference_mode: (False, True)}.get(
                mode, (True, False)
            )
        again = maps(subject, method, x, targets, layers)  # an inference tensor outside the mode
        for k in range(2):
            assert torch.equal(actual[k][0], expected[k][0])
            assert torch.equal(again[k][0], expected[k][0])


@pytest.mark.parametrize("layer", ["1", "2", "3"])
@pytest.mark.parametrize("order", [(True, True), (False, False, True, True, False)])
def test_unfrozen_parameters_give_the_same_map(layer: str, order: tuple[bool, ...]) -> None:
    """Also where the layer itself works in place, and where a frozen capture came first and was remembered."""
    net, x = PLAIN.build(), PLAIN.pictures(2)
    targets = [[Target(0)], [Target(1)]]
    (expected,) = maps(Subject(net, net), "gradcam", x, targets, [layer])
    subject = Subject(net, net)
    for unfrozen in order:
        net.requires_grad_(unfrozen)
        (actual,) = maps(subject, "gradcam", x, targets, [layer])
        assert_same(actual, expected)
        assert all(parameter.grad is None for parameter in net.parameters())


def test_an_input_that_wants_a_gradient_gives_the_same_map() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(1)
    subject = Subject(net, net)
    layer = "3"  # an in-place ReLU, which bears a backward hook when its input has no gradient
    answers = [
        explain(subject, given, [[Target(0)]], method="gradcam", layers=[layer])[0].attributions[0].raw
        for given in (x, x, x.clone().requires_grad_(), x)
    ]
    assert subject.backward_hookable == {(layer,): (True,)}
    assert all((answer == answers[0]).all() for answer in answers)
