"""How much two maps agree, against scipy, slow twins and numbers worked out by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from explainers.diagnostics.comparison import compare, feature_difference, rank_correlation
from explainers.errors import BadParameter, NonFiniteMap, NotComparable
from tests.explainers.checks import assert_same
from tests.explainers.nets import pictures
from tests.references import diagnostics as references

# Many equal values, as maps of a coarse grid and maps without their negative part have.
FEW_VALUES = arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(2, 6)), elements=st.integers(-2, 2))


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(deadline=None)
@given(FEW_VALUES, st.integers(0, 2**32 - 1))
def test_the_rank_correlation_is_scipys(first: np.ndarray, seed: int) -> None:
    second = np.random.default_rng(seed).permutation(first.ravel()).reshape(first.shape)
    ours = rank_correlation(first, second)
    if np.ptp(first) == 0:
        assert ours is None
    else:
        assert ours == pytest.approx(stats.spearmanr(first.ravel(), second.ravel()).statistic, abs=1e-12)
        by_hand = references.pearson(*(references.mean_ranks(m.ravel().tolist()) for m in (first, second)))
        assert ours == pytest.approx(by_hand, abs=1e-12)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4. Deviations from 2.5: (-1.5, 0, 0, 1.5) and (-1.5, -0.5, 0.5, 1.5), so
    # the correlation is 4.5 / sqrt(4.5 * 5) = sqrt(0.9).
    assert rank_correlation(np.array([0.0, 7, 7, 9]), np.array([1.0, 2, 3, 4])) == pytest.approx(math.sqrt(0.9))


def test_the_figures_of_two_noisy_maps() -> None:
    first, second = noise(0, 14, 10), noise(1, 14, 10)
    second = first + second
    found = compare(first, second)
    flat = first.ravel().tolist(), second.ravel().tolist()
    assert found.correlation == pytest.approx(stats.pearsonr(*flat).statistic, abs=1e-12)
    assert found.correlation == pytest.approx(references.pearson(*flat), abs=1e-12)
    assert found.rank_correlation == rank_correlation(first, second)
    assert found.overlap == pytest.approx(references.overlap(*flat, count=14))
    assert found.top == 0.1
    assert compare(first, second, top=0.5).overlap == pytest.approx(references.overlap(*flat, count=70))


def test_a_monotone_curve_changes_the_correlation_but_not_the_ranks() -> None:
    first = noise(0, 100)
    found = compare(first, np.exp(first))
    assert found.rank_correlation == 1
    assert found.overlap == 1
    assert 0.5 < found.correlation < 0.95  # of a normal and a log-normal variable: 1 / sqrt(e - 1) = 0.76


@pytest.mark.parametrize(("factor", "sign"), [(3.0, 1), (-1e-3, -1), (1e-38, 1), (-1e38, -1), (1e300, 1), (1e-300, 1)])
def test_scale_and_shift_do_not_matter(factor: float, sign: int) -> None:
    first = noise(2, 9, 7).astype(np.float64)
    found = compare(first, first * factor)
    assert found.correlation == pytest.approx(sign)
    assert found.rank_correlation == pytest.approx(sign)
    assert found.overlap == (1 if sign > 0 else 0)
    assert compare(first, first + 1e6).correlation == pytest.approx(1)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e-7, 1e30])
def test_a_constant_map_has_no_correlation(value: float) -> None:
    constant, other = np.full((14, 10), value, np.float32), noise(0, 14, 10)
    for first, second in ((constant, other), (other, constant), (constant, constant)):
        found = compare(first, second)
        assert found.correlation is None
        assert found.rank_correlation is None
    # Every place is a tenth of the constant map's region: 14 places share 0.1 with the other's, whose union with it is
    # 14 whole ones and a tenth of 126.
    assert compare(constant, other).overlap == pytest.approx(1.4 / (14 + 12.6))
    assert compare(constant, constant).overlap == pytest.approx(1)


def test_equal_values_at_the_edge_of_the_region_take_equal_parts() -> None:
    # A fifth of ten places is two. First: place 0, and the other one is shared by places 1 and 2. Second: places 0, 1.
    first = np.array([9, 5, 5, 0, 0, 0, 0, 0, 0, 0], np.float32)
    second = np.array([9, 8, 0, 0, 0, 0, 0, 0, 0, 0], np.float32)
    # Least of both: 1, 0.5, 0. Most: 1, 1, 0.5.
    assert compare(first, second, top=0.2).overlap == pytest.approx(1.5 / 2.5)
    order = np.random.default_rng(0).permutation(10)
    assert compare(first[order], second[order], top=0.2).overlap == pytest.approx(1.5 / 2.5)


def test_unrelated_maps_overlap_as_chance_has_it() -> None:
    found = [compare(noise(seed, 50, 50), noise(seed + 1000, 50, 50)).overlap for seed in range(20)]
    assert np.mean(found) == pytest.approx(0.1 / (2 - 0.1), abs=0.005)


def test_the_same_map_agrees_wholly_with_itself() -> None:
    assert compare(noise(0, 30), noise(0, 30)) == compare(noise(0, 5, 6), noise(0, 5, 6))
    found = compare(noise(0, 30), noise(0, 30))
    assert (found.correlation, found.rank_correlation, found.overlap) == (1, 1, 1)


@pytest.mark.parametrize("call", [compare, rank_correlation])
def test_what_cannot_be_compared(call: Callable[[np.ndarray, np.ndarray], object]) -> None:
    with pytest.raises(NotComparable, match=r"\(3, 4\) and \(4, 3\)"):
        call(noise(0, 3, 4), noise(0, 4, 3))
    with pytest.raises(NotComparable, match=r"\(0,\)"):
        call(noise(0, 0), noise(0, 0))
    for bad in (np.nan, np.inf):
        with pytest.raises(NonFiniteMap):
            call(noise(0, 3), np.array([0, bad, 1], np.float32))


@pytest.mark.parametrize("top", [0, -0.1, 1.01, math.nan])
def test_the_share_has_bounds(top: float) -> None:
    with pytest.raises(BadParameter, match="top: ") as caught:
        compare(noise(0, 3), noise(1, 3), top=top)
    assert caught.value.field == "top"
    assert caught.value.extra == {"minimum": 0, "maximum": 1}


# Features


def test_the_difference_of_features_is_the_twins() -> None:
    first, second = pictures(2, 4, 3, channels=5), 7 * pictures(2, 4, 3, channels=5, seed=1)
    found = feature_difference(first, second)
    for n in range(2):
        assert_same(found[n], references.feature_difference(first[n], second[n]))
    assert_same(feature_difference(second, first), found)


def test_features_of_another_scale_are_the_same() -> None:
    first = pictures(1, 4, 3).float()
    assert feature_difference(first, first * 4).abs().max() < 1e-6
    # Opposite features: each is the other's negative, so the distance is twice the length of the scaled one.
    lengths = torch.linalg.vector_norm(first / first.square().mean().sqrt(), dim=1)
    assert_same(feature_difference(first, -first), 2 * lengths, 1e-6)


def test_the_finer_grid_counts_on_either_axis() -> None:
    # Features that fall off along one axis only; resampled between cells' centres 2 cells become 1, 0.75, 0.25, 0.
    coarse = torch.tensor([[1.0, 0.0]]).reshape(1, 1, 1, 2)
    fine = torch.ones(1, 1, 3, 4)
    found = feature_difference(coarse, fine)
    # The coarse one's root mean square is sqrt(1 / 2).
    expected = (torch.tensor([1, 0.75, 0.25, 0]) * math.sqrt(2) - 1).abs().expand(1, 3, 4)
    assert_same(found, expected, 1e-6)
    assert feature_difference(torch.ones(1, 1, 4, 2), torch.ones(1, 1, 2, 8)).shape == (1, 4, 8)


def test_features_of_zeros_stay_zeros() -> None:
    other = pictures(1, 4, 3)
    lengths = torch.linalg.vector_norm(other / other.square().mean().sqrt(), dim=1)
    assert_same(feature_difference(torch.zeros_like(other), other), lengths)
    assert feature_difference(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3)).abs().max() == 0


def test_half_precision_features_are_squared_in_float32() -> None:
    first, second = (pictures(1, 4, 3, seed=seed) * 3e4 for seed in range(2))
    clipped = [grid.clamp(-6e4, 6e4).half() for grid in (first, second)]
    found = feature_difference(*clipped)
    assert found.dtype == torch.float32
    assert_same(found[0], references.feature_difference(*(grid[0].double() for grid in clipped)), 1e-6)


def test_features_whose_squares_overflow() -> None:
    first, second = (pictures(1, 4, 3, seed=seed) for seed in range(2))
    found = feature_difference(first.float() * 1e37, second.float() * 1e37)
    assert_same(found, feature_difference(first, second), 1e-6)


def test_features_that_do_not_correspond() -> None:
    with pytest.raises(NotComparable, match="4 channels and the second 6") as caught:
        feature_difference(torch.ones(1, 4, 2, 2), torch.ones(1, 6, 2, 2))
    assert caught.value.extra == {"channels": [4, 6]}
    for first, second in (((1, 4, 2), (1, 4, 2)), ((1, 4, 2, 2), (2, 4, 2, 2)), ((1, 4), (1, 4, 1, 1))):
        with pytest.raises(NotComparable, match="as many pictures"):
            feature_difference(torch.ones(first), torch.ones(second))
    with pytest.raises(NonFiniteMap):
        feature_difference(torch.full((1, 1, 2, 2), torch.nan), torch.ones(1, 1, 2, 2))
