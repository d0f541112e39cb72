"""What stands for "nothing to see", slow and literal, in float64."""

import math

import torch
from torch import Tensor


def baseline(kind: str, picture: Tensor) -> Tensor:
    """Return the baseline `(1, C, H, W)` of one picture whose black is zero."""
    make = {"black": _black, "mean": _mean, "blur": _blur}[kind]
    return torch.tensor([[make(plane) for plane in picture[0].double().tolist()]], dtype=torch.float64)


def _black(plane: list[list[float]]) -> list[list[float]]:
    return [[0.0 for _ in row] for row in plane]


def _mean(plane: list[list[float]]) -> list[list[float]]:
    mean = sum(sum(row) for row in plane) / (len(plane) * len(plane[0]))
    return [[mean for _ in row] for row in plane]


def _blur(plane: list[list[float]]) -> list[list[float]]:
    """A Gaussian of 1/20 of the shorter side, at least half a pixel, cut at 3 sigma; the border goes on outside."""
    height, width = len(plane), len(plane[0])
    sigma = max(min(height, width) / 20, 0.5)
    reach = math.ceil(3 * sigma)
    offsets = [(di, dj) for di in range(-reach, reach + 1) for dj in range(-reach, reach + 1)]

    def at(i: int, j: int) -> float:
        total = weights = 0.0
        for di, dj in offsets:
            weight = math.exp(-(di * di + dj * dj) / (2 * sigma * sigma))
            total += weight * plane[min(max(i + di, 0), height - 1)][min(max(j + dj, 0), width - 1)]
            weights += weight
        return total / weights

    return [[at(i, j) for j in range(width)] for i in range(height)]
