"""Insertion and deletion, slow and literal: cell by cell, picture by picture, in float64.

Nothing here is shared with the product but the documented rule of ties: a permutation drawn from (seed, 0).
"""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.references.baselines import baseline
from tests.references.perturbation import between

FRACTIONS = (0.0, 0.1, 0.35, 0.65, 0.9, 1.0)
ELSEWHERE = [(0, 2), (1, 1), (1, 3), (2, 2), (2, 0), (3, 3), (3, 1)]
"""The other places of a map, down and across, in quarters of the picture."""

Cell = tuple[int, int]
Curves = dict[str, list[float]]


def faithfulness(
    model: nn.Module, picture: Tensor, map_: Tensor, index: int, versus: int | None = None, seed: int = 0
) -> tuple[Curves, Curves, list[float]]:
    """Return the insertion and the deletion curves, and the gains of the map at the other places."""
    probability, (height, width) = probability_of(model, index, versus), picture.shape[1:]
    rows, columns = sides(height, width)
    down, across = cut(height, rows), cut(width, columns)
    hidden = {kind: baseline(kind, picture[None])[0] for kind in ("blur", "mean")}

    def seen(cells: set[Cell], kind: str) -> float:
        x = hidden[kind].clone()
        for r, c in cells:
            x[:, down[r] : down[r + 1], across[c] : across[c + 1]] = picture.double()[
                :, down[r] : down[r + 1], across[c] : across[c + 1]
            ]
        return probability(x)

    def curves(order: Sequence[Cell], kind: str) -> tuple[list[float], list[float]]:
        counts = [round(f * len(order)) if f <= 0.5 else len(order) - round((1 - f) * len(order)) for f in FRACTIONS]
        return (
            [seen(set(order[:count]), kind) for count in counts],
            [seen(set(order[count:]), kind) for count in counts],
        )

    values = {
        (r, c): sum(
            drawn(map_, i, j, height, width)
            for i in range(down[r], down[r + 1])
            for j in range(across[c], across[c + 1])
        )
        / ((down[r + 1] - down[r]) * (across[c + 1] - across[c]))
        for r in range(rows)
        for c in range(columns)
    }
    middle = {
        (r, c): -math.hypot((down[r] + down[r + 1] - height) / 2, (across[c] + across[c + 1] - width) / 2)
        for r, c in values
    }
    own, centre = ranked(values, seed), ranked(middle, seed)
    others = [
        [((r + round(rows * a / 4)) % rows, (c + round(columns * b / 4)) % columns) for r, c in own]
        for a, b in ELSEWHERE
    ]
    by_kind = {
        "map": [curves(own, kind) for kind in hidden],
        "centre": [curves(centre, kind) for kind in hidden],
        "edge": [curves(centre[::-1], kind) for kind in hidden],
        "random": [curves(order, ("blur", "mean")[n % 2]) for n, order in enumerate(others)],
    }
    insertion = {name: averaged([both[0] for both in several]) for name, several in by_kind.items()}
    deletion = {name: averaged([both[1] for both in several]) for name, several in by_kind.items()}
    return insertion, deletion, [area(ins) - area(dele) for ins, dele in by_kind["random"]]


def sides(height: int, width: int) -> tuple[int, int]:
    """Return how many cells there are down and across: even numbers."""
    side = math.sqrt(height * width / 256)
    return tuple(min(round(length / side), length) // 2 * 2 for length in (height, width))  # type: ignore[return-value]


def cut(length: int, cells: int) -> list[int]:
    """Return the edges of the cells along one side, in whole pixels."""
    return [round(length * n / cells) for n in range(cells + 1)]


def drawn(map_: Tensor, i: int, j: int, height: int, width: int) -> float:
    """Return the map's value at a pixel: bilinear between its cells' centres."""
    h, w = map_.shape
    return sum(
        a * b * float(map_[row, column])
        for row, a in between((i + 0.5) * h / height - 0.5, h)
        for column, b in between((j + 0.5) * w / width - 0.5, w)
    )


def ranked(values: dict[Cell, float], seed: int) -> list[Cell]:
    """Return the cells, the largest value first; what agrees to six digits of the largest is in a random order."""
    largest = max(abs(value) for value in values.values())
    ties = np.random.default_rng((seed, 0)).permutation(len(values)).tolist()
    keys = {cell: (-round(value / largest, 6), tie) for (cell, value), tie in zip(values.items(), ties, strict=True)}
    return sorted(values, key=lambda cell: keys[cell])


def probability_of(model: nn.Module, index: int, versus: int | None) -> Callable[[Tensor], float]:
    """Return the softmax of the class, or the sigmoid of the difference of two scores, as a function of a picture."""
    model = copy.deepcopy(model).double().eval()

    def probability(x: Tensor) -> float:
        with torch.no_grad():
            scores: list[float] = model(x[None].clone())[0].tolist()
        if versus is not None:
            return 1 / (1 + math.exp(scores[versus] - scores[index]))
        return math.exp(scores[index]) / sum(math.exp(score) for score in scores)

    return probability


def averaged(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean curve."""
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def area(curve: Sequence[float]) -> float:
    """Return the area under a curve over `FRACTIONS`, by trapezoids."""
    steps = zip(FRACTIONS, FRACTIONS[1:], curve, curve[1:], strict=False)
    return sum((right - left) * (low + high) / 2 for left, right, low, high in steps)
