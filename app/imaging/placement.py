"""Lay a map of the model's input back onto the displayed picture, where the model looked and nowhere else.

All coordinates are pixel edges: pixel i covers [i, i + 1) and its centre is i + 0.5. Three affine steps, one per axis,
lead from an output pixel to a cell of the map:

    frame = output * frame_size / output_size        (the displayed picture, at the size asked for)
    input = scale * frame + offset                   (`Geometry`: resize, crop, pad)
    cell  = input * cells / input_size               (the map covers the model's input evenly)

Nothing here uses OpenCV's warps. Those of OpenCV 4 round coordinates to 1/32 of a cell (`INTER_BITS`), a staircase of
4.6 px on a 7 x 7 map enlarged to 1024 px; those of OpenCV 5 are exact, but neither averages where the map is shrunk.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from models.preprocess import Geometry

_BLOCK_PX = 64  # output pixels per matrix product: each block needs few of the map's cells


@dataclass(frozen=True)
class Placed:
    """A map on the displayed frame.

    `values` is float32 (H, W), in the map's own unit; exactly 0.0 outside `seen`. `seen` is bool (H, W): which pixels
    the model saw. At least one pixel is seen.
    """

    values: NDArray[np.float32]
    seen: NDArray[np.bool_]


def place(raw: NDArray[np.float32], geometry: "Geometry", size: tuple[int, int]) -> Placed:
    """Resample `raw`, finite float32 (h, w) over the whole model input, onto a picture of `size` (width, height) px.

    Each axis by its own scale, a pixel is the average of the map over its footprint, taken at least one cell wide: the
    exact area average where the map is shrunk, linear interpolation between cell centres where it is enlarged (a cell's
    width slid across two cells weighs them linearly). Beyond its outermost cells the map goes on unchanged.
    A pixel is seen if its centre lies in `geometry.seen`; if that box is so thin that it holds no centre, the pixel
    around the box's middle is.
    """
    box = geometry.seen
    rows = _Axis.along(1, raw.shape[0], geometry, size[1], box.top, box.bottom)
    columns = _Axis.along(0, raw.shape[1], geometry, size[0], box.left, box.right)
    values = np.zeros((size[1], size[0]), np.float32)
    seen = np.zeros(values.shape, np.bool_)
    window = (slice(rows.first, rows.last), slice(columns.first, columns.last))
    values[window] = columns.resample(rows.resample(raw.T).T)
    seen[window] = True
    return Placed(values, seen)


@dataclass(frozen=True)
class _Axis:
    """Output pixels `first` to `last` (exclusive) of one axis, pixel i centred at cell `step * (i + 0.5) + start`."""

    first: int
    last: int
    step: float
    start: float

    @classmethod
    def along(cls, axis: int, cells: int, geometry: "Geometry", length: int, low: float, high: float) -> Self:
        """Compose the three steps for axis 0 (x) or 1 (y); `low` and `high` bound what was seen, in frame px."""
        cells_per_input_px = cells / geometry.input[axis]
        frame_px = geometry.frame[axis] / length  # per output pixel
        return cls(
            *_centres_within(low / frame_px, high / frame_px, length),
            step=geometry.scale[axis] * frame_px * cells_per_input_px,
            start=geometry.offset[axis] * cells_per_input_px,
        )

    def resample(self, cells: NDArray[np.float32]) -> NDArray[np.float32]:
        """Resample the last axis: (m, n) -> (m, last - first), float32."""
        result = np.empty((len(cells), self.last - self.first), np.float32)
        for block in range(0, result.shape[1], _BLOCK_PX):
            pixels = np.arange(self.first + block, min(self.first + block + _BLOCK_PX, self.last))
            used, weights = _weights(self.step * (pixels + 0.5) + self.start, max(self.step, 1.0), cells.shape[1])
            result[:, block : block + _BLOCK_PX] = cells[:, used] @ weights
        return result


def _centres_within(low: float, high: float, length: int) -> tuple[int, int]:
    """Return the range of pixels whose centres lie in [low, high), within 0 to `length`; never an empty one."""
    first, last = max(math.ceil(low - 0.5), 0), min(math.ceil(high - 0.5), length)
    if first < last:
        return first, last
    middle = min(max(math.floor((low + high) / 2), 0), length - 1)
    return middle, middle + 1


def _weights(centres: NDArray[np.floating[Any]], width: float, cells: int) -> tuple[slice, NDArray[np.float32]]:
    """Return which cells the averages over `width` cells around `centres` need, and float32 (used, pixels) weights.

    Each weight is the share of the footprint that lies on the cell; the outermost cells reach to infinity.
    """
    low, high = centres - width / 2, centres + width / 2
    first = min(max(math.floor(low[0]), 0), cells - 1)
    last = min(max(math.ceil(high[-1]), first + 1), cells)
    left = np.arange(first, last, dtype=np.float64)[:, None]
    right = left + 1.0
    left[left == 0.0], right[right == cells] = -np.inf, np.inf
    shares = np.maximum(np.minimum(high, right) - np.maximum(low, left), 0.0) / width
    return slice(first, last), shares.astype(np.float32)
