"""The map lies where the model looked: against the literal reference, closed forms, and numbers derived by hand."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.imaging.placement import place
from models.preprocess import Geometry
from tests.references import placement as reference


def squashed(frame: tuple[int, int], side: int = 224) -> Geometry:
    return Geometry(frame, (side, side), (side / frame[0], side / frame[1]), (0.0, 0.0))


def cropped(frame: tuple[int, int], resize: int = 256, side: int = 224) -> Geometry:
    """Short side to `resize`, then the middle `side` x `side`."""
    scale = resize / min(frame)
    return Geometry(frame, (side, side), (scale, scale), tuple((side - scale * length) / 2 for length in frame))  # type: ignore[arg-type]


def padded(frame: tuple[int, int], side: int = 224) -> Geometry:
    """Long side to `side`, centred on padding."""
    scale = side / max(frame)
    return Geometry(frame, (side, side), (scale, scale), tuple((side - scale * length) / 2 for length in frame))  # type: ignore[arg-type]


SHAPES = {
    "square": (40, 40),
    "landscape": (60, 36),
    "portrait": (30, 52),
    "one pixel": (1, 1),
    "900:1": (900, 1),
    "1:900": (1, 900),
}
GEOMETRIES = {"squash": squashed, "centre crop": cropped, "pad": padded}


def maps(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("raw", [maps(7, 7), maps(14, 9), maps(1, 1), maps(50, 30)], ids=lambda raw: str(raw.shape))
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@pytest.mark.parametrize("frame", SHAPES.values(), ids=SHAPES.keys())
def test_agrees_with_the_literal_reference(frame: tuple[int, int], geometry, raw: NDArray[np.float32]) -> None:  # type: ignore[no-untyped-def]
    """In float32 over at most 120 terms of size ~4: 1e-5 is a hundred roundings."""
    for size in {frame, (max(1, frame[0] // 3), max(1, frame[1] // 3)), (min(64, frame[0] * 2), min(64, frame[1] * 2))}:
        placed = place(raw, geometry(frame), size)
        values, seen = reference.place(raw.astype(np.float64), geometry(frame), size)
        np.testing.assert_array_equal(placed.seen, seen)
        np.testing.assert_allclose(placed.values, values, atol=1e-5)
        assert placed.values.dtype == np.float32
        assert placed.values.shape == (size[1], size[0])


SIDE = st.integers(1, 40)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Any scale and offset for which the input shows some of the frame."""
    frame, side = (draw(SIDE), draw(SIDE)), (draw(SIDE), draw(SIDE))
    scale = (draw(st.floats(0.05, 20)), draw(st.floats(0.05, 20)))
    share = (draw(st.floats(-0.9, 0.9)), draw(st.floats(-0.9, 0.9)))
    # Input pixel 0 at a point of the frame between its left edge and its right, or before it by less than the input.
    offset = tuple(-s * p * f if p > 0 else -p * i for s, p, f, i in zip(scale, share, frame, side, strict=True))
    return Geometry(frame, side, scale, offset)  # type: ignore[arg-type]


@given(geometry=geometries(), size=st.tuples(SIDE, SIDE), cells=st.tuples(SIDE, SIDE), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_agrees_with_the_reference_for_any_geometry(
    geometry: Geometry, size: tuple[int, int], cells: tuple[int, int], seed: int
) -> None:
    box = geometry.seen
    # A centre within float rounding of the box's edge may fall to either side: rare, but not absent.
    for low, high, length, frame in (
        (box.left, box.right, size[0], geometry.frame[0]),
        (box.top, box.bottom, size[1], geometry.frame[1]),
    ):
        edges = [edge * length / frame for edge in (low, high, (low + high) / 2)]
        assume(all(abs(2 * edge - round(2 * edge)) > 1e-6 or edge in (0, length) for edge in edges))
    raw = maps(*cells, seed)
    placed = place(raw, geometry, size)
    values, seen = reference.place(raw.astype(np.float64), geometry, size)
    np.testing.assert_array_equal(placed.seen, seen)
    np.testing.assert_allclose(placed.values, values, atol=2e-5)
    assert not placed.values[~placed.seen].any()
    assert placed.values.min() >= min(raw.min(), 0) - 1e-5
    assert placed.values.max() <= max(raw.max(), 0) + 1e-5


def test_enlarged_by_hand() -> None:
    """Two cells over four pixels: centres at 0.5 and 1.5 cells; pixels at 0.25, 0.75, 1.25, 1.75."""
    placed = place(np.array([[0, 4]], np.float32), Geometry((4, 1), (2, 1), (0.5, 1.0), (0.0, 0.0)), (4, 1))
    assert placed.values.tolist() == [[0.0, 1.0, 3.0, 4.0]]
    assert placed.seen.all()


def test_shrunk_by_hand() -> None:
    """Three cells under two pixels: each takes a cell and a half."""
    placed = place(np.array([[0, 6, 12]], np.float32), Geometry((2, 1), (3, 1), (1.5, 1.0), (0.0, 0.0)), (2, 1))
    assert placed.values.tolist() == [[2.0, 10.0]]  # (0 + 6/2) / 1.5 and (6/2 + 12) / 1.5


def test_centre_crop_by_hand() -> None:
    """A frame of 8 x 4 px of which the model sees the middle 4 x 4 as it is, by a map of 2 x 2 cells of 2 px each.

    x_in = x - 2. Pixel 2 has its centre at input 0.5, cell 0.25: before the first cell centre, so the first cell's
    value; pixel 3 at cell 0.75: a quarter of the way to the second.
    """
    placed = place(np.array([[8, 0], [8, 0]], np.float32), Geometry((8, 4), (4, 4), (1.0, 1.0), (-2.0, 0.0)), (8, 4))
    assert placed.values.tolist() == [[0, 0, 8, 6, 2, 0, 0, 0]] * 4
    assert placed.seen.tolist() == [[False, False, True, True, True, True, False, False]] * 4


def test_the_same_at_half_the_size() -> None:
    """Each output pixel now covers one cell exactly."""
    placed = place(np.array([[8, 0], [4, 2]], np.float32), Geometry((8, 4), (4, 4), (1.0, 1.0), (-2.0, 0.0)), (4, 2))
    assert placed.values.tolist() == [[0, 8, 0, 0], [0, 4, 2, 0]]


def test_each_axis_by_its_own_scale() -> None:
    """Enlarged twice across (0.25 and 0.75 are before and behind the centres), averaged over two cells down."""
    raw = np.array([[0, 4], [2, 6]], np.float32)
    placed = place(raw, Geometry((4, 1), (2, 2), (0.5, 2.0), (0.0, 0.0)), (4, 1))
    assert placed.values.tolist() == [[1.0, 2.0, 4.0, 5.0]]


def test_padding_is_cut_off() -> None:
    """A 4 x 2 frame in the middle rows of a 4 x 4 input: rows 0 and 3 of the map show padding only."""
    raw = np.repeat(np.array([[100], [1], [2], [100]], np.float32), 4, axis=1)
    placed = place(raw, Geometry((4, 2), (4, 4), (1.0, 1.0), (0.0, 1.0)), (4, 2))
    assert placed.values.tolist() == [[1] * 4, [2] * 4]
    assert placed.seen.all()


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@pytest.mark.parametrize("frame", SHAPES.values(), ids=SHAPES.keys())
def test_a_constant_map_stays_constant(frame: tuple[int, int], geometry) -> None:  # type: ignore[no-untyped-def]
    placed = place(np.full((7, 7), -3.5, np.float32), geometry(frame), frame)
    np.testing.assert_allclose(placed.values[placed.seen], -3.5, rtol=1e-6)
    assert placed.seen.any()


@pytest.mark.parametrize(("cells", "exact"), [(7, True), (14, True), (224, False)])
def test_a_ramp_stays_a_ramp_in_frame_coordinates(cells: int, exact: bool) -> None:
    """Each cell holds the frame x of its centre. Away from the border each pixel must then hold the x of its own.

    Exactly where the map is enlarged. Where it is shrunk by f, the mean of a staircase over f steps is off the ramp by
    at most 1/(8 f) cells: the integral of the saw-tooth 1/2 - frac stays within [0, 1/8].
    """
    geometry, size = cropped((90, 60)), (90, 60)
    cell_px = 224 / cells / geometry.scale[0]  # frame px per cell
    centres = ((np.arange(cells) + 0.5) * 224 / cells - geometry.offset[0]) / geometry.scale[0]
    placed = place(np.tile(centres.astype(np.float32), (cells, 1)), geometry, size)
    x = np.arange(90) + 0.5
    inner = (x > centres[0] + 1 / cell_px) & (x < centres[-1] - 1 / cell_px)
    error = np.abs(placed.values[30, inner] - x[inner])
    assert inner.sum() > 40
    assert error.max() < (1e-4 if exact else cell_px * cell_px / 8 + 1e-4)  # f = 1 / cell_px


@given(row=st.integers(1, 5), column=st.integers(1, 5), frame=st.tuples(st.integers(70, 150), st.integers(70, 150)))
@settings(max_examples=40, deadline=None)
def test_a_hot_cell_lands_where_the_geometry_says(row: int, column: int, frame: tuple[int, int]) -> None:
    """An inner cell of 7 x 7: its weighted middle on the frame is the cell's centre, mapped back by the geometry."""
    raw = np.zeros((7, 7), np.float32)
    raw[row, column] = 1.0
    for geometry in (squashed(frame), cropped(frame, resize=224)):
        values = place(raw, geometry, frame).values.astype(np.float64)
        y, x = np.indices(values.shape) + 0.5
        expected = geometry.to_frame((column + 0.5) * 32, (row + 0.5) * 32)
        middle = ((values * x).sum() / values.sum(), (values * y).sum() / values.sum())
        assert math.dist(middle, expected) < 0.1


def test_output_size_does_not_move_the_map() -> None:
    """A large rendering, averaged in 4 x 4 blocks, is the small one up to the curvature within a pixel."""
    geometry, raw = cropped((120, 80)), maps(7, 7)
    small, large = place(raw, geometry, (120, 80)), place(raw, geometry, (480, 320))
    mean = large.values.reshape(80, 4, 120, 4).mean((1, 3))
    inner = np.zeros_like(small.seen)
    inner[12:-12, 30:-30] = True
    assert np.abs(mean - small.values)[inner].max() < 0.05


def test_transposing_everything_transposes_the_answer() -> None:
    raw, geometry = maps(5, 8), Geometry((31, 47), (20, 30), (0.9, 0.7), (-3.0, -1.0))
    flipped = Geometry(geometry.frame[::-1], geometry.input[::-1], geometry.scale[::-1], geometry.offset[::-1])
    placed, turned = place(raw, geometry, (31, 47)), place(raw.T, flipped, (47, 31))
    np.testing.assert_allclose(turned.values.T, placed.values, atol=1e-6)
    np.testing.assert_array_equal(turned.seen.T, placed.seen)


@pytest.mark.parametrize("size", [(1024, 1), (64, 1), (3, 1), (1, 1)])
def test_something_is_always_seen(size: tuple[int, int]) -> None:
    """Of a 900 x 1 picture, the centre crop sees 0.875 px in the middle: less than one pixel of most outputs."""
    placed = place(np.ones((7, 7), np.float32), cropped((900, 1)), size)
    (columns,) = np.nonzero(placed.seen[0])
    assert columns.size >= 1
    assert np.abs((columns + 0.5) / size[0] - 0.5).max() <= 1 / size[0] + 0.001
    np.testing.assert_allclose(placed.values[placed.seen], 1.0, rtol=1e-6)


def test_arguments_are_left_alone() -> None:
    raw = maps(7, 7)
    raw.setflags(write=False)
    place(raw, squashed((50, 40)), (50, 40))
