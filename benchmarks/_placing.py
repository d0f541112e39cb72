"""Whether a layer's grid lies on the picture as it should: patches of the picture are changed, one after the other.

Chance alone puts all four right once in 256 times; swapped axes two of them, mirrored ones none.
It takes no notice of how the default layer was found, and is no part of the product.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from explainers.hooks import observe
from models.loading import LoadedModel

PLACES = ((0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))  # (row, column) of the centres
_TINY = torch.finfo(torch.float32).tiny
_HALF = 0.125  # a patch is a quarter of the picture wide and high


@torch.inference_mode()
def answers(model: LoadedModel, layer: str, to_grid: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return how much the layer's cells at each of the `PLACES` change, if x (C, H, W) is changed at each: (4, 4).

    Rows are where the picture changes, columns where the cells lie. What all cells have in common is taken off.
    Changes are multiples of the row's mean, since some patches are weak, and then of the cell's, since some cells
    react to everything: 1 everywhere says that the cells do not know which patch it was.
    """
    before = _grid(model, layer, to_grid, x)
    moved = torch.stack([_grid(model, layer, to_grid, _changed(x, place)) for place in PLACES]) - before
    changes = (moved - moved.mean((2, 3), keepdim=True)).square().mean(1)
    changes /= changes.mean((1, 2), keepdim=True) + _TINY
    changes /= changes.mean(0) + _TINY
    return torch.stack([changes[:, _cells(place, before.shape[1:])].mean(1) for place in PLACES], dim=1)


def found_again(answers: Tensor) -> int:
    """Return at how many of the `PLACES` the cells that lie there change most."""
    return int((answers.argmax(1) == torch.arange(len(PLACES))).sum())


def _grid(model: LoadedModel, layer: str, to_grid: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the layer's output for one picture as (C, h, w)."""
    outputs: list[Tensor] = []

    def keep(name: str, _module: object, output: object) -> None:
        if name == layer and isinstance(output, Tensor):
            outputs.append(to_grid(output)[0].float().clone())

    with observe(model.module, keep):
        model.scores(x[None])
    return outputs[-1]


def _changed(x: Tensor, place: tuple[float, float]) -> Tensor:
    """Return x (C, H, W) with the patch mirrored and negated."""
    x = x.clone()
    rows, columns = (
        slice(round((centre - _HALF) * n), round((centre + _HALF) * n))
        for centre, n in zip(place, x.shape[1:], strict=True)
    )
    x[:, rows, columns] = -x[:, rows, columns].flip(1)
    return x


def _cells(place: tuple[float, float], grid: tuple[int, ...]) -> Tensor:
    """Return which cells (h, w) have their centre in the patch, or are the nearest to it."""
    rows, columns = (((torch.arange(n) + 0.5) / n - centre).abs() for n, centre in zip(grid, place, strict=True))
    return (rows <= max(_HALF, float(rows.min())))[:, None] & (columns <= max(_HALF, float(columns.min())))
