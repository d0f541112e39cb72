"""The attention methods, slow and literal, in float64, for models that write `softmax` out and call blocks `blocks`."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.references.inplace import OutOfPlace

Matrix = list[list[float]]
ToGrid = Callable[[Tensor], Tensor]


def attention_rollout(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, to_grid: ToGrid
) -> Tensor:
    """arXiv:2005.00928, section 3: the rows that the head reads of the product of all (A + I) / 2."""
    weights, _ = weights_and_gradients(model, picture, index, versus)
    size = weights[0].shape[-1]
    rolled = identity(size)
    for each in weights:
        mean = mean_of([head.tolist() for head in each])
        halved = [[(mean[i][j] + (i == j)) / 2 for j in range(size)] for i in range(size)]
        rolled = product(halved, rolled)
    return on_the_grid(mean_row(rolled, rows_read(model, picture)), to_grid)


def grad_rollout(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, to_grid: ToGrid
) -> Tensor:
    """arXiv:2103.15679, equations 1, 5 and 6: R = R + mean over heads of (dy/dA * A)^+ times R; minus I at the end."""
    weights, gradients = weights_and_gradients(model, picture, index, versus)
    size = weights[0].shape[-1]
    relevance = identity(size)
    for each, gradient in zip(weights, gradients, strict=True):
        positive = []
        for a, g in zip(each.tolist(), gradient.tolist(), strict=True):
            positive.append([[max(g[i][j] * a[i][j], 0.0) for j in range(size)] for i in range(size)])
        added = product(mean_of(positive), relevance)
        relevance = [[relevance[i][j] + added[i][j] for j in range(size)] for i in range(size)]
    others = [[relevance[i][j] - (i == j) for j in range(size)] for i in range(size)]
    return on_the_grid(mean_row(others, rows_read(model, picture)), to_grid)


def legrad(model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, to_grid: ToGrid) -> Tensor:
    """arXiv:2404.03214, section 3: the model is cut off behind each block in turn."""
    depth = len(model.blocks) if hasattr(model, "blocks") else 1
    maps = []
    for blocks in range(1, depth + 1):
        shorter = copy.deepcopy(model)
        if hasattr(model, "blocks"):
            shorter.blocks = shorter.blocks[:blocks]
        _, gradients = weights_and_gradients(shorter, picture, index, versus)
        assert len(gradients) == blocks
        positive = [[[max(value, 0.0) for value in row] for row in head] for head in gradients[-1].tolist()]
        maps.append([mean_row(mean_of(positive), list(range(len(positive[0]))))])
    return on_the_grid(mean_of(maps)[0], to_grid)


def weights_and_gradients(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return A and dy/dA of each attention, `(heads, T, T)`."""
    model = copy.deepcopy(model).double().eval()
    with torch.inference_mode(mode=False), torch.enable_grad(), _Softmax() as seen:
        scores = model(picture.detach().double().clone().requires_grad_())
    y = scores[0, index] if versus is None else scores[0, index] - scores[0, versus]
    y.backward()
    weights = [each.detach().reshape(-1, *each.shape[-2:]) for each in seen.weights]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in seen.weights]
    return weights, [each.reshape(-1, *each.shape[-2:]) for each in gradients]


def rows_read(model: nn.Module, picture: Tensor) -> list[int]:
    """Return the tokens that the scores depend on after the last attention: those that may not look at nothing."""
    model = copy.deepcopy(model).double().eval()

    def scores(blind: tuple[int, int] | None = None) -> tuple[Tensor, list[Tensor]]:
        with torch.no_grad(), _Softmax(blind) as seen:
            return model(picture.detach().double().clone()), seen.weights

    expected, weights = scores()
    last, size = len(weights) - 1, weights[-1].shape[-1]
    return [row for row in range(size) if not torch.equal(scores((last, row))[0], expected)]


class _Softmax(OutOfPlace):
    """Keeps each softmax of three axes or more; `blind` (number, row): this row of that one becomes zero."""

    def __init__(self, blind: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        self._blind = blind

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if getattr(func, "__name__", "") != "softmax" or result.dim() < 3:
            return result
        own = result.clone()
        if self._blind is not None and self._blind[0] == len(self.weights):
            own[..., self._blind[1], :] = 0
        if torch.is_grad_enabled():
            own.requires_grad_()  # of weights that do not depend on the picture
            own.retain_grad()
        self.weights.append(own)
        return own


def identity(size: int) -> Matrix:
    return [[float(i == j) for j in range(size)] for i in range(size)]


def product(one: Matrix, other: Matrix) -> Matrix:
    inner = range(len(other))
    return [[sum(row[k] * other[k][j] for k in inner) for j in range(len(other[0]))] for row in one]


def mean_of(matrices: list[Matrix]) -> Matrix:
    rows, columns = range(len(matrices[0])), range(len(matrices[0][0]))
    return [[sum(matrix[i][j] for matrix in matrices) / len(matrices) for j in columns] for i in rows]


def mean_row(matrix: Matrix, rows: list[int]) -> list[float]:
    assert rows
    return [sum(matrix[i][j] for i in rows) / len(rows) for j in range(len(matrix[0]))]


def on_the_grid(relevance: list[float], to_grid: ToGrid) -> Tensor:
    return to_grid(torch.tensor(relevance, dtype=torch.float64).reshape(1, -1, 1))[0, 0]
