"""A layer's feature maps as one picture: a grid of small heat maps, each on a scale of its own."""

import math
from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from app.imaging import text
from app.imaging.colormaps import COLORMAPS, DIVERGING
from app.imaging.diverging import signed_levels
from app.imaging.legend import BACKGROUND

_GAP_PX = 4
_SMALLEST_PX = 4
"""No side of a map is drawn smaller."""
_LARGE_PX = 256
"""No side of a map is enlarged beyond this."""
_WORDS_PX = 11
_INK = (196, 200, 210)
_FLAT = (52, 56, 66)


def tiles(
    maps: NDArray[np.float32],
    *,
    colormap: str,
    max_side_px: int,
    signed: bool,
) -> NDArray[np.uint8]:
    """Draw `maps`, finite float32 (n, h, w), as a grid: uint8 (H, W, 3) RGB, both sides at most `max_side_px`.

    Each map has its own scale: from its smallest to its largest value in the colours of `colormap`, or, if `signed`,
    from minus to plus its largest absolute value in blue and red, with light gray for 0. A map that is the same
    everywhere shows nothing, and is dark gray. A cell of a map is enlarged by a whole number, or, where the maps are
    too large for that, they are reduced by averaging.

    Every tile has its number above it, from 0, where there is room for that; else every
    row, or as many as have room, has the number of its first tile on its left. Of more maps than there is room for
    (see `most`), the first ones are drawn.

    Raises `ValueError` for values that are not finite, for no map, and for less than 16 px.
    """
    if len(maps) == 0 or not np.isfinite(maps).all():
        raise ValueError("there are no maps, or they hold values that are not finite")
    maps = maps[: max(1, most(maps.shape[1], maps.shape[2], max_side_px))]
    count, height, width = maps.shape
    words = [text.coverage(str(number), _WORDS_PX) for number in range(count)]
    grid = _Grid.of((count, height, width), max_side_px, max(word.shape[1] for word in words))
    canvas = np.full((*grid.canvas, 3), BACKGROUND, np.uint8)
    for place, (map_, word) in enumerate(zip(maps, words, strict=True)):
        top, left = grid.corner(place)
        canvas[top : top + grid.tile[0], left : left + grid.tile[1]] = _drawn(map_, grid.tile, colormap, signed)
        if grid.head:
            text.stamp(canvas, word, _INK, left, top - grid.head)
        elif grid.margin and place % (grid.columns * -(-len(word) // (grid.tile[0] + _GAP_PX))) == 0:
            middle = top + (grid.tile[0] - word.shape[0]) // 2
            text.stamp(canvas, word, _INK, _GAP_PX, max(0, min(middle, len(canvas) - len(word))))
    return canvas


def most(height: int, width: int, max_side_px: int) -> int:
    """Return how many maps of h x w cells a picture of this size surely has room for, drawn at their smallest."""
    tile = _scaled(height, width, 0.0)
    margin = int(text.coverage("00000", _WORDS_PX).shape[1]) + _GAP_PX
    rows, columns = (max_side_px - _GAP_PX) // (tile[0] + _GAP_PX), (max_side_px - margin) // (tile[1] + _GAP_PX)
    return max(0, rows) * max(0, columns)


@dataclass(frozen=True)
class _Grid:
    """Where the tiles lie, in px; pairs are (height, width).

    `head` is the height of the number above a tile, or 0; `margin` is the width of those on the left of rows, or 0.
    """

    count: int
    columns: int
    tile: tuple[int, int]
    head: int
    margin: int

    @classmethod
    def of(cls, shape: tuple[int, int, int], max_side_px: int, number_px: int) -> Self:
        """Choose the columns that draw the maps largest, with numbers for all, else for rows, if there is room."""
        head, margin = _line_px(), number_px + _GAP_PX
        for head_px, margin_px in ((head, 0), (0, margin), (0, 0)):
            choices = [cls._with(columns, shape, max_side_px, head_px, margin_px) for columns in range(1, shape[0] + 1)]
            fitting = [grid for grid in choices if grid.fits(max_side_px, number_px)]
            if fitting:
                return max(fitting, key=lambda grid: (grid.tile, -abs(math.log(grid.canvas[1] / grid.canvas[0] / 1.2))))
        raise ValueError(f"a picture of {max_side_px} px has no room for a map")

    @classmethod
    def _with(cls, columns: int, shape: tuple[int, int, int], max_side_px: int, head: int, margin: int) -> Self:
        """Return the grid with so many columns and the largest tiles; it may still be too large."""
        count, height, width = shape
        room = (
            (max_side_px - _GAP_PX) // -(-count // columns) - _GAP_PX - head,
            (max_side_px - _GAP_PX - margin) // columns - _GAP_PX,
        )
        tile = _scaled(height, width, min(room[0] / height, room[1] / width))
        return cls(count, columns, tile, head, margin)

    @property
    def canvas(self) -> tuple[int, int]:
        """The size of the whole picture."""
        rows = -(-self.count // self.columns)
        return (
            _GAP_PX + rows * (self.head + self.tile[0] + _GAP_PX),
            _GAP_PX + self.margin + self.columns * (self.tile[1] + _GAP_PX),
        )

    def corner(self, place: int) -> tuple[int, int]:
        """Return top and left of the map in that place."""
        row, column = divmod(place, self.columns)
        return (
            _GAP_PX + self.head + row * (self.head + self.tile[0] + _GAP_PX),
            _GAP_PX + self.margin + column * (self.tile[1] + _GAP_PX),
        )

    def fits(self, max_side_px: int, number_px: int) -> bool:
        """Say whether the picture is no larger than that, and has room for numbers of this width, where it has any."""
        if max(self.canvas) > max_side_px:
            return False
        return self.tile[1] >= number_px if self.head else not self.margin or self.canvas[0] >= _line_px()


def _line_px() -> int:
    return len(text.coverage("0", _WORDS_PX))


def _scaled(height: int, width: int, scale: float) -> tuple[int, int]:
    """Return h x w cells at that scale: a whole number from 1 on, and none so large or small that nobody wants it."""
    scale = min(scale, max(1.0, _LARGE_PX / max(height, width)))
    scale = math.floor(scale) if scale >= 1.0 else scale
    return max(_SMALLEST_PX, math.floor(height * scale)), max(_SMALLEST_PX, math.floor(width * scale))


def _drawn(map_: NDArray[np.float32], tile: tuple[int, int], colormap: str, signed: bool) -> NDArray[np.uint8]:
    """Draw one map at the size of a tile: uint8 (*tile, 3)."""
    low, high = float(map_.min()), float(map_.max())
    if low == high:
        return np.full((*tile, 3), _FLAT, np.uint8)
    size = tile[1], tile[0]
    reduces = tile[0] < map_.shape[0] or tile[1] < map_.shape[1]
    sized = cv2.resize(map_, size, interpolation=cv2.INTER_AREA if reduces else cv2.INTER_NEAREST)
    if signed:
        largest = max(-low, high)
        return DIVERGING[signed_levels(np.clip(sized / largest, -1.0, 1.0).astype(np.float32))]
    shares = np.clip((sized.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    return COLORMAPS[colormap][np.rint(shares * 255.0).astype(np.uint8)]
