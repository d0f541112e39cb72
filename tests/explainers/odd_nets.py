"""Modules that behave badly, each in one way, and some that are merely unusual."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.explainers.nets import PLAIN, Head, seeded


def sequential(*modules: nn.Module, seed: int = 0) -> nn.Module:
    """Return the modules one after the other, seeded."""
    return seeded(nn.Sequential(*modules), seed)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Shared(nn.Module):
    """One ReLU, used twice."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), Head(4)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv2(self.relu(self.conv1(x)))))


class Wary(nn.Module):
    """A network with no memory for more than some pictures at once, which notes how many came."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        self.net, self.most = PLAIN.build(), most
        self.batches: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.batches.append(len(x))
        return self.net(x)


class Roots(nn.Module):
    """The square root of the absolute value: finite everywhere, its slope at zero is not."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().sqrt()


class Cut(nn.Module):
    """Hands its input on without its history."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class UnderMode(nn.Module):
    """Runs a network inside `torch.no_grad()` or `torch.inference_mode()`, as frozen backbones often are."""

    def __init__(self, mode: Callable[[], Any], net: nn.Module) -> None:
        super().__init__()
        self.mode, self.net = mode, net

    def forward(self, x: Tensor) -> Tensor:
        with self.mode():
            return self.net(x)


def breaks_forward(_x: Tensor) -> Tensor:
    raise ArithmeticError("forward failed")


class BreaksBackward(torch.autograd.Function):
    """Fails in the backward pass."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> Tensor:
        raise ArithmeticError("backward failed")


class RefusesForward(nn.Conv2d):
    """A module that takes no forward hook."""

    def register_forward_hook(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("no forward hooks here")


class RefusesBackward(nn.Conv2d):
    """A module that takes no backward hook."""

    def register_full_backward_hook(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("no backward hooks here")
