"""The gradient family, slow and literal from the papers, in float64.

Each function returns the map `(H, W)` of one picture `(1, C, H, W)` for class `index` (minus `versus`). The random
numbers of sample s of a seed come from `torch.Generator` with the seed `seed * 1_000_003 + s`, in float32.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.references import cam
from tests.references.baselines import baseline as baseline_of
from tests.references.inplace import OutOfPlace

Volume = list[list[list[float]]]
"""Channels of rows of numbers."""


def saliency(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, reduction: str = "max_abs"
) -> Tensor:
    """arXiv:1312.6034, section 3."""
    return _reduced(gradient(model, picture, index, versus), reduction)


def input_x_gradient(model: nn.Module, picture: Tensor, index: int, versus: int | None = None) -> Tensor:
    """arXiv:1605.01713."""
    return _summed_products(picture[0].double().tolist(), gradient(model, picture, index, versus))


def smoothgrad(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 25,
    noise: float = 0.15,
    seed: int = 0,
    reduction: str = "max_abs",
) -> Tensor:
    """arXiv:1706.03825, section 2."""
    gradients = [gradient(model, _noisy(picture, noise, _drawn(seed, s)), index, versus) for s in range(samples)]
    return _reduced(_each(lambda *values: sum(values) / samples, *gradients), reduction)


def vargrad(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 25,
    noise: float = 0.15,
    seed: int = 0,
) -> Tensor:
    """arXiv:1810.03307, section 2: the mean first, then the mean square of what differs from it."""

    def variance(*values: float) -> float:
        mean = sum(values) / samples
        return sum((value - mean) ** 2 for value in values) / samples

    gradients = [gradient(model, _noisy(picture, noise, _drawn(seed, s)), index, versus) for s in range(samples)]
    return _reduced(_each(variance, *gradients), "signed_sum")


def integrated_gradients(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    steps: int = 32,
    baseline: str = "black",
) -> Tensor:
    """arXiv:1703.01365, equation 1, with the integral by Gauss and Legendre."""
    start = baseline_of(baseline, picture)
    line = picture.double() - start
    total: Volume = torch.zeros_like(line[0]).tolist()
    for place, weight in gauss_legendre(steps):
        there = gradient(model, start + place * line, index, versus)
        total = _each(lambda sum_, g, weight=weight: sum_ + weight * g, total, there)
    return _summed_products(line[0].tolist(), total)


def gauss_legendre(count: int) -> list[tuple[float, float]]:
    """Places and weights on [0, 1], from those on [-1, 1]: the roots r of P, and 2 / ((1 - r^2) P'(r)^2), by Newton."""

    def legendre(r: float) -> tuple[float, float]:
        """P and its derivative by the three-term recurrence."""
        before, now = 1.0, r
        for k in range(2, count + 1):
            before, now = now, ((2 * k - 1) * r * now - (k - 1) * before) / k
        return now, count * (r * now - before) / (r * r - 1)

    rule = []
    for k in range(count):
        r = math.cos(math.pi * (k + 0.75) / (count + 0.5))
        for _ in range(50):
            value, slope = legendre(r)
            r -= value / slope
        rule.append(((1 + r) / 2, 1 / ((1 - r * r) * legendre(r)[1] ** 2)))
    return rule


def gradient_shap(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    samples: int = 25,
    noise: float = 0.15,
    seed: int = 0,
    baseline: str = "black",
) -> Tensor:
    """arXiv:1906.10670, equation 5, with one baseline: first the place on the line is drawn, then the noise."""
    start = baseline_of(baseline, picture)
    total = torch.zeros(picture.shape[2:], dtype=torch.float64)
    for s in range(samples):
        numbers = _drawn(seed, s)
        place = float(torch.rand((), generator=numbers))
        line = _noisy(picture, noise, numbers) - start
        there = gradient(model, start + place * line, index, versus)
        total += _summed_products(line[0].tolist(), there) / samples
    return total


def guided_backprop(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, reduction: str = "max_abs"
) -> Tensor:
    """arXiv:1412.6806, section 3.4."""
    with _Relus(_Guided):
        return _reduced(gradient(model, picture, index, versus), reduction)


def deconvnet(
    model: nn.Module, picture: Tensor, index: int, versus: int | None = None, *, reduction: str = "max_abs"
) -> Tensor:
    """arXiv:1311.2901, section 2.1."""
    with _Relus(_Deconvnet):
        return _reduced(gradient(model, picture, index, versus), reduction)


def guided_gradcam(
    model: nn.Module,
    picture: Tensor,
    index: int,
    versus: int | None = None,
    *,
    layer: str,
    to_grid: cam.ToGrid | None = None,
) -> Tensor:
    """arXiv:1610.02391, section 3.2."""
    located = cam.gradcam(model, picture, index, versus, layer=layer, to_grid=to_grid).numpy()
    large = cam.bilinear(np.maximum(located, 0), picture.shape[2], picture.shape[3])
    return torch.from_numpy(large) * guided_backprop(model, picture, index, versus, reduction="signed_sum")


def gradient(model: nn.Module, picture: Tensor, index: int, versus: int | None) -> Volume:
    """Return dy / dx by a copy of the model in which nothing works in place."""
    model = copy.deepcopy(model).double().eval()
    with torch.inference_mode(mode=False), torch.enable_grad(), OutOfPlace():
        x = picture.detach().double().clone().requires_grad_()
        scores = model(x)
        y = scores[0, index] if versus is None else scores[0, index] - scores[0, versus]
        y.backward()
    assert x.grad is not None
    return x.grad[0].tolist()


class _Guided(torch.autograd.Function):
    """A clipped ReLU that passes back what is positive, where it let the input through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, most: float) -> Tensor:
        ctx.save_for_backward((x > 0) & (x < most))
        return x.clamp(0, most)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        (passed,) = ctx.saved_tensors
        (signal,) = signals
        return torch.where(passed & (signal > 0), signal, 0), None


class _Deconvnet(torch.autograd.Function):
    """A clipped ReLU that passes back what is positive."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, most: float) -> Tensor:
        return x.clamp(0, most)

    @staticmethod
    def backward(_ctx: Any, *signals: Tensor) -> tuple[Tensor, None]:
        return torch.where(signals[0] > 0, signals[0], 0), None


class _Relus(TorchFunctionMode):
    """Inside the `with`, ReLUs are these functions."""

    def __init__(self, relu: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.relu = relu

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.relu, torch.relu, Tensor.relu):
            return self.relu.apply(args[0], math.inf)
        if func is F.hardtanh and (kwargs["min_val"], kwargs["max_val"]) == (0.0, 6.0):  # nn.ReLU6 calls it
            return self.relu.apply(args[0], 6.0)
        return func(*args, **(kwargs or {}))


def _drawn(seed: int, sample: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + sample)


def _noisy(picture: Tensor, noise: float, numbers: torch.Generator) -> Tensor:
    values = picture.double().flatten().tolist()
    sigma = noise * (max(values) - min(values))
    return picture.double() + sigma * torch.randn(picture.shape[1:], generator=numbers).double()


def _each(function: Callable[..., float], *volumes: Volume) -> Volume:
    """Apply a function of numbers to each place of the volumes."""
    channels, height, width = len(volumes[0]), len(volumes[0][0]), len(volumes[0][0][0])
    return [
        [[function(*(volume[c][i][j] for volume in volumes)) for j in range(width)] for i in range(height)]
        for c in range(channels)
    ]


def _reduced(volume: Volume, reduction: str) -> Tensor:
    """Make one number of the channels of each place."""
    reduce = {"max_abs": lambda pixel: max(abs(value) for value in pixel), "signed_sum": sum}[reduction]
    channels, height, width = len(volume), len(volume[0]), len(volume[0][0])
    rows = [[reduce([volume[c][i][j] for c in range(channels)]) for j in range(width)] for i in range(height)]
    return torch.tensor(rows, dtype=torch.float64)


def _summed_products(one: Volume, other: Volume) -> Tensor:
    return _reduced(_each(lambda a, b: a * b, one, other), "signed_sum")
