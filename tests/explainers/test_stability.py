import numpy as np
import pytest
import scipy.stats
import torch
from numpy.typing import NDArray

from explainers import Subject, Target, explain
from explainers.stability import COPIES, Stability, changed, stability
from tests.explainers.checks import snapshot
from tests.explainers.nets import PLAIN

RAMP = np.arange(12, dtype=np.float32).reshape(3, 4)


def noise_like(seed: int, shape: tuple[int, ...] = (3, 4)) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Copies


def test_copies_are_two_noisy_ones_and_the_mirrored_one() -> None:
    """12,288 numbers: the standard error of a standard deviation is sigma / sqrt(2 n); five of them are 3.2 %."""
    picture = np.random.default_rng(0).uniform(-2, 3, (3, 64, 64)).astype(np.float32)
    sigma = 0.02 * (picture.max() - picture.min())
    copies = changed(picture)
    assert copies.shape == (COPIES, 3, 64, 64)
    assert copies.dtype == np.float32
    noises = copies[:2] - picture
    for noise in noises:
        assert noise.std() == pytest.approx(sigma, rel=0.032)
        assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
    assert abs(np.corrcoef(noises[0].ravel(), noises[1].ravel())[0, 1]) < 5 / np.sqrt(noises[0].size)
    assert (copies[2] == picture[:, :, ::-1]).all()


def test_the_seed_alone_decides_and_nobody_else_s_numbers_are_touched() -> None:
    picture, net = noise_like(1, (3, 8, 9)), PLAIN.build()
    before = snapshot(net)
    first, again, other = (changed(picture, seed=seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first[:2] != other[:2]).all(axis=(1, 2, 3)).all() or (first[:2] != other[:2]).mean() > 0.99
    assert (first[2] == other[2]).all()
    assert snapshot(net) == before


# Figures


def test_a_map_that_follows_the_picture_is_wholly_stable() -> None:
    (answer,) = stability([RAMP], [[RAMP * 2 + 1], [RAMP**3], [RAMP[:, ::-1]]])
    assert answer == Stability(noise=pytest.approx(1), mirror=pytest.approx(1))  # type: ignore[arg-type]


def test_a_map_that_turns_round_is_as_unstable_as_can_be() -> None:
    # In columns 0 1 2 3 of a row, mirrored, unmirrored: the mirrored map must be mirrored back before it is compared.
    columns = np.tile(np.arange(4, dtype=np.float32), (3, 1))
    (answer,) = stability([columns], [[-columns], [-columns], [columns]])
    assert answer == Stability(noise=pytest.approx(-1), mirror=pytest.approx(-1))  # type: ignore[arg-type]


def test_figures_are_scipy_s_and_noise_is_the_mean_of_both_copies() -> None:
    maps = [noise_like(0), noise_like(1)]
    copies = [[noise_like(10 * copy + k) + maps[k] for k in range(2)] for copy in range(1, 4)]

    def spearman(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
        return float(scipy.stats.spearmanr(one.ravel(), other.ravel()).statistic)

    for k, answer in enumerate(stability(maps, copies)):
        assert answer.noise == pytest.approx((spearman(maps[k], copies[0][k]) + spearman(maps[k], copies[1][k])) / 2)
        assert answer.mirror == pytest.approx(spearman(maps[k], copies[2][k][:, ::-1]))


def test_constant_and_missing_maps_have_no_figure() -> None:
    flat = np.ones((3, 4), np.float32)
    answers = stability(
        [RAMP, flat, RAMP, RAMP], [[flat, flat, RAMP, None], [RAMP, RAMP, RAMP, RAMP], [RAMP, RAMP, flat, None]]
    )
    assert [answer.noise for answer in answers[:2]] == [None, None]
    assert answers[2].noise == pytest.approx(1)
    assert answers[3].noise is None
    assert [answer.mirror is None for answer in answers] == [False, True, True, True]
    assert "cannot be said" in answers[1].words


@pytest.mark.parametrize("copies", [[[RAMP]] * 2, [[RAMP], [RAMP], []], [[RAMP, RAMP]] * 3])
def test_other_numbers_of_copies_or_maps_are_refused(copies: list[list[NDArray[np.float32]]]) -> None:
    with pytest.raises(ValueError, match="1 maps need as many"):
        stability([RAMP], copies)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.93, "hardly changes"), (0.8, "hardly changes"), (0.6, "in part"), (0.2, "much"), (-0.4, "much")],
)
def test_words_tell_what_the_figure_means(value: float, words: str) -> None:
    told = Stability(noise=value, mirror=value).words
    assert told.count(words) == 2
    assert f"(rank correlation {value:.2f})" in told


def test_on_a_network_each_figure_is_that_of_its_own_copy() -> None:
    net, x = PLAIN.build().float(), PLAIN.pictures(1)[0].float()
    subject = Subject(net, net)
    copies = changed(x.numpy())

    def maps(inputs: torch.Tensor) -> list[list[NDArray[np.float32]]]:
        answers = explain(subject, inputs, [[Target(1), Target(2)]] * len(inputs), method="saliency")
        return [[each.raw for each in answer.attributions] for answer in answers]  # type: ignore[union-attr]

    (own,), others = maps(x[None]), maps(torch.from_numpy(copies))
    for k, answer in enumerate(stability(own, others)):
        assert answer.mirror == pytest.approx(
            scipy.stats.spearmanr(own[k].ravel(), np.fliplr(others[2][k]).ravel()).statistic
        )
        # Noise of 2 % changes a small network's gradients less than mirroring the picture does.
        assert answer.noise is not None
        assert answer.mirror is not None
        assert answer.noise > answer.mirror
