import pytest
import torch
from torch import Tensor

from explainers import Score, Target
from explainers.errors import NonFiniteScores, TargetOutOfRange
from explainers.gradients import Scored, gradient_of


def test_each_round_holds_every_pictures_own_gradient() -> None:
    # scores[n, k] = (k + 1) * x[n]^2, so the gradient of class k at x[n] is 2 (k + 1) x[n].
    x = torch.tensor([3.0, 5.0, 7.0], requires_grad=True)
    scores = x[:, None] ** 2 * torch.tensor([1.0, 2.0])
    scored = Scored(scores, [[Target(0), Target(1)], [Target(1, versus=0)], [Target(9)]])
    kept: list[bool] = []

    def source(score: Tensor, *, keep_graph: bool) -> Tensor:
        kept.append(keep_graph)
        gradient = gradient_of(score, x, keep_graph=keep_graph)
        assert gradient is not None
        return gradient

    rounds = [gradient.tolist() for gradient in scored.gradients(source)]
    # Round 0: 2 * 3; 2 * 2 * 5 - 2 * 5; none. Round 1: 2 * 2 * 3; none; none.
    assert rounds == [[6.0, 10.0, 0.0], [12.0, 0.0, 0.0]]
    assert kept == [True, False]
    assert scored.rounds == 2
    assert scored.chosen[0] == [Score(0, None, 9.0), Score(1, None, 18.0)]
    assert scored.chosen[1] == [Score(1, 0, 25.0)]
    assert isinstance(scored.chosen[2], TargetOutOfRange)


def test_other_runs_are_read_for_the_targets_of_their_picture() -> None:
    # Picture 0 explains class 1, then class 2 minus class 0; picture 1 has an error; picture 2 explains class 0 only.
    scored = Scored(
        torch.tensor([[1.0, 2, 4], [1, 1, 1], [8, 0, 0]]), [[Target(1), Target(2, versus=0)], [Target(9)], [Target(0)]]
    )
    assert scored.pictures == [0, 2]
    assert scored.values.tolist() == [[2.0, 0.0, 8.0], [3.0, 0.0, 0.0]]
    other = torch.tensor([[10.0, 20, 40], [50, 60, 70], [10, 20, 50]], requires_grad=True)
    read = scored.read(other, [0, 2, 0])
    assert read.tolist() == [[20.0, 50.0, 20.0], [30.0, 0.0, 40.0]]
    (gradient,) = torch.autograd.grad(read[1].sum(), other)
    assert gradient.tolist() == [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]


def test_other_weights_of_the_classes_give_other_sums() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    scored = Scored(scores, [[Target(0)], [Target(1)]])
    assert [total.item() for total in scored.sums] == [6.0]
    assert [total.item() for total in scored.sums_of(scored.weights * 10)] == [60.0]
    assert [total.item() for total in scored.sums_of(torch.ones(1, 2, 2))] == [11.0]


def test_without_a_good_target_there_is_no_round() -> None:
    scored = Scored(torch.tensor([[1.0], [float("nan")], [1.0]]), [[Target(1)], [Target(0)], []])
    assert scored.rounds == 0
    assert isinstance(scored.chosen[1], NonFiniteScores)
    assert scored.chosen[2] == []

    def never(_score: Tensor, *, keep_graph: bool) -> Tensor:
        pytest.fail(f"nothing to differentiate ({keep_graph})")

    assert list(scored.gradients(never)) == []


def test_no_dependence_is_none() -> None:
    x, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert gradient_of((x * 2).sum(), other, keep_graph=False) is None
    assert gradient_of(torch.tensor(1.0), x, keep_graph=False) is None
    assert gradient_of((x * 2).sum(), x, keep_graph=False).tolist() == [2.0]  # type: ignore[union-attr]
    assert x.grad is None


def test_a_nan_row_does_not_leak_into_the_others() -> None:
    x = torch.tensor([[1.0], [float("nan")]], requires_grad=True)
    scored = Scored(x.exp() * torch.ones(2, 3), [[Target(2)], [Target(2)]])

    def source(score: Tensor, *, keep_graph: bool) -> Tensor:
        gradient = gradient_of(score, x, keep_graph=keep_graph)
        assert gradient is not None
        return gradient

    (gradient,) = scored.gradients(source)
    assert gradient[0].item() == x[0].exp().item()
