"""A signed difference as colours: neutral at zero, honest about size and sign, and readable by everybody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from skimage.color import rgb2lab

from app.imaging import legend as legends
from app.imaging.colormaps import DIVERGING, MIDDLE
from app.imaging.diverging import DifferenceView, render_difference, signed_levels
from app.imaging.render import fade

HEIGHT, WIDTH = 90, 255
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
NOISE.setflags(write=False)
RAMP = np.tile((np.arange(WIDTH) - 127).astype(np.float32) / np.float32(127), (HEIGHT, 1))
ALL = np.ones((HEIGHT, WIDTH), np.bool_)
MIDST = np.zeros((HEIGHT, WIDTH), np.bool_)
MIDST[10:80, 30:220] = True

# Machado, Oliveira, Fernandes (2009), severity 1.0, for linear RGB.
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]


def draw(
    values: NDArray[np.float32] = RAMP,
    seen: NDArray[np.bool_] = ALL,
    view: DifferenceView = "overlay",
    alpha: float = 0.7,
    legend: bool = False,
) -> NDArray[np.uint8]:
    return render_difference(NOISE, values, seen, view=view, alpha=alpha, legend=legend)


def lab(colours: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.asarray(rgb2lab(colours[None].astype(float) / 255)[0])


def as_seen_with(matrix: list[list[float]], colours: NDArray[np.uint8]) -> NDArray[np.float64]:
    share = colours / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ np.array(matrix).T
    linear = np.clip(linear, 0, 1)
    return np.asarray(
        rgb2lab(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)[None])[0]
    )


def test_the_middle_is_neutral_and_the_ends_are_blue_and_red() -> None:
    assert MIDDLE == 128
    assert np.ptp(DIVERGING[MIDDLE].astype(int)) <= 1
    assert DIVERGING[MIDDLE].min() >= 235
    np.testing.assert_allclose(DIVERGING[1], (33, 102, 172), atol=1)  # ColorBrewer's RdBu
    np.testing.assert_allclose(DIVERGING[255], (178, 24, 43), atol=1)
    assert not DIVERGING.flags.writeable


def test_both_arms_darken_evenly_and_equally() -> None:
    """Equal steps of CIELAB: more is darker, and plus and minus look equally strong (within 4 of 100)."""
    lightness = lab(DIVERGING)[:, 0]
    assert (np.diff(lightness[MIDDLE::4]) < 0).all()
    assert (np.diff(lightness[1 : MIDDLE + 1 : 4]) > 0).all()
    size = np.arange(128)
    assert np.abs(lightness[MIDDLE + size[:-1]] - lightness[MIDDLE - size[:-1]]).max() <= 5


@pytest.mark.parametrize("matrix", [PROTANOPIA, DEUTERANOPIA], ids=["protanopia", "deuteranopia"])
def test_the_colour_blind_tell_plus_from_minus(matrix: list[list[float]]) -> None:
    """From half the size on, what is as large on the other side is far away: 20 and more (2.3 is just noticeable)."""
    seen = as_seen_with(matrix, DIVERGING)
    sizes = np.arange(64, 128)
    distance = np.linalg.norm(seen[MIDDLE + sizes[:-1]] - seen[MIDDLE - sizes[:-1]], axis=1)
    assert distance.min() >= 20


def test_levels() -> None:
    values = np.array([-1, -0.5, 0, 0.5, 1, 1 / 127], np.float32)
    np.testing.assert_array_equal(signed_levels(values), [1, 64, 128, 192, 255, 129])


@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_overlay_by_definition(alpha: float) -> None:
    """picture (1 - a) + colour a, with a = alpha fade(|value|): within the levels that 8 bits cost."""
    opacity = (alpha * fade(np.abs(RAMP)))[..., None]
    colour = DIVERGING[np.arange(1, 256)][None]
    drawn = draw(alpha=alpha)
    expected = NOISE * (1 - opacity) + colour * opacity
    assert np.abs(drawn - expected).max() <= 2.5
    assert np.abs(drawn - expected).mean() <= 0.5


def test_heatmap_is_the_colours_alone() -> None:
    np.testing.assert_array_equal(draw(view="heatmap"), np.broadcast_to(DIVERGING[1:][None], NOISE.shape))


def test_exchanging_the_two_maps_exchanges_the_colours() -> None:
    np.testing.assert_array_equal(draw(-RAMP, view="heatmap"), draw(view="heatmap")[:, ::-1])


def test_where_nothing_differs_the_picture_is_untouched() -> None:
    values = np.where(np.abs(RAMP) > 0.5, RAMP, np.float32(0))
    drawn = draw(values)
    np.testing.assert_array_equal(drawn[values == 0], NOISE[values == 0])
    assert (drawn[values != 0] != NOISE[values != 0]).mean() > 0.9


def test_no_difference_at_all_is_said() -> None:
    drawn = draw(np.zeros_like(RAMP))
    rows, columns = np.nonzero((drawn != NOISE).any(axis=2))
    assert rows.max() < 40  # a small plate, top left
    assert columns.max() < 160
    np.testing.assert_array_equal(draw(np.full_like(RAMP, 1e-4))[40:, 160:], NOISE[40:, 160:])
    np.testing.assert_array_equal(draw(np.full_like(RAMP, 1e-4)), NOISE)  # too little to see is not nothing


def test_the_margin_has_the_veil_whatever_the_values_there() -> None:
    values = np.where(MIDST, np.float32(0.5), RAMP)
    np.testing.assert_array_equal(draw(values, MIDST)[~MIDST], draw(-values, MIDST)[~MIDST])
    plain = draw(np.zeros_like(RAMP), MIDST)
    assert (plain[~MIDST] != NOISE[~MIDST]).any(axis=1).mean() > 0.95


@pytest.mark.parametrize("view", ["overlay", "heatmap"])
@pytest.mark.parametrize("seen", [ALL, MIDST], ids=["all seen", "margin"])
def test_the_legend_is_added_below(view: DifferenceView, seen: NDArray[np.bool_]) -> None:
    with_legend = draw(seen=seen, view=view, legend=True)
    np.testing.assert_array_equal(with_legend[:HEIGHT], draw(seen=seen, view=view))
    strip = legends.difference_strip(WIDTH, HEIGHT, not_seen=seen is MIDST)
    np.testing.assert_array_equal(with_legend[HEIGHT:], strip)


@pytest.mark.parametrize("width", [64, 200, 451, 1024, 4096])
def test_the_legends_bar_goes_from_blue_over_the_middle_to_red(width: int) -> None:
    strip = legends.difference_strip(width, width, not_seen=True)
    row = strip[len(strip) // 2]
    low, high = ((row == DIVERGING[end]).all(axis=1).nonzero()[0] for end in (1, 255))
    bar = row[low[0] : high[-1] + 1]
    assert len(bar) >= 0.3 * width
    np.testing.assert_array_equal(bar, DIVERGING[1 + np.rint(np.linspace(0, 254, len(bar))).astype(int)])


def test_long_words_make_way_for_the_bar() -> None:
    """On 1024 px there is room for "more in the first", on 300 px for "first" only: there the bar starts earlier."""
    start = {}
    for width in (300, 1024):
        strip = legends.difference_strip(width, width // 2, not_seen=False)
        start[width] = (strip[len(strip) // 2] == DIVERGING[1]).all(axis=1).argmax() / width
    assert 0.1 < start[1024] < 0.26
    assert start[300] < 0.25


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.001, -2.0])
def test_what_is_no_difference_is_refused(wrong: float) -> None:
    values = RAMP.copy()
    values[3, 3] = wrong
    with pytest.raises(ValueError, match=r"finite and within \[-1, 1\]"):
        draw(values)


@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    view=st.sampled_from(["overlay", "heatmap"]),
    value=st.floats(-1, 1, width=32),
    cut=st.floats(0, 1),
)
@settings(max_examples=100, deadline=None)
def test_every_size_can_be_drawn(size: tuple[int, int], view: DifferenceView, value: float, cut: float) -> None:
    pixels = np.full((*size, 3), 200, np.uint8)
    seen = np.zeros(size, np.bool_)
    seen[: max(1, round(size[0] * cut)), : max(1, round(size[1] * cut))] = True
    values = np.full(size, value, np.float32)
    drawn = render_difference(pixels, values, seen, view=view, alpha=0.7, legend=True)
    assert drawn.dtype == np.uint8
    assert drawn.shape[0] >= size[0]
    assert drawn.shape[1:] == (size[1], 3)
    assert pixels.min() == pixels.max() == 200
