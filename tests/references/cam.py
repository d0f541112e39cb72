"""The CAM family, slow and literal from the papers, without their final ReLUs, in float64."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.references.inplace import OutOfPlace

ToGrid = Callable[[Tensor], Tensor]
Grid = NDArray[np.float64]


def gradcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:1610.02391, equations 1 and 2.

    As all of these, the map `(h, w)` of one picture `(1, C, H, W)` for class `index` (minus `versus`) at the layer's
    last call. With one layer nothing is fused.
    """
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


def gradcam_plus_plus(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:1710.11063, equations 5 and 19, in which the derivatives of exp(y) are exp(y) times powers of g."""
    a, g = _grids(model, picture, index, versus, layer, to_grid)
    channels, height, width = a.shape
    weights = []
    for c in range(channels):
        total = sum(a[c, p, q] for p in range(height) for q in range(width))
        weight = 0.0
        for i in range(height):
            for j in range(width):
                denominator = 2 * g[c, i, j] ** 2 + total * g[c, i, j] ** 3
                alpha = g[c, i, j] ** 2 / denominator if denominator != 0 else 0.0
                weight += alpha * max(g[c, i, j], 0.0)
        weights.append(weight)
    return _sum_of_channels(a, weights)


def hirescam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:2011.08891, equation 3."""
    a, g = _grids(model, picture, index, versus, layer, to_grid)
    return _per_cell(a, g, lambda activation, gradient: activation * gradient)


def layercam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """Jiang et al. 2021, equations 4 and 5."""
    a, g = _grids(model, picture, index, versus, layer, to_grid)
    return _per_cell(a, g, lambda activation, gradient: max(gradient, 0.0) * activation)


def xgradcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:2008.02312, equation 8."""
    a, g = _grids(model, picture, index, versus, layer, to_grid)
    channels, height, width = a.shape
    weights = []
    for c in range(channels):
        total = sum(a[c, p, q] for p in range(height) for q in range(width))
        cells = [(i, j) for i in range(height) for j in range(width)]
        weights.append(sum(a[c, i, j] / total * g[c, i, j] for i, j in cells) if total != 0 else 0.0)
    return _sum_of_channels(a, weights)


def eigencam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:2008.00299: A v_1, turned so that it goes along with the activation's sum."""
    a, _ = _grids(model, picture, index, versus, layer, to_grid)
    return _projected(a, a)


def eigengradcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """The same of activation times gradient."""
    a, g = _grids(model, picture, index, versus, layer, to_grid)
    return _projected(a * g, a * g)


def finercam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
    classes: int = 3,
    strength: float = 1.0,
) -> Tensor:
    """arXiv:2501.11309: the mean over the references d of Grad-CAM's maps of y_c - strength * y_d, map by map."""
    with torch.no_grad():
        y: list[float] = copy.deepcopy(model).double()(picture.double().clone())[0].tolist()
    others = sorted((abs(y[d] - y[index]), d) for d in range(len(y)) if d != index)
    references = [versus] if versus is not None else [d for _, d in others[:classes]]
    own = gradcam(model, picture, index, layer=layer, to_grid=to_grid)
    maps = [own - strength * gradcam(model, picture, d, layer=layer, to_grid=to_grid) for d in references]
    return sum(maps[1:], maps[0]) / len(maps)


def scorecam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:1910.01279, equations 5 to 8, with the score of a zero input as the baseline's."""
    a, _ = _grids(model, picture, index, versus, layer, to_grid)
    x = picture.detach().double()
    baseline = _score(model, torch.zeros_like(x), index, versus)
    contributions: dict[int, float] = {}
    for c, channel in enumerate(a):
        low, high = channel.min(), channel.max()
        if low < high:
            mask = bilinear((channel - low) / (high - low), x.shape[2], x.shape[3])
            contributions[c] = _score(model, x * torch.from_numpy(mask), index, versus) - baseline
    largest = max(contributions.values())
    powers = {c: math.exp(value - largest) for c, value in contributions.items()}
    weights = [powers.get(c, 0.0) / sum(powers.values()) for c in range(len(a))]
    return _sum_of_channels(a, weights)


def ablationcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """Desai & Ramaswamy 2020, equation 5 without its division by y: the whole model runs for each channel."""
    a, _ = _grids(model, picture, index, versus, layer, to_grid)
    y = _score(model, picture, index, versus)
    weights = [y - _score_without(model, picture, index, versus, layer, to_grid, c) for c in range(len(a))]
    return _sum_of_channels(a, weights)


def fullgrad(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str | None = None,
    to_grid: ToGrid | None = None,
) -> Tensor:
    """arXiv:1905.00780, equations 2 and 5; the gradient of a bias at a place is that of a zero added there."""
    assert layer is None
    assert to_grid is None
    shares = full_gradients(model, picture, index, versus)
    _, _, height, width = picture.shape
    total = np.zeros((height, width))
    for share in shares:
        magnitude = np.abs(share)
        low, high = magnitude.min(), magnitude.max()
        for channel in magnitude:
            scaled = (channel - low) / (high - low) if low < high else np.zeros_like(channel)
            total += bilinear(scaled, height, width)
    return torch.from_numpy(total - total.min())


def full_gradients(model: nn.Module, picture: Tensor, index: int, versus: int | None = None) -> list[Grid]:
    """Return x * dy/dx and b * dy/db of each call of a convolution or batch normalisation with a bias, `(C, h, w)`."""
    model = copy.deepcopy(model).double().eval()
    added: list[tuple[Tensor, Tensor]] = []

    def add_zero(module: nn.Module, _args: object, output: Tensor) -> Tensor:
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            std = (module.running_var + module.eps) ** 0.5
            bias = module.bias - module.weight * module.running_mean / std
        elif module.bias is not None:
            bias = module.bias
        else:
            return output
        zero = torch.zeros_like(output).requires_grad_()
        added.append((bias.detach(), zero))
        return output + zero

    biased = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.BatchNorm2d)]
    with torch.inference_mode(mode=False), torch.enable_grad(), OutOfPlace(), _hooked(biased, add_zero):
        x = picture.detach().double().clone().requires_grad_()
        scores = model(x)
        (scores[0, index] if versus is None else scores[0, index] - scores[0, versus]).backward()
    assert x.grad is not None
    shares = [(x * x.grad)[0].detach().numpy()]
    for bias, zero in added:
        gradient = torch.zeros_like(zero) if zero.grad is None else zero.grad
        shares.append(np.stack([float(b) * g.numpy() for b, g in zip(bias, gradient[0], strict=True)]))
    return shares


def bilinear(grid: Grid, height: int, width: int) -> Grid:
    """Return a grid in another size: each pixel centre takes its four neighbours' cells by distance, edges repeat."""
    rows, columns = grid.shape
    out = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * rows / height - 0.5, 0.0), rows - 1.0)
            x = min(max((j + 0.5) * columns / width - 0.5, 0.0), columns - 1.0)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            upper = grid[top, left] * (1 - (x - left)) + grid[top, right] * (x - left)
            lower = grid[bottom, left] * (1 - (x - left)) + grid[bottom, right] * (x - left)
            out[i, j] = upper * (1 - (y - top)) + lower * (y - top)
    return out


def _grids(
    model: nn.Module, picture: Tensor, index: int, versus: int | None, layer: str, to_grid: ToGrid | None
) -> tuple[Grid, Grid]:
    activation, gradient = activation_and_gradient(model, picture, index, versus, layer=layer)
    if to_grid is not None:
        activation, gradient = to_grid(activation), to_grid(gradient)
    return activation[0].numpy(), gradient[0].numpy()


def _sum_of_channels(a: Grid, weights: list[float]) -> Tensor:
    total = np.zeros(a.shape[1:])
    for channel, weight in zip(a, weights, strict=True):
        total += weight * channel
    return torch.from_numpy(total)


def _per_cell(a: Grid, g: Grid, product: Callable[[float, float], float]) -> Tensor:
    channels, height, width = a.shape
    cells = [
        [sum(product(a[c, i, j], g[c, i, j]) for c in range(channels)) for j in range(width)] for i in range(height)
    ]
    return torch.tensor(cells, dtype=torch.float64)


def _projected(grid: Grid, evidence: Grid) -> Tensor:
    """The first eigenvector of M^T M by power iteration; the rows of M are the cells."""
    channels, height, width = grid.shape
    m = grid.reshape(channels, -1).T
    direction = np.ones(channels) + np.arange(channels) / 100
    for _ in range(100_000):
        before, direction = direction, m.T @ (m @ direction)
        direction /= np.linalg.norm(direction)
        if np.abs(direction - before).max() < 1e-15:
            break
    map_ = (m @ direction).reshape(height, width)
    along = sum(map_[i, j] * evidence[:, i, j].sum() for i in range(height) for j in range(width))
    return torch.from_numpy(-map_ if along < 0 else map_)


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[..., Tensor]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _score(model: nn.Module, picture: Tensor, index: int, versus: int | None) -> float:
    with torch.no_grad():
        scores = model(picture.detach().double().clone())[0]
    return float(scores[index]) - (0.0 if versus is None else float(scores[versus]))


def _score_without(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None,
    layer: str,
    to_grid: ToGrid | None,
    channel: int,
) -> float:
    calls = 0

    def count(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return output

    def ablate(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        nonlocal calls
        calls -= 1
        if calls:  # only the last call counts
            return output
        changed = output.clone()
        grid = changed if to_grid is None else to_grid(changed)
        grid[:, channel] = 0
        assert grid._base is changed or grid is changed, "a copy: nothing was ablated"
        return changed

    model = copy.deepcopy(model).double().eval()
    with _hooked([model.get_submodule(layer)], count):
        _score(model, picture, index, versus)
    with _hooked([model.get_submodule(layer)], ablate):
        return _score(model, picture, index, versus)
