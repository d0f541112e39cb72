"""In which order the regions of a picture are taken, and what is seen of it on the way: no model, no scores."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FRACTIONS = (0.0, 0.1, 0.35, 0.65, 0.9, 1.0)
"""The shares of the picture that are taken. Symmetric: what one order leaves is the beginning of its reverse."""

_CELLS = 256
_DIGITS = 6
"""Values that agree to so many digits of the map's largest are equal; float32 carries one more."""
_LATTICE = [(i / 4, (i / 4 + j / 2) % 1) for i in range(4) for j in range(2)]
"""Eight places, as shares of the sides, evenly spread over a picture whose opposite sides touch: here, and elsewhere.

Seen from any of them, the other seven lie in the same way.
"""
ELSEWHERE = len(_LATTICE) - 1

Floats = NDArray[np.float64]
Ranks = NDArray[np.int32]
"""Each cell's place in an order, `(count,)`: 0 is taken first."""


class Cells:
    """A picture cut into about 16 x 16 nearly square cells, whose sides differ by one pixel at most.

    Both their numbers are even (or a side has one pixel), so that half of the cells is a number too.
    """

    def __init__(self, height: int, width: int) -> None:
        side = math.sqrt(height * width / _CELLS)
        self._edges = (_edges(height, side), _edges(width, side))
        self._grid = (len(self._edges[0]) - 1, len(self._edges[1]) - 1)
        self.count = self._grid[0] * self._grid[1]

    def means(self, map_: NDArray[np.floating]) -> Floats:
        """Return the cells' means `(count,)`, row by row, of a map `(h, w)` that covers the picture evenly.

        Between the places of a map that is coarser than the picture it is linear, as it is drawn.
        """
        down, across = (_means(*pair) for pair in zip(self._edges, map_.shape, strict=True))
        means: Floats = (down @ map_.astype(np.float64) @ across.T).ravel()
        return means

    def distances(self) -> Floats:
        """Return the distance `(count,)` of the cells' centres from the picture's, in pixels."""
        down, across = ((edges[1:] + edges[:-1] - edges[-1]) / 2 for edges in self._edges)
        distances: Floats = np.hypot(down[:, None], across[None, :]).ravel()
        return distances

    def elsewhere(self, ranks: Ranks) -> list[Ranks]:
        """Return the order laid at each of the other places of `_LATTICE`; what leaves one side comes in opposite."""
        grid = ranks.reshape(self._grid)
        shifts = [tuple(round(share * n) for share, n in zip(at, self._grid, strict=True)) for at in _LATTICE[1:]]
        return [np.asarray(np.roll(grid, shift, axis=(0, 1)).ravel()) for shift in shifts]

    def spread(self, ranks: Sequence[Ranks]) -> Ranks:
        """Return the orders pixel by pixel, `(orders, H, W)`."""
        grids: Ranks = np.stack(ranks).reshape(-1, *self._grid)
        return grids.repeat(np.diff(self._edges[0]), axis=1).repeat(np.diff(self._edges[1]), axis=2)


def is_flat(values: Floats) -> bool:
    """Whether all values are equal, as far as float32 tells."""
    rounded = _rounded(values)
    return bool((rounded == rounded[0]).all())


def ranks_of(values: Floats, seed: int) -> Ranks:
    """Return the order in which the largest value comes first; equal values are in a random order.

    The random order is the same for the same seed, whatever the values are.
    """
    ties = np.random.default_rng((seed, 0)).permutation(len(values))
    ranks = np.empty(len(values), np.int32)
    ranks[np.lexsort((ties, -_rounded(values)))] = np.arange(len(values), dtype=np.int32)
    return ranks


class View(NamedTuple):
    """A picture on its way: the cells whose place in order `plane` is in [low, high) are shown, else the substrate."""

    substrate: int
    plane: int
    low: int
    high: int


class Walk(NamedTuple):
    """The way through an order, or its reverse, on some of the substrates."""

    plane: int
    cells: int
    substrates: Sequence[int]
    reverse: bool = False

    def insertion(self) -> list[list[View]]:
        """Return, for each substrate, what is seen at each fraction when the first cells are shown."""
        return [[self._view(s, 0, self._count(f)) for f in FRACTIONS] for s in self.substrates]

    def deletion(self) -> list[list[View]]:
        """Return, for each substrate, what is seen at each fraction when the first cells are not shown."""
        return [[self._view(s, self._count(f), self.cells) for f in FRACTIONS] for s in self.substrates]

    def _view(self, substrate: int, low: int, high: int) -> View:
        # All walks share the view of the whole picture, and that of nothing but the substrate.
        if high - low == self.cells:
            return View(0, 0, 0, self.cells)
        if low == high:
            return View(substrate, 0, 0, 0)
        low, high = (self.cells - high, self.cells - low) if self.reverse else (low, high)
        return View(substrate, self.plane, low, high)

    def _count(self, fraction: float) -> int:
        # So that a share and its complement are all cells, however they are rounded.
        return self.cells - self._count(1 - fraction) if fraction > 0.5 else round(fraction * self.cells)


def views_of(walks: Sequence[Walk]) -> list[View]:
    """Return what is seen on any of the ways, once each."""
    ways = [way for walk in walks for way in (*walk.insertion(), *walk.deletion())]
    return list(dict.fromkeys(view for way in ways for view in way))


def _rounded(values: Floats) -> Floats:
    largest = float(np.abs(values).max())
    return np.round(values / largest, _DIGITS) if largest > 0 else values


def _edges(length: int, side: float) -> NDArray[np.int64]:
    cells = min(round(length / side), length)
    even = max(cells - cells % 2, min(2, length))
    return np.rint(np.linspace(0, length, even + 1)).astype(np.int64)


def _means(edges: NDArray[np.int64], places: int) -> Floats:
    """Return what each of a map's places along one side contributes to the mean of each cell, `(cells, places)`."""
    sums: Floats = np.add.reduceat(_drawn(int(edges[-1]), places), edges[:-1])
    return sums / np.diff(edges)[:, None]


def _drawn(pixels: int, places: int) -> Floats:
    """Return what each place contributes to each pixel, `(pixels, places)`: linear, or the mean where it is finer."""
    if places <= pixels:
        at = (np.arange(pixels) + 0.5) * places / pixels - 0.5
        return np.stack([np.interp(at, np.arange(places), one) for one in np.eye(places)], axis=1)
    tops = np.maximum(np.arange(pixels)[:, None] / pixels, np.arange(places) / places)
    bottoms = np.minimum(np.arange(1, pixels + 1)[:, None] / pixels, np.arange(1, places + 1) / places)
    shares: Floats = np.maximum(bottoms - tops, 0.0)
    return shares * pixels
