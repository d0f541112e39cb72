"""The diagnostics, slow and literal: sums in loops, differences instead of derivatives."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Each value's rank from 1: how many are smaller, and the middle of those that are equal."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]


def pearson(first: Sequence[float], second: Sequence[float]) -> float:
    """Covariance over the product of the standard deviations."""
    a = [x - math.fsum(first) / len(first) for x in first]
    b = [y - math.fsum(second) / len(second) for y in second]
    covariance = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return covariance / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))


def overlap(first: Sequence[float], second: Sequence[float], count: int) -> float:
    """Intersection over union of the `count` largest of each, for values that are all different."""
    a, b = (set(sorted(range(len(m)), key=lambda i, m=m: -m[i])[:count]) for m in (first, second))
    return len(a & b) / len(a | b)


def feature_difference(first: Tensor, second: Tensor) -> Tensor:
    """`(h, w)` of two grids `(C, h, w)`, place by place."""
    channels, height, width = first.shape

    def scaled(grid: Tensor) -> list[list[list[float]]]:
        rms = math.sqrt(math.fsum(x * x for x in grid.flatten().tolist()) / grid.numel())
        return (grid / rms).tolist()

    f, g = scaled(first), scaled(second)
    return torch.tensor(
        [
            [math.sqrt(math.fsum((f[c][i][j] - g[c][i][j]) ** 2 for c in range(channels))) for j in range(width)]
            for i in range(height)
        ],
        dtype=torch.float64,
    )


def slopes(value: Callable[[Tensor], Tensor], picture: Tensor, step: float = 1e-5) -> Tensor:
    """How a value of a picture `(1, C, H, W)` float64 moves with each number: central differences, `(C, H, W)`."""
    _, channels, height, width = picture.shape
    found = torch.zeros(channels, height, width, dtype=torch.float64)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                up, down = picture.clone(), picture.clone()
                up[0, c, i, j] += step
                down[0, c, i, j] -= step
                with torch.no_grad():
                    found[c, i, j] = (value(up) - value(down)) / (2 * step)
    return found
