"""What is shown: the positive part over its own percentile, among what was seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from app.imaging.display import DisplayMap, display
from app.imaging.placement import Placed, place
from models.preprocess import Geometry

pytestmark = pytest.mark.filterwarnings("error")


def shown_as(values: NDArray[np.float32] | list[list[float]], percentile: float) -> DisplayMap:
    """Display a map that was laid over a picture of its own size."""
    raw = np.asarray(values, np.float32)
    return display(Placed(raw, np.ones(raw.shape, np.bool_)), raw, percentile)


def test_by_hand() -> None:
    """The maximum is 4: each positive value is divided by it, each negative one is 0."""
    shown = shown_as([[-2, 0, 1], [2, 3, 4]], 100)
    assert shown.values.tolist() == [[0, 0, 0.25], [0.5, 0.75, 1]]
    assert (shown.scale, shown.normalisation, shown.no_positive_evidence) == (4.0, "positive/p100", False)


def test_the_percentile_is_one_of_the_positive_values() -> None:
    """Of the positive values 1, 2, 3, 4, the 60th percentile is the one at index floor(0.6 x 3) = 1, which is 2."""
    shown = shown_as([[-9, 0, 1, 2, 3, 4]], 60)
    assert shown.scale == 2.0
    assert shown.values.tolist() == [[0, 0, 0.5, 1, 1, 1]]
    assert shown.normalisation == "positive/p60"


def test_neither_scale_nor_evidence_depends_on_the_size_of_the_answer() -> None:
    """One positive cell among negative ones is evidence, even where the answer is too small to show it."""
    raw = np.full((4, 4), -1, np.float32)
    raw[1, 2] = 8
    geometry = Geometry(frame=(64, 64), input=(64, 64), scale=(1.0, 1.0), offset=(0.0, 0.0))
    for side in (1, 16, 64):
        shown = display(place(raw, geometry, (side, side)), raw, 100)
        assert (shown.scale, shown.no_positive_evidence) == (8.0, False)


@pytest.mark.parametrize("values", [[[0, 0]], [[-1, -3]], [[-1, 0]], [[0]]])
def test_no_positive_evidence(values: list[list[float]]) -> None:
    shown = shown_as(values, 99)
    assert shown.no_positive_evidence
    assert shown.scale == 0.0
    assert not shown.values.any()


def test_a_single_hot_pixel_has_a_scale() -> None:
    """A percentile over all pixels would be 0 here."""
    values = np.zeros((100, 100), np.float32)
    values[3, 4] = 5.0
    shown = shown_as(values, 99)
    assert shown.scale == 5.0
    assert shown.values.sum() == 1.0


@pytest.mark.parametrize("factor", [1e-42, 1e-30, 1.0, 1e30])
def test_there_is_no_absolute_threshold(factor: float) -> None:
    """Subnormal maps too; those have few bits, so 1e-42 is about 714 steps of 1.4e-45."""
    shown = shown_as(np.array([[1, 2, 4]], np.float32) * np.float32(factor), 100)
    np.testing.assert_allclose(shown.values, [[0.25, 0.5, 1.0]], atol=2e-3 if factor < 1e-38 else 1e-6)
    assert not shown.no_positive_evidence


@given(
    values=arrays(
        np.float32,
        st.tuples(st.integers(1, 12), st.integers(1, 12)),
        elements=st.floats(-(2.0**127), 2.0**127, width=32),
    ),
    percentile=st.floats(0.5, 100),
)
@settings(max_examples=100, deadline=None)
def test_always_a_picture_between_0_and_1(values: NDArray[np.float32], percentile: float) -> None:
    shown = shown_as(values, percentile)
    assert shown.values.dtype == np.float32
    assert shown.values.min() >= 0.0
    assert shown.values.max() == (0.0 if shown.no_positive_evidence else 1.0)
    assert shown.no_positive_evidence == (values.max() <= 0)
    assert (shown.values > 0).sum() <= (values > 0).sum()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        shown_as([[1.0, bad]], 100)


def test_two_infinities_do_not_cancel() -> None:
    with pytest.raises(ValueError, match="not finite"):
        shown_as([[float("inf"), float("-inf")]], 100)


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, float("nan")])
def test_percentile_bounds(percentile: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        shown_as([[1.0]], percentile)
