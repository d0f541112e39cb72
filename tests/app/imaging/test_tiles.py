"""Feature maps as a grid: every map whole, in its own scale, where its number says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.imaging.colormaps import COLORMAPS, DIVERGING
from app.imaging.legend import BACKGROUND
from app.imaging.tiles import most, tiles

FLAT = (52, 56, 66)


def maps_of(count: int, height: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).normal(size=(count, height, width)).astype(np.float32)


def enlarged(colours: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    return np.repeat(np.repeat(colours, factor, axis=0), factor, axis=1)


def find(picture: NDArray[np.uint8], tile: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Return top and left of each exact copy of a tile."""
    height, width = tile.shape[:2]
    starts = (picture[: len(picture) - height + 1, : picture.shape[1] - width + 1] == tile[0, 0]).all(axis=2)
    ends = (picture[height - 1 :, width - 1 :] == tile[-1, -1]).all(axis=2)
    return [
        (int(top), int(left))
        for top, left in np.argwhere(starts & ends)
        if (picture[top : top + height, left : left + width] == tile).all()
    ]


def test_each_map_is_there_once_in_its_own_scale_row_by_row() -> None:
    """Six 3 x 5 maps: x (value - min) / (max - min), looked up; enlarged 51-fold (5 x 51 = 255, at most 256)."""
    maps = maps_of(6, 3, 5) * np.array([1, 1e-30, 1e30, 5, 1e-3, 7], np.float32)[:, None, None]
    picture = tiles(maps, colormap="viridis", max_side_px=1024, signed=False)
    corners = []
    for map_ in maps.astype(np.float64):
        levels = np.rint((map_ - map_.min()) / np.ptp(map_) * 255).astype(int)
        found = find(picture, enlarged(COLORMAPS["viridis"][levels], 51))
        assert len(found) == 1
        corners += found
    assert corners == sorted(corners)
    assert len({top for top, _ in corners}) in (2, 3)


def test_signed_maps_have_zero_in_the_middle() -> None:
    map_ = np.array([[[-2.0, 0.0, 1.0]]], np.float32)
    picture = tiles(map_, colormap="viridis", max_side_px=300, signed=True)
    # -2 / 2 = -1: entry 1; 0: entry 128; 1 / 2: 128 + 63.5, to the even 192.
    assert len(find(picture, enlarged(DIVERGING[[[1, 128, 192]]], 85))) == 1


def test_a_map_that_is_the_same_everywhere_is_plain() -> None:
    maps = maps_of(2, 4, 4)
    maps[1] = 7.0
    for signed in (False, True):
        picture = tiles(maps, colormap="inferno", max_side_px=600, signed=signed)
        assert (picture == FLAT).all(axis=2).sum() == 256 * 256


def test_every_tile_has_a_number_above_it_where_there_is_room() -> None:
    """Of maps that are the same everywhere nothing is seen but the numbers: above each tile, and nowhere else."""
    picture = tiles(np.ones((40, 14, 14), np.float32), colormap="inferno", max_side_px=1024, signed=False)
    flat = (picture == FLAT).all(axis=2)
    ink = ~flat & (picture != BACKGROUND).any(axis=2)
    begins = flat[1:, 1:] & ~flat[:-1, 1:] & ~flat[1:, :-1]
    corners = np.argwhere(begins) + 1
    assert len(corners) == 40
    above = [ink[top - 12 : top, left : left + 20].sum() for top, left in corners]
    assert min(above) > 10
    assert sum(above) == ink.sum()


def test_without_room_each_row_is_numbered_on_its_left() -> None:
    maps = maps_of(2048, 7, 7)
    picture = tiles(maps, colormap="inferno", max_side_px=1024, signed=False)
    assert max(picture.shape) <= 1024
    left = picture[:, :4]
    assert (left == BACKGROUND).all() or (left == BACKGROUND).mean() > 0.9
    numbers = (picture[:, 4:30].astype(int).min(axis=2) > 150).any(axis=1)
    assert 30 <= np.diff(numbers.astype(int)).clip(0).sum() <= 60  # one run of rows per line of numbers


def test_large_maps_are_reduced_by_averaging() -> None:
    """A checkerboard of single cells, halved, has no contrast left but at its edge: gray, not stripes."""
    board = np.indices((400, 400)).sum(axis=0)[None] % 2
    board = np.repeat(board, 16, axis=0).astype(np.float32)
    picture = tiles(board, colormap="inferno", max_side_px=840, signed=False)
    assert max(picture.shape) <= 840
    gray = COLORMAPS["inferno"][[127, 128]]
    middle = picture[60:160, 60:160].reshape(-1, 3)
    assert (np.abs(middle.astype(int) - gray[0]).max(axis=1) <= 3).mean() > 0.9


def test_the_enlargement_is_a_whole_number() -> None:
    for count, side in ((3, 7), (50, 9)):
        maps = maps_of(count, side, side)
        picture = tiles(maps, colormap="inferno", max_side_px=1000, signed=False)
        levels = np.rint((maps[0] - maps[0].min()) / np.ptp(maps[0]) * np.float32(255)).astype(int)
        colours = COLORMAPS["inferno"][levels]
        assert any(len(find(picture, enlarged(colours, factor))) == 1 for factor in range(1, 37))


@given(
    count=st.integers(1, 100),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    max_side_px=st.integers(16, 700),
    signed=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_it_always_fits(count: int, height: int, width: int, max_side_px: int, signed: bool) -> None:
    picture = tiles(maps_of(count, height, width), colormap="magma", max_side_px=max_side_px, signed=signed)
    assert picture.dtype == np.uint8
    assert max(picture.shape[:2]) <= max_side_px
    assert picture.shape[2] == 3


@pytest.mark.parametrize(("count", "max_side_px"), [(1, 45), (2, 16), (2, 50), (9, 60), (40, 70)])
def test_numbers_that_have_no_room_are_left_out(count: int, max_side_px: int) -> None:
    picture = tiles(maps_of(count, 1, 40), colormap="magma", max_side_px=max_side_px, signed=False)
    assert max(picture.shape[:2]) <= max_side_px


def test_rows_lower_than_a_number_are_numbered_now_and_then() -> None:
    """Tiles of 4 px with a gap of 4: every other row has a number of 14 px, and no two of them touch."""
    picture = tiles(maps_of(900, 9, 9), colormap="magma", max_side_px=270, signed=False)
    inked = (picture[:, 4:24].astype(int).min(axis=2) > 120).any(axis=1)
    starts = np.flatnonzero(np.diff(inked.astype(int)) == 1)
    assert len(starts) >= 10
    assert np.diff(starts).min() >= 14


def test_of_too_many_the_first_are_drawn() -> None:
    """100 px hold `most(7, 7, 100)` maps; the picture is that of so many, at their smallest: 4 px of 7 cells."""
    room = most(7, 7, 100)
    maps = maps_of(room + 50, 7, 7)
    picture = tiles(maps, colormap="magma", max_side_px=100, signed=False)
    np.testing.assert_array_equal(picture, tiles(maps[:room], colormap="magma", max_side_px=100, signed=False))
    assert 40 < room < 12 * 12  # (100 - 4) / (4 + 4) is 12, less what the numbers take
    assert most(7, 7, 12) == 0


@pytest.mark.parametrize("maps", [np.zeros((0, 3, 3)), np.full((2, 3, 3), np.nan), np.full((1, 2, 2), np.inf)])
def test_what_is_no_map_is_refused(maps: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        tiles(maps.astype(np.float32), colormap="inferno", max_side_px=100, signed=False)


def test_too_little_room_is_refused() -> None:
    with pytest.raises(ValueError, match="11 px has no room"):
        tiles(maps_of(1, 3, 3), colormap="inferno", max_side_px=11, signed=False)
