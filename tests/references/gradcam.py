"""Grad-CAM, slow and literal: arXiv:1610.02391, equations 1 and 2, without the final ReLU, in float64."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.references.inplace import OutOfPlace


def gradcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the map `(h, w)` of one picture `(1, C, H, W)` for class `index` (minus `versus`) at the last call."""
    activation, gradient = activation_and_gradient(model, picture, index, versus, layer=layer)
    if to_grid is not None:
        activation, gradient = to_grid(activation), to_grid(gradient)
    return weighted_sum(activation, gradient)


def activation_and_gradient(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, layer: str
) -> tuple[Tensor, Tensor]:
    """Return A and dy/dA at the layer's last call, from a copy of the model in which nothing works in place."""
    model = copy.deepcopy(model).double().eval()
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        own = output.clone()  # a layer may return its input, which others use too
        own.retain_grad()
        outputs.append(own)
        return own

    handle = model.get_submodule(layer).register_forward_hook(keep)
    try:
        with torch.inference_mode(mode=False), torch.enable_grad(), OutOfPlace():
            scores = model(picture.detach().double().clone().requires_grad_())
            y = scores[0, index] if versus is None else scores[0, index] - scores[0, versus]
            y.backward()
    finally:
        handle.remove()
    last = outputs[-1]
    assert last.grad is not None
    return last.detach(), last.grad


def weighted_sum(activation: Tensor, gradient: Tensor) -> Tensor:
    """Equations 1 and 2 for one picture: both arguments are `(1, C, h, w)`."""
    _, channels, height, width = activation.shape
    a: list[list[list[float]]] = activation[0].tolist()
    da: list[list[list[float]]] = gradient[0].tolist()
    cam = [[0.0] * width for _ in range(height)]
    for c in range(channels):
        total = 0.0
        for i in range(height):
            for j in range(width):
                total += da[c][i][j]
        alpha = total / (height * width)
        for i in range(height):
            for j in range(width):
                cam[i][j] += alpha * a[c][i][j]
    return torch.tensor(cam, dtype=torch.float64)
