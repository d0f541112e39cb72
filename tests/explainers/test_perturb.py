from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from explainers import Subject, Target, Work
from explainers.batch import Batch
from explainers.errors import NotConnected
from explainers.perturb import changed_gradients, changed_scores, generator, noise, score_clean
from tests.explainers.checks import assert_same, snapshot
from tests.explainers.nets import CLASSES, PLAIN
from tests.explainers.odd_nets import Cut, Wary

TARGETS = [[Target(0)], [Target(CLASSES)], [Target(1), Target(3, versus=2)]]
"""Of three pictures, the second of which has an error."""


def batch_of(net: nn.Module, *, chunk: int = 4) -> Batch:
    return Batch(Subject(net, net), PLAIN.pictures(3), TARGETS, work=Work(chunk=chunk))


def darker(batch: Batch) -> tuple[dict[tuple[int, int], Tensor], object]:
    """Return what each changed copy is, as it is asked for, and the change: copy s has a factor of 1 / (1 + s)."""
    asked: dict[tuple[int, int], Tensor] = {}

    def change(picture: int, numbers: Sequence[int]) -> Tensor:
        copies = torch.stack([batch.inputs[picture] / (1 + number) for number in numbers])
        asked.update({(picture, number): copy.clone() for number, copy in zip(numbers, copies, strict=True)})
        return copies

    return asked, change


def explained(net: nn.Module, x: Tensor, picture: int, round_: int) -> Tensor:
    """The explained score, one picture at a time."""
    scores = net(x[None])[0]
    if picture == 0:
        return scores[0]
    return scores[1] if round_ == 0 else scores[3] - scores[2]


WANTED = [(0, 0), (2, 0), (2, 1)]
"""Picture and round of all scores that are explained."""


# Scores


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_each_copy_has_its_own_score(chunk: int) -> None:
    net = Wary()
    batch = batch_of(net, chunk=chunk)
    scored = score_clean(batch)
    asked, change = darker(batch)
    scores = changed_scores(batch, scored, 5, change)
    assert scores.shape == (2, 3, 5)
    assert set(asked) == {(n, s) for n in (0, 2) for s in range(5)}, "the picture with an error is not run"
    for n, k in WANTED:
        assert_same(scores[k, n], [float(explained(net.net, asked[n, s], n, k)) for s in range(5)])
    assert scores[:, 1].abs().max() == 0
    assert scores[1, 0].abs().max() == 0, "it has one target only"
    assert max(net.batches[1:]) <= chunk


def test_each_picture_may_have_its_own_number_of_copies() -> None:
    net, counts = Wary(), [2, 7, 5, 3]
    batch = Batch(Subject(net, net), PLAIN.pictures(4), [[Target(0)], [Target(-1)], [Target(0)], [Target(0)]])
    batch.work.chunk = 4
    asked, change = darker(batch)
    scores = changed_scores(batch, score_clean(batch), counts, change)
    assert set(asked) == {(n, s) for n in (0, 2, 3) for s in range(counts[n])}
    assert net.batches == [4, 4, 4, 2]
    for n in (0, 2, 3):
        assert_same(scores[0, n, : counts[n]], [float(net.net(asked[n, s][None])[0, 0]) for s in range(counts[n])])
        assert scores[0, n, counts[n] :].abs().sum() == 0


def test_no_picture_without_an_error_is_no_work() -> None:
    net = Wary()
    batch = Batch(Subject(net, net), PLAIN.pictures(2), [[Target(-1)], []])
    scored = score_clean(batch)
    assert changed_scores(batch, scored, 3, darker(batch)[1]).shape == (0, 2, 3)
    assert list(changed_gradients(batch, scored, 3, darker(batch)[1])) == []
    assert net.batches == [2]


def test_scores_leave_no_graph() -> None:
    net = PLAIN.build().requires_grad_()
    batch = batch_of(net)
    before = snapshot(net)
    scored = score_clean(batch)
    assert not changed_scores(batch, scored, 3, darker(batch)[1]).requires_grad
    assert not scored.values.requires_grad
    assert snapshot(net) == before


# Gradients


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_each_copy_has_its_own_gradient(chunk: int, caller: type) -> None:
    net = Wary()
    batch = batch_of(net, chunk=chunk)
    asked, change = darker(batch)
    with caller():
        parts = list(changed_gradients(batch, score_clean(batch), 5, change))
    assert [(part.picture, s) for part in parts for s in part.samples] == [(n, s) for n in (0, 2) for s in range(5)]
    literal = PLAIN.build(inplace=False)
    for part in parts:
        for place, s in enumerate(part.samples):
            for n, k in WANTED:
                if n == part.picture:
                    x = asked[n, s].clone().requires_grad_()
                    explained(literal, x, n, k).backward()
                    assert_same(part.gradients[k, place], x.grad)


def test_gradients_of_unfrozen_networks_touch_no_parameter() -> None:
    net = PLAIN.build().requires_grad_()
    batch = batch_of(net)
    before = snapshot(net)
    parts = list(changed_gradients(batch, score_clean(batch), 3, darker(batch)[1]))
    assert not any(part.gradients.requires_grad for part in parts)
    assert snapshot(net) == before


def test_a_cut_gradient_is_named() -> None:
    net = nn.Sequential(Cut(), PLAIN.build())
    batch = batch_of(net)
    with pytest.raises(NotConnected, match="does not depend on the picture"):
        list(changed_gradients(batch, score_clean(batch), 3, darker(batch)[1]))


# Memory


def test_no_memory_halves_the_part_and_changes_nothing() -> None:
    plenty, little = Wary(), Wary(most=5)
    expected, batch = batch_of(plenty, chunk=8), batch_of(little, chunk=8)
    scores = changed_scores(batch, score_clean(batch), 7, darker(batch)[1])
    assert_same(scores, changed_scores(expected, score_clean(expected), 7, darker(expected)[1]))
    assert batch.work.chunk == 4
    gradients = [part.gradients for part in changed_gradients(batch, score_clean(batch), 7, darker(batch)[1])]
    whole = [part.gradients for part in changed_gradients(expected, score_clean(expected), 7, darker(expected)[1])]
    assert_same(torch.cat(gradients, dim=1), torch.cat(whole, dim=1))


# Random numbers


def test_noise_is_each_sample_s_own_and_nobody_else_s() -> None:
    like = torch.zeros(3, 20, 20, dtype=torch.float64)
    before = (torch.get_rng_state(), repr(np.random.get_state()))  # noqa: NPY002
    first, again, next_sample, next_seed = noise(0, 0, like), noise(0, 0, like), noise(0, 1, like), noise(1, 0, like)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002
    assert first.dtype == torch.float64
    assert torch.equal(first, again)
    # 1200 standard normal numbers: mean and correlation have a standard error of 0.03, the deviation of 0.02.
    for one, other in ((first, next_sample), (first, next_seed), (next_sample, next_seed)):
        assert abs(float((one * other).mean())) < 0.15
    for one in (first, next_sample, next_seed):
        assert abs(float(one.mean())) < 0.15
        assert abs(float(one.std()) - 1) < 0.1


def test_no_two_samples_of_any_two_seeds_share_a_generator() -> None:
    seeds, samples = (0, 1, 2, 2**31 - 1), (0, 1, 999_999)
    drawn = {int(torch.randint(2**62, (), generator=generator(a, b))) for a in seeds for b in samples}
    assert len(drawn) == len(seeds) * len(samples)
