"""Brush strokes, decoded again by Label Studio's own converter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from label_studio_converter.brush import decode_rle, encode_rle
from numpy.typing import NDArray

from app.dialects import brush

# 0, 1/7, ... 7/7 of 255, to the nearest whole number
STEPS = [0, 36, 73, 109, 146, 182, 219, 255]


def decoded(opacities: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(decode_rle(list(brush.encode(opacities))).reshape(*opacities.shape, 4))


@settings(max_examples=60, deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.sampled_from(STEPS)))
def test_what_is_decoded_is_what_was_drawn_in_all_four_channels(opacities: NDArray[np.uint8]) -> None:
    assert (decoded(opacities) == opacities[..., None]).all()


@pytest.mark.parametrize("pixels", [1, 2, 3, 4, 5, 63, 64, 65, 16_383, 16_384, 16_385, 40_000])
def test_runs_of_each_size_of_a_length_and_just_beyond(pixels: int) -> None:
    """Four values each: lengths are told in 3, 4, 8 and 16 bits, so up to 8, 16, 256 and 65,536 values."""
    opacities = np.array([[*([255] * pixels), 0, 36]], np.uint8)
    assert (decoded(opacities) == opacities[..., None]).all()


def test_the_bits_are_those_of_label_studios_own_encoder() -> None:
    opacities = np.repeat(np.array(STEPS, np.uint8), [1, 2, 3, 4, 5, 64, 65, 300]).reshape(1, -1)
    theirs = bytes(encode_rle(np.repeat(opacities.ravel(), 4)))
    ours = brush.encode(opacities)
    assert theirs.startswith(ours)
    assert set(theirs[len(ours) :]) <= {0}  # it adds a byte where none is needed


def test_heat_has_eight_levels_and_each_value_gets_the_nearest() -> None:
    values = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    found = brush.levels(values, (16, 16))
    assert np.unique(found).tolist() == STEPS
    # half the distance of two levels (255 / 7 / 2), and half a step of rounding for the value and for the level
    assert np.abs(found - values * 255.0).max() <= 255 / 14 + 1.0


def test_heat_is_stretched_to_the_size_of_the_picture() -> None:
    values = np.zeros((2, 3), np.float32)
    values[:, 0] = 1.0
    found = brush.levels(values, (30, 20))
    assert found.shape == (20, 30)
    assert (found[:, :5] == 255).all()  # up to the centre of the first of three columns
    assert (found[:, 15:] == 0).all()  # from that of the second on
