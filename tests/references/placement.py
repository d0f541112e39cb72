"""A map laid on the frame, slowly and literally: one output pixel after the other, in float64.

The fast one (`app.imaging.placement`) multiplies banded matrices of footprint shares. This one says what is meant:
where the map is enlarged, linear interpolation between the centres of neighbouring cells; where it is shrunk, the mean
of the cells under the output pixel, each weighed by the length it has in common with it. Axes are independent. Beyond
its border the map goes on with its border cell.
"""

import math

import numpy as np
from numpy.typing import NDArray

from models.preprocess import Geometry

Weights = list[tuple[int, float]]


def place(
    raw: NDArray[np.float64], geometry: Geometry, size: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the values, float64 (H, W), and what was seen, bool (H, W), for an output of `size` (width, height)."""
    width, height = size
    values, seen = np.zeros((height, width)), seen_pixels(geometry, size)
    across = [footprint(geometry, 0, raw.shape[1], width, x) for x in range(width)]
    down = [footprint(geometry, 1, raw.shape[0], height, y) for y in range(height)]
    for y in range(height):
        for x in range(width):
            if seen[y, x]:
                values[y, x] = sum(raw[i, j] * a * b for i, a in down[y] for j, b in across[x])
    return values, seen


def seen_pixels(geometry: Geometry, size: tuple[int, int]) -> NDArray[np.bool_]:
    """A pixel is seen if its centre, in frame coordinates, is in the box; else the one around the middle of the box."""
    box = geometry.seen
    axes: list[NDArray[np.bool_]] = []
    for length, frame, low, high in (
        (size[1], geometry.frame[1], box.top, box.bottom),
        (size[0], geometry.frame[0], box.left, box.right),
    ):
        inside = [low <= (i + 0.5) * frame / length < high for i in range(length)]
        if not any(inside):
            middle = (low + high) / 2 * length / frame
            inside = [i <= middle < i + 1 for i in range(length)]
        axes.append(np.array(inside))
    return axes[0][:, None] & axes[1]


def footprint(geometry: Geometry, axis: int, cells: int, length: int, pixel: int) -> Weights:
    """Which cells make this output pixel, and with which weight."""

    def cell_at(output: float) -> float:
        frame = output * geometry.frame[axis] / length
        return (geometry.scale[axis] * frame + geometry.offset[axis]) * cells / geometry.input[axis]

    low, high = cell_at(pixel), cell_at(pixel + 1)
    return interpolated(cell_at(pixel + 0.5), cells) if high - low <= 1.0 else averaged(low, high, cells)


def interpolated(position: float, cells: int) -> Weights:
    """Linear between the two cells whose centres, at j + 0.5, are left and right of the position."""
    left = math.floor(position - 0.5)
    share = position - 0.5 - left
    return [(min(max(left, 0), cells - 1), 1.0 - share), (min(max(left + 1, 0), cells - 1), share)]


def averaged(low: float, high: float, cells: int) -> Weights:
    """The mean over [low, high]; what lies outside the map counts for the border cell."""
    common = [(j, max(0.0, min(high, j + 1) - max(low, j))) for j in range(cells)]
    before, behind = max(0.0, min(high, 0.0) - low), max(0.0, high - max(low, cells))
    return [(j, part / (high - low)) for j, part in [*common, (0, before), (cells - 1, behind)] if part > 0.0]
