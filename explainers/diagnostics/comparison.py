"""Two maps of the same picture, and two networks' features of it: how much they agree."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from explainers.batch import at_least_float32
from explainers.errors import BadParameter, NonFiniteMap, NotComparable

TOP = 0.1
"""The share of the picture that "hottest" means."""


@dataclass(frozen=True)
class Comparison:
    """How much two maps of the same places agree.

    `correlation` (Pearson's) and `rank_correlation` (Spearman's) are in [-1, 1], None where a map is constant.
    `overlap` in [0, 1] is the intersection over the union of the two hottest regions, `top` the share of the picture
    that each of them covers. Two unrelated maps overlap by about top / (2 - top), 0.05 for a tenth.
    """

    correlation: float | None
    rank_correlation: float | None
    overlap: float
    top: float


def compare(first: NDArray[np.floating], second: NDArray[np.floating], *, top: float = TOP) -> Comparison:
    """Compare two maps `(h, w)` or `(n,)` of the same places; signed, each in its own unit.

    The figures do not change if a map is scaled or shifted. Give only the places that both models saw. Raises
    `NotComparable`, `NonFiniteMap` and, for `top` outside of (0, 1], `BadParameter`.
    """
    if not 0 < top <= 1:
        msg = f"top: the share of the picture must be above 0 and at most 1, and {top} is not."
        raise BadParameter(msg, field="top", minimum=0, maximum=1)
    one, other = _same_places(first, second)
    return Comparison(_pearson(one, other), _pearson(_ranks(one), _ranks(other)), _overlap(one, other, top), top)


def rank_correlation(first: NDArray[np.floating], second: NDArray[np.floating]) -> float | None:
    """Return Spearman's rank correlation of two maps of equal shape; None where a map is constant.

    It is Pearson's correlation of the ranks, where equal values share the mean of their ranks. Raises `NotComparable`
    and `NonFiniteMap`.
    """
    one, other = _same_places(first, second)
    return _pearson(_ranks(one), _ranks(other))


def feature_difference(first: Tensor, second: Tensor) -> Tensor:
    """Return where two networks' features of the same layer differ, `(N, h, w)` at least float32, not negative.

    `first` and `second` are grids `(N, C, h, w)`. With f and g the features of a picture, each divided by its own root
    mean square over channels and places (features that are all zero stay so),

        map[i, j] = sqrt(sum over c of (f[c, i, j] - g[c, i, j])^2).

    Where the sizes differ, the coarser axis of either is brought to the finer one, bilinear between the cells'
    centres. Channels are compared by their number, so this means something for two versions of one network (before
    and after fine-tuning, another precision); channels of networks that were trained apart do not correspond. Raises
    `NotComparable`, also for another number of channels, and `NonFiniteMap`.
    """
    if first.dim() != 4 or second.dim() != 4 or len(first) != len(second):
        msg = f"Features are compared as grids (N, C, h, w) of as many pictures, not {_shapes(first, second)}."
        raise NotComparable(msg)
    if first.shape[1] != second.shape[1]:
        msg = (
            f"The first layer has {first.shape[1]} channels and the second {second.shape[1]}; features can only be "
            "compared channel by channel. Choose layers of as many channels, or compare the maps instead."
        )
        raise NotComparable(msg, field="layer", channels=[first.shape[1], second.shape[1]])
    height, width = (max(first.shape[axis], second.shape[axis]) for axis in (2, 3))
    one, other = (_resampled(_normalised(grid.detach()), (height, width)) for grid in (first, second))
    difference: Tensor = torch.linalg.vector_norm(one - other.to(one.device), dim=1)
    return difference


def _same_places(
    first: NDArray[np.floating], second: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both maps flat in float64."""
    if first.shape != second.shape or not first.size:
        msg = f"Maps are compared place by place, so they must have one shape with any places, not {first.shape} and "
        raise NotComparable(msg + f"{second.shape}.")
    one, other = (np.asarray(map_, dtype=np.float64).ravel() for map_ in (first, second))
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise NonFiniteMap("A map with NaN or infinity cannot be compared.")
    return one, other


def _pearson(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Return Pearson's correlation, or None where one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    a, b = _centred(one), _centred(other)
    correlation = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    return min(max(correlation, -1.0), 1.0)  # rounding goes past the ends


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values less their mean, on a scale where squares neither overflow nor vanish."""
    centred = values - values.mean()
    unit: NDArray[np.float64] = centred / np.abs(centred).max()
    return unit


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value's rank from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[place]
    return ranks


def _overlap(one: NDArray[np.float64], other: NDArray[np.float64], top: float) -> float:
    """Return intersection over union of the two hottest regions."""
    a, b = (_hottest(values, top) for values in (one, other))
    return float(np.minimum(a, b).sum() / np.maximum(a, b).sum())


def _hottest(values: NDArray[np.float64], top: float) -> NDArray[np.float64]:
    """Return how much of each place belongs to the hottest region, in [0, 1], together `top` of all places.

    Places of equal value take equal parts in what is left for them: of a constant map every place belongs to the
    region by `top`. Nothing hangs on the order of the places then, and all regions are of one size.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    hotter = values.size - np.cumsum(counts)
    parts: NDArray[np.float64] = np.clip((top * values.size - hotter) / counts, 0, 1)[place]
    return parts


def _normalised(grid: Tensor) -> Tensor:
    grid = at_least_float32(grid)
    if not bool(torch.isfinite(grid).all()):
        raise NonFiniteMap("Features with NaN or infinity cannot be compared.", field="layer")
    largest = grid.abs().amax(dim=(1, 2, 3), keepdim=True)
    scaled = grid / torch.where(largest > 0, largest, 1)  # squares of large features overflow
    rms = scaled.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return scaled / torch.where(rms > 0, rms, 1)


def _resampled(grid: Tensor, size: tuple[int, int]) -> Tensor:
    if grid.shape[2:] == size:
        return grid
    return F.interpolate(grid, size=size, mode="bilinear", align_corners=False)


def _shapes(*tensors: Tensor) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
