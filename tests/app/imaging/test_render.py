"""The drawn views: each against its definition, and readable by numbers where "readable" can be a number."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.imaging import legend as legends
from app.imaging.colormaps import COLORMAPS
from app.imaging.display import DisplayMap, display
from app.imaging.placement import Placed
from app.imaging.render import View, fade, over, render

VIEWS: tuple[View, ...] = get_args(View)
HEIGHT, WIDTH = 90, 140
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
NOISE.setflags(write=False)
RAMP = np.tile(np.linspace(0, 1, WIDTH, dtype=np.float32), (HEIGHT, 1))
ALL = np.ones((HEIGHT, WIDTH), np.bool_)
MIDDLE = np.zeros((HEIGHT, WIDTH), np.bool_)
MIDDLE[10:80, 30:110] = True


def shown(values: NDArray[np.float32] = RAMP, seen: NDArray[np.bool_] = ALL) -> DisplayMap:
    placed = Placed(np.where(seen, values, np.float32(0)), seen)
    return display(placed, placed.values, 100)


def draw(
    pixels: NDArray[np.uint8] = NOISE,
    values: NDArray[np.float32] = RAMP,
    seen: NDArray[np.bool_] = ALL,
    view: View = "overlay",
    colormap: str = "inferno",
    alpha: float = 0.7,
    legend: bool = False,
) -> NDArray[np.uint8]:
    return render(pixels, shown(values, seen), seen, view=view, colormap=colormap, alpha=alpha, legend=legend)


def test_fade() -> None:
    """Nothing at 0, half at half of 0.6 (the smooth step is symmetric), all from 0.6 on, never falling."""
    np.testing.assert_allclose(fade(np.array([0, 0.3, 0.6, 1], np.float32)), [0, 0.5, 1, 1], atol=1e-6)
    assert (np.diff(fade(np.linspace(0, 1, 1000, dtype=np.float32))) >= 0).all()


@pytest.mark.parametrize("colormap", COLORMAPS)
@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
def test_overlay_by_definition(colormap: str, alpha: float) -> None:
    """picture (1 - a) + colour a with a = alpha fade(value); value and a are kept in 8 bits: within one level each."""
    opacity = (alpha * fade(RAMP.astype(np.float32)))[..., None]
    colour = COLORMAPS[colormap][np.rint(RAMP * 255).astype(int)]
    expected = NOISE * (1 - opacity) + colour * opacity
    drawn = draw(colormap=colormap, alpha=alpha)
    assert np.abs(drawn - expected).max() <= 2.5
    assert np.abs(drawn - expected).mean() <= 0.5


def test_where_there_is_no_heat_the_picture_is_untouched() -> None:
    values = np.where(RAMP > 0.5, RAMP, np.float32(0))
    drawn = draw(values=values)
    np.testing.assert_array_equal(drawn[values == 0], NOISE[values == 0])
    np.testing.assert_array_equal(draw(alpha=0.0), NOISE)


def test_the_layer_over_the_picture_is_the_overlay() -> None:
    for seen in (ALL, MIDDLE):
        layer = draw(seen=seen, view="layer")
        assert layer.shape == (HEIGHT, WIDTH, 4)
        np.testing.assert_array_equal(over(layer, NOISE), draw(seen=seen))
        share = layer[..., 3:] / 255
        composite = layer[..., :3] * share + NOISE * (1 - share)
        assert np.abs(draw(seen=seen) - composite).max() <= 0.51  # rounded once


def test_heatmap_is_the_colours_alone() -> None:
    np.testing.assert_array_equal(draw(view="heatmap"), COLORMAPS["inferno"][np.rint(RAMP * 255).astype(int)])


def test_side_by_side() -> None:
    drawn = draw(view="side_by_side")
    np.testing.assert_array_equal(drawn[:, :WIDTH], NOISE)
    np.testing.assert_array_equal(drawn[:, -WIDTH:], draw())
    gap = drawn[:, WIDTH:-WIDTH]
    assert 2 <= gap.shape[1] <= 4
    assert (gap == legends.BACKGROUND).all()


PICTURES = {
    "white": np.full_like(NOISE, 255),
    "black": np.zeros_like(NOISE),
    "gray": np.full_like(NOISE, 112),
    "red": np.broadcast_to(np.array([230, 20, 20], np.uint8), NOISE.shape),
    "noise": NOISE,
}


@pytest.mark.parametrize("pixels", PICTURES.values(), ids=PICTURES.keys())
def test_the_unseen_margin_shows_on_any_picture(pixels: NDArray[np.uint8]) -> None:
    """Even with no heat at all: pale colours, and a hatch with lines both lighter and darker than what lies between."""
    nothing = np.full_like(RAMP, -1)
    drawn = draw(pixels, nothing, MIDDLE).astype(int)
    margin, original = drawn[82:, :], pixels[82:, :].astype(int)
    brightness = margin.mean(axis=2)
    assert np.ptp(brightness) >= 30
    assert np.abs(margin - original).mean() >= 5  # the veil's own gray is the worst: only the hatch tells
    assert np.ptp(margin, axis=2).mean() <= 0.4 * np.ptp(original, axis=2).mean() + 1e-9
    edge = drawn[80, 30:110]  # the line around what was seen
    assert edge.min() >= 200


def test_the_margin_shows_in_every_view() -> None:
    for view in ("heatmap", "side_by_side", "layer"):
        drawn = draw(seen=MIDDLE, view=view)
        margin = drawn[82:, -WIDTH:]
        assert len(np.unique(margin.reshape(-1, margin.shape[2]), axis=0)) >= 3  # veil, light line, dark line
    assert draw(seen=MIDDLE, view="layer")[~MIDDLE][:, 3].min() >= 128


def test_heat_never_leaks_into_the_margin() -> None:
    cold, hot = draw(seen=MIDDLE, values=RAMP), draw(seen=MIDDLE, values=1 - RAMP)
    np.testing.assert_array_equal(cold[~MIDDLE], hot[~MIDDLE])


@pytest.mark.parametrize("view", VIEWS)
def test_without_positive_evidence_a_label_says_so(view: View) -> None:
    pixels = np.full((300, 450, 3), 128, np.uint8)
    seen = np.ones((300, 450), np.bool_)
    drawn = draw(pixels, np.full((300, 450), -1, np.float32), seen, view)[:, -450:]
    changed = (drawn[..., -1] > 0) if view == "layer" else (drawn != pixels).any(axis=2)
    if view == "heatmap":
        changed = (drawn != COLORMAPS["inferno"][0]).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert rows.max() < 60  # a small plate, top left
    assert columns.max() < 300
    plate = drawn[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1, :3]
    assert 0.05 < (plate.min(axis=2) > 200).mean() < 0.5  # white letters
    assert (plate.max(axis=2) < 40).mean() > 0.4  # on a dark plate


@pytest.mark.parametrize("view", ["overlay", "heatmap", "side_by_side"])
@pytest.mark.parametrize("seen", [ALL, MIDDLE], ids=["all seen", "margin"])
def test_the_legend_is_added_below(view: View, seen: NDArray[np.bool_]) -> None:
    plain, with_legend = draw(view=view, seen=seen), draw(view=view, seen=seen, legend=True)
    np.testing.assert_array_equal(with_legend[:HEIGHT], plain)
    strip = legends.strip(plain.shape[1], HEIGHT, "inferno", not_seen=seen is MIDDLE)
    np.testing.assert_array_equal(with_legend[HEIGHT:], strip)
    assert 8 <= len(strip) <= HEIGHT / 3


def test_a_layer_has_no_legend() -> None:
    assert draw(view="layer", legend=True).shape == (HEIGHT, WIDTH, 4)


@pytest.mark.parametrize("colormap", COLORMAPS)
@pytest.mark.parametrize("width", [64, 100, 200, 451, 1024, 4096])
def test_the_legends_bar_goes_through_all_colours(width: int, colormap: str) -> None:
    strip = legends.strip(width, width, colormap, not_seen=True)
    middle = strip[len(strip) // 2]
    assert strip.shape[1] == width
    (low,) = np.nonzero((middle == COLORMAPS[colormap][0]).all(axis=1))
    (high,) = np.nonzero((middle == COLORMAPS[colormap][255]).all(axis=1))
    assert low[0] < high[-1]
    assert high[-1] - low[0] >= width * 0.3
    bar = middle[low[0] : high[-1] + 1]
    assert bar.shape[0] == high[-1] + 1 - low[0]
    steps = np.rint(np.linspace(0, 255, len(bar))).astype(int)
    np.testing.assert_array_equal(bar, COLORMAPS[colormap][steps])


def test_the_swatch_is_there_only_if_something_was_not_seen() -> None:
    without, with_swatch = (legends.strip(600, 400, "inferno", not_seen=unseen) for unseen in (False, True))
    hatch = np.array([176, 176, 176])

    def light_lines(strip: NDArray[np.uint8]) -> int:
        return int((np.abs(strip[:, 400:].astype(int) - 163).max(axis=2) <= 2).sum())

    # A light line over the veil's own gray: (176 x 205 + 112 x 50) / 255 = 163.
    assert round((hatch[0] * 205 + 112 * 50) / 255) == 163
    assert light_lines(with_swatch) > light_lines(without)
    assert with_swatch.shape == without.shape


def test_a_strip_needs_some_width() -> None:
    assert legends.strip(31, 500, "inferno", not_seen=True).shape == (0, 31, 3)
    assert len(legends.strip(32, 500, "inferno", not_seen=True)) >= 8


def test_the_legend_of_a_flat_picture_stays_low() -> None:
    assert len(legends.strip(2000, 2, "inferno", not_seen=True)) < 30


@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    view=st.sampled_from(VIEWS),
    legend=st.booleans(),
    sign=st.sampled_from([1, -1]),
    cut=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_every_size_can_be_drawn(size: tuple[int, int], view: View, legend: bool, sign: int, cut: float) -> None:
    height, width = size
    pixels = np.full((height, width, 3), 200, np.uint8)
    values = np.full((height, width), sign, np.float32)
    seen = np.zeros((height, width), np.bool_)
    seen[: max(1, round(height * cut)), : max(1, round(width * cut))] = True
    drawn = draw(pixels, values, seen, view, legend=legend)
    assert drawn.dtype == np.uint8
    assert drawn.shape[0] >= height
    assert drawn.shape[1] >= (2 * width if view == "side_by_side" else width)
    assert drawn.shape[2] == (4 if view == "layer" else 3)
    assert pixels.min() == pixels.max() == 200  # the arguments are left alone
