"""Input-gradient saliency, slow and literal: arXiv:1312.6034, section 3, in float64."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.references.inplace import OutOfPlace


def saliency(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str | None = None,
    to_grid: Callable[[Tensor], Tensor] | None = None,
    reduction: str = "max_abs",
) -> Tensor:
    """Return the map `(H, W)` of one picture `(1, C, H, W)` for class `index` (minus `versus`)."""
    assert layer is None
    assert to_grid is None
    model = copy.deepcopy(model).double().eval()
    with torch.inference_mode(mode=False), torch.enable_grad(), OutOfPlace():
        x = picture.detach().double().clone().requires_grad_()
        scores = model(x)
        y = scores[0, index] if versus is None else scores[0, index] - scores[0, versus]
        y.backward()
    assert x.grad is not None
    g: list[list[list[float]]] = x.grad[0].tolist()
    channels, height, width = len(g), len(g[0]), len(g[0][0])
    pixels = [[[g[c][i][j] for c in range(channels)] for j in range(width)] for i in range(height)]
    reduce = {"max_abs": _largest_absolute, "signed_sum": sum}[reduction]
    return torch.tensor([[reduce(pixel) for pixel in row] for row in pixels], dtype=torch.float64)


def _largest_absolute(gradient: list[float]) -> float:
    return max(abs(value) for value in gradient)
