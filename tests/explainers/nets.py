"""Small seeded networks, one for each shape of network that matters, with their target layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5
"""The number of classes of each network here."""


def seeded(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill parameters and buffers with seeded numbers that keep signals near 1; float64, eval, frozen."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval().requires_grad_(requires_grad=False)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif tensor.dim() > 1:
            fan_in = tensor[0].numel()
            tensor.normal_(0.0, (2 / fan_in) ** 0.5, generator=generator)
        elif name.endswith("weight"):
            tensor.uniform_(0.5, 1.5, generator=generator)
        else:
            tensor.normal_(0.0, 0.3, generator=generator)
    return module


def pictures(count: int, height: int, width: int, *, seed: int = 0, channels: int = 3) -> Tensor:
    """Return `(count, channels, height, width)` float64, standard normal."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(count, channels, height, width, dtype=torch.float64, generator=generator)


class Head(nn.Module):
    """Global average, then linear."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))


def plain(*, inplace: bool) -> nn.Module:
    """Two convolutions; the target is the second, before its ReLU."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(inplace=inplace),
        nn.MaxPool2d(2),
        Head(8),
    )


def strided(*, inplace: bool) -> nn.Module:
    """Strides, dilation and a large kernel; the target is the first convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 5, 5, stride=2, padding=1),
        nn.SiLU(inplace=inplace),
        nn.Conv2d(5, 7, 3, stride=(1, 2), padding=2, dilation=2),
        nn.Hardswish(inplace=inplace),
        nn.AdaptiveAvgPool2d((2, 2)),
        nn.Flatten(),
        nn.Linear(28, CLASSES),
    )


def normed(*, inplace: bool) -> nn.Module:
    """BatchNorm with statistics and scales that matter; the target is the second BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU6(inplace=inplace),
        nn.Conv2d(6, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=inplace),
        Head(4),
    )


class Residual(nn.Module):
    """`out += identity` behind the target layer `bn2`, as in a ResNet."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(6)
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        identity = self.stem(x)
        out = F.relu(self.bn1(self.conv1(identity)), inplace=self.inplace)
        out = self.bn2(self.conv2(out))
        if self.inplace:
            out += identity
        else:
            out = out + identity
        return self.head(F.relu(out, inplace=self.inplace))


def depthwise(*, inplace: bool) -> nn.Module:
    """A depthwise and a pointwise convolution; the target is the depthwise one."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 1),
        nn.Hardswish(inplace=inplace),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(6, 8, 1),
        nn.SiLU(inplace=inplace),
        Head(8),
    )


class Tokens(nn.Module):
    """One transformer block over a class token and 3 x 2 patches; only the class token feeds the head."""

    WIDTH = 8
    GRID = (3, 2)

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, self.WIDTH, 3, stride=3)
        self.cls = nn.Parameter(torch.empty(1, 1, self.WIDTH))
        self.norm1 = nn.LayerNorm(self.WIDTH)
        self.qkv = nn.Linear(self.WIDTH, 3 * self.WIDTH)
        self.norm2 = nn.LayerNorm(self.WIDTH)
        self.head = nn.Linear(self.WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), patches], dim=1)
        q, k, v = self.qkv(self.norm1(tokens)).chunk(3, dim=-1)
        tokens = tokens + (q @ k.transpose(1, 2) / self.WIDTH**0.5).softmax(dim=-1) @ v
        return self.head(self.norm2(tokens)[:, 0])


def tokens_to_grid(tokens: Tensor) -> Tensor:
    """`(N, 1 + 3 * 2, C)` to `(N, C, 3, 2)`."""
    return tokens[:, 1:].transpose(1, 2).reshape(len(tokens), -1, *Tokens.GRID)


class ChannelsLast(nn.Module):
    """A layer that works on `(N, h, w, C)`, as in Swin or ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.LayerNorm(6)
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).relu())


def last_to_grid(features: Tensor) -> Tensor:
    """`(N, h, w, C)` to `(N, C, h, w)`."""
    return features.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Case:
    """A network as it is written in the wild, `build()`, and its layer to explain."""

    name: str
    factory: Callable[..., nn.Module]
    layer: str
    to_grid: Callable[[Tensor], Tensor] | None = None
    has_inplace: bool = True
    has_relu: bool = True

    def build(self, *, inplace: bool = True) -> nn.Module:
        """Return the seeded network, with or without in-place operations."""
        return seeded(self.factory(inplace=inplace) if self.has_inplace else self.factory())

    def pictures(self, count: int, *, seed: int = 0) -> Tensor:
        """Return pictures of a size that is neither square nor a multiple of the strides."""
        return pictures(count, 9, 7, seed=seed)


CASES = (
    Case("plain", plain, "2"),
    Case("strided", strided, "0", has_relu=False),
    Case("normed", normed, "4"),
    Case("residual", Residual, "bn2"),
    Case("depthwise", depthwise, "2"),
    Case("tokens", Tokens, "norm1", tokens_to_grid, has_inplace=False, has_relu=False),
    Case("channels_last", ChannelsLast, "norm", last_to_grid, has_inplace=False),
)
PLAIN = CASES[0]
