"""Networks built to have one illness each, and what is needed to make them ill."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


def chain(depth: int, activation: Callable[[], nn.Module], gain: float, *, width: int = 32) -> nn.Module:
    """`depth` convolutions with activations, weights of standard deviation gain * sqrt(2 / fan_in), zero biases.

    With gain 1 (He et al. 2015) a ReLU network keeps its signal, forward and backward.
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(depth):
        convolution = nn.Conv2d(width if k else 3, width, 3, padding=1)
        nn.init.kaiming_normal_(convolution.weight)
        convolution.weight.data.mul_(gain)
        nn.init.zeros_(convolution.bias)
        layers += [convolution, activation()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def pictures(count: int = 2, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(7))


def with_dead_relu(*, inplace: bool = False) -> nn.Module:
    """The second ReLU (module 3) is negative everywhere: the bias before it is far below zero; later ones are above."""
    net = chain(4, lambda: nn.ReLU(inplace=inplace), 1.0)
    nn.init.constant_(net[2].bias, -1e3)
    for k in (4, 6):
        nn.init.constant_(net[k].bias, 1.0)
    return net


class Residual(nn.Module):
    """A chain with a dead ReLU inside a shortcut: what is before it still learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch, self.relu = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ReLU()
        self.head = nn.Linear(8, CLASSES)
        nn.init.constant_(self.branch.bias, -1e3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.relu(self.branch(x))).mean(dim=(2, 3)))


class Spoils(nn.Module):
    """Puts NaN or infinity somewhere: into what it is given, into its gradient, or nowhere."""

    def __init__(self, forward: float = 1.0, backward: float = 1.0) -> None:
        super().__init__()
        self.factors = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        return Spoil.apply(x, *self.factors)


class Spoil(torch.autograd.Function):
    """Multiplies the first number by a factor, going forward and going back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.factor = backward
        factors = torch.ones_like(x)
        factors.view(-1)[0] = forward
        return x * factors

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        factors = torch.ones_like(gradient)
        factors.view(-1)[0] = ctx.factor
        return gradient * factors, None, None


class Branches(nn.Module):
    """Two ways to the head; `cut` says what becomes of the second."""

    def __init__(self, cut: Callable[["Branches", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.side, self.relu = nn.Conv2d(8, 8, 1), nn.ReLU()
        self.head = nn.Linear(8, CLASSES)
        self.cut = cut

    def branch(self, x: Tensor) -> Tensor:
        return self.relu(self.side(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.cut(self, x)).mean(dim=(2, 3)))


def detached(net: Branches, x: Tensor) -> Tensor:
    return net.branch(x).detach()


def without_gradient(net: Branches, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net.branch(x)


def unused(net: Branches, x: Tensor) -> Tensor:
    net.branch(x)
    return x


class ReZero(nn.Module):
    """A block whose answer is multiplied by a parameter that starts at zero (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, CLASSES)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.alpha * F.relu(self.block(x))).mean(dim=(2, 3)))


class FunctionalDead(nn.Module):
    """A ReLU that is no module and gives zero everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(self.first(x)) - 1e3).mean(dim=(2, 3)))
