"""Networks whose authors changed the gradient or the features: with functions of their own, and with hooks.

Each is a small convolutional network with a batch norm to fold; the layer to explain is `layer`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.explainers.nets import Head, Tokens, seeded

BOUND = 0.02
"""Smaller than most gradients here, so that clipping shows."""


class Clip(torch.autograd.Function):
    """Hands on its very input, and clips the gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-BOUND, BOUND)


class StraightThrough(torch.autograd.Function):
    """Rounds, and lets the gradient pass as if it had not."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Reverse(torch.autograd.Function):
    """Turns the gradient round, as domain adaptation does."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return -0.5 * gradients[0]


def clip_by_hook(x: Tensor) -> Tensor:
    if x.requires_grad:  # torch refuses hooks on others
        x.register_hook(lambda gradient: gradient.clamp(-BOUND, BOUND))
    return x


def unchanged(x: Tensor) -> Tensor:
    return x


class Net(nn.Module):
    """Something foreign stands before the layer, and something behind it."""

    def __init__(
        self, before: Callable[[Tensor], Tensor] = unchanged, behind: Callable[[Tensor], Tensor] = unchanged
    ) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
        self.layer = nn.Conv2d(6, 8, 3, padding=1)
        self.block = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
        self.head = Head(8)
        self.before, self.behind = before, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.behind(self.features(x))))

    def features(self, x: Tensor) -> Tensor:
        return self.layer(self.before(self.relu(self.bn(self.conv(x)))))


def plain() -> nn.Module:
    return seeded(Net())


def straight_through() -> nn.Module:
    return seeded(Net(StraightThrough.apply, StraightThrough.apply))


def clipped() -> nn.Module:
    return seeded(Net(Clip.apply, Clip.apply))


def reversed_() -> nn.Module:
    return seeded(Net(Reverse.apply, Reverse.apply))


def clipped_by_tensor_hooks() -> nn.Module:
    return seeded(Net(clip_by_hook, clip_by_hook))


def _clip(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if gradient is None else gradient.clamp(-BOUND, BOUND) for gradient in gradients)


def clipped_by_backward_hooks() -> nn.Module:
    """On modules before and behind the layer, one of them with parts."""
    net = plain()
    for part in (net.bn, net.relu, net.block):
        part.register_full_backward_hook(lambda _module, grad_input, _grad_output: _clip(grad_input))
    return net


def clipped_at_the_layer() -> nn.Module:
    """By a hook that counts on there being a gradient, as hooks do."""
    net = plain()
    net.layer.register_full_backward_hook(lambda _m, grad_input, _o: (grad_input[0].clamp(-BOUND, BOUND),))
    return net


def clipped_by_backward_pre_hooks() -> nn.Module:
    net = plain()
    for part in (net.bn, net.layer, net.block):
        part.register_full_backward_pre_hook(lambda _module, grad_output: _clip(grad_output))
    return net


def changed_by_forward_hooks() -> nn.Module:
    """Features before, at and behind the layer."""
    net = plain()
    net.relu.register_forward_pre_hook(lambda _module, args: (args[0] + 0.3,))
    net.relu.register_forward_hook(lambda _module, _args, output: output * 1.5)
    net.layer.register_forward_hook(lambda _module, _args, output: output - 0.2)
    net.block.register_forward_hook(lambda _module, _args, output: output.square())
    return net


def clipped_by_norm() -> nn.Module:
    """A hook that looks at numbers, which gradients that are carried together do not have."""

    def at_most(gradient: Tensor) -> Tensor:
        norm = float(gradient.norm())
        return gradient * min(1.0, 0.1 / norm) if norm else gradient

    def hooked(x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(at_most)
        return x

    return seeded(Net(hooked, hooked))


def rarely_clipped() -> nn.Module:
    """Clips gradients that only pictures have whose scores are large; no picture of noise has such scores."""
    net = seeded(Net(behind=Clip.apply))
    head = net.head
    net.head = nn.Sequential(head, Cube())
    return net.float()


class Cube(nn.Module):
    """Its slope grows with the square of the score."""

    def forward(self, x: Tensor) -> Tensor:
        return (0.1 * x) ** 3


def clipped_transformer() -> nn.Module:
    """One transformer block with hooks of every kind around its attention."""
    net = seeded(Tokens())
    net.norm2.register_forward_hook(lambda _module, _args, output: Clip.apply(output))
    net.norm1.register_forward_hook(lambda _module, _args, output: clip_by_hook(output))
    net.qkv.register_full_backward_hook(lambda _module, grad_input, _grad_output: _clip(grad_input))
    return net


FOREIGN = (
    straight_through,
    clipped,
    reversed_,
    clipped_by_tensor_hooks,
    clipped_by_backward_hooks,
    clipped_at_the_layer,
    clipped_by_backward_pre_hooks,
    changed_by_forward_hooks,
    clipped_by_norm,
)
"""In float64; all but `plain` answer or explain otherwise than it."""
