"""Whatever happens, the model is afterwards as it was, and nothing stays in memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target
from explainers.diagnostics.gradient_flow import gradient_flow, score_objective
from explainers.errors import NotConnected, TargetOutOfRange
from tests.explainers.checks import snapshot
from tests.explainers.ledger import Ledger
from tests.explainers.nets import CASES, PLAIN, Case, Head, pictures
from tests.explainers.odd_nets import BreaksBackward, Call, Cut, RefusesForward, breaks_forward, sequential
from tests.explainers.test_hooks_memory import remembering, without_garbage_collection

SCORE = score_objective([Target(0), Target(1)])


def fails(_scores: Tensor) -> Tensor:
    raise ArithmeticError("objective failed")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_is_as_it_was(case: Case, ledger: Ledger) -> None:
    net, x = case.build(), case.pictures(2)
    for k, parameter in enumerate(net.parameters()):
        parameter.requires_grad_(k % 2 == 0)
        parameter.grad = torch.full_like(parameter, k) if k % 3 == 0 else None
    before, given = snapshot(net), x.clone()
    first = gradient_flow(Subject(net, net), x, SCORE)
    assert snapshot(net) == before
    assert torch.equal(x, given)
    assert x.grad is None
    assert ledger.registered
    assert gradient_flow(Subject(net, net), x, SCORE) == first  # and what it says, too


@pytest.mark.parametrize(
    ("broken", "objective", "error"),
    [
        (Call(breaks_forward), SCORE, ArithmeticError),
        (Call(BreaksBackward.apply), SCORE, ArithmeticError),
        (RefusesForward(4, 4, 1), SCORE, RuntimeError),
        (Cut(), SCORE, NotConnected),
        (nn.ReLU(), fails, ArithmeticError),
        (nn.ReLU(), lambda scores: scores, RuntimeError),
        (nn.ReLU(), score_objective([Target(0), Target(99)]), TargetOutOfRange),
    ],
    ids=["forward", "backward", "registration", "not connected", "objective", "no scalar", "target"],
)
def test_a_model_is_as_it_was_when_something_fails(
    broken: nn.Module, objective: Callable[[Tensor], Tensor], error: type[Exception], ledger: Ledger
) -> None:
    net = sequential(Position(), nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), Head(4), broken)
    before = snapshot(net)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with pytest.raises(error), mode():
            gradient_flow(Subject(net, net), pictures(2, 5, 5), objective)
        assert snapshot(net) == before
    assert ledger.left() == []


class Position(nn.Module):
    """A module inside gives a parameter: to hear its gradient, the parameter itself has to be listened to."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(1, 3, 1, 1))
        self.gives = Call(lambda _x: self.parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gives(x)


def test_the_callers_grad_mode_does_not_matter() -> None:
    net = PLAIN.build()
    expected = gradient_flow(Subject(net, net), PLAIN.pictures(2), SCORE)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            x = PLAIN.pictures(2)  # under inference_mode it is an inference tensor
            assert gradient_flow(Subject(net, net), x, SCORE) == expected
        assert gradient_flow(Subject(net, net), x, SCORE) == expected


def test_a_module_that_fails_and_is_caught_is_no_layer() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = sequential(nn.Conv2d(3, 4, 1), Call(breaks_forward)), nn.Conv2d(3, 4, 1)
            self.head = Head(4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.head(self.first(x))
            except ArithmeticError:
                return self.head(self.second(x))

    net = Tries().double().eval().requires_grad_(False)
    answer = gradient_flow(Subject(net, net), pictures(2, 3, 3), SCORE)
    assert [layer.name for layer in answer.layers] == ["first.0", "second", "head.fc"]
    assert [layer.grad_output_norm is None for layer in answer.layers] == [True, False, False]
    assert answer.verdict.kind == "disconnected"  # that is what it is: it ran, and nothing came of it


@pytest.mark.parametrize("tail", [nn.Identity(), Call(breaks_forward), Call(BreaksBackward.apply), Cut()])
def test_nothing_of_the_graph_stays(tail: nn.Module) -> None:
    """Without the garbage collector: a cycle through autograd's own objects is one that it cannot see."""
    remember, subject = remembering(inplace=True, tail=tail)

    def words(objective: Callable[[Tensor], Tensor]) -> str:
        try:
            return gradient_flow(subject, pictures(2, 9, 7), objective).verdict.kind
        except (ArithmeticError, NotConnected) as error:
            return type(error).__name__

    expected = {nn.Identity: ["ok", "ArithmeticError"], Cut: ["NotConnected", "ArithmeticError"]}
    with without_garbage_collection():
        assert [words(SCORE), words(fails)] == expected.get(type(tail), ["ArithmeticError"] * 2)
        assert len(remember.passed) > 10
        assert remember.alive() == 0


def test_hooks_of_the_models_own_stay_and_count() -> None:
    """A hook that halves what a layer passes back, one that clips a parameter's gradient: both are in the figures."""
    plain = PLAIN.build(inplace=False)
    expected = gradient_flow(Subject(plain, plain), PLAIN.pictures(2), SCORE)
    net = PLAIN.build(inplace=False)
    hook = net[2].register_full_backward_hook(lambda _m, given, _o: tuple(g / 2 for g in given))
    net[2].weight.requires_grad_(True)
    clip = net[2].weight.register_hook(lambda gradient: gradient * 0)
    before = snapshot(net)
    answer = gradient_flow(Subject(net, net), PLAIN.pictures(2), SCORE)
    assert snapshot(net) == before
    halved = [layer.grad_output_norm for layer in expected.layers[:2]]
    assert [layer.grad_output_norm for layer in answer.layers[:2]] == pytest.approx([h / 2 for h in halved])
    assert answer.layers[2].grad_input_norm == pytest.approx(expected.layers[2].grad_input_norm / 2)
    assert answer.layers[2].grad_output_norm == pytest.approx(expected.layers[2].grad_output_norm)
    assert answer.layers[2].parameters[0].gradient_norm == 0
    hook.remove()
    clip.remove()
