"""Small networks with one property each, in a package such as an operator has."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """Convolution, mean, linear head: (N, channels, h, w) -> (N, classes)."""

    def __init__(self, classes: int = 2, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


class Flattens(nn.Module):
    """Flattens activations with `view`, which channels_last strides do not allow; 16 x 16 input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 16 * 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(x.shape[0], -1))


class OneRowTooMany(Tiny):
    """Answers one picture with two rows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat(2, 1)


class NotFinite(Tiny):
    """Answers NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.nan


class Raises(Tiny):
    """Fails with a text that names a folder of the server."""

    def forward(self, x: Tensor) -> Tensor:
        msg = "cannot open /srv/secret/table.bin"
        raise OSError(msg)


class Answers(nn.Module):
    """Wraps the scores of `Tiny` in a container: `kind` is tuple, dict, named, object, features or single."""

    def __init__(self, kind: str, classes: int = 2) -> None:
        super().__init__()
        self.kind = kind
        self.tiny = Tiny(classes)

    def forward(self, x: Tensor) -> object:
        scores = self.tiny(x)
        other = x.mean((2, 3))
        return {
            "tuple": (other, scores),
            "dict": {"embedding": other, "scores": scores, "name": "x"},
            "named": Named(other, scores),
            "object": Output(other, scores),
            "logits_last": {"embedding": other, "logits": scores},
            "map": self.tiny.conv(x),
            "single": scores[:, 0],
            "integers": scores.long(),
        }[self.kind]


class Named(NamedTuple):
    """A named tuple."""

    embedding: Tensor
    scores: Tensor


@dataclass
class Output:
    """A dataclass with `logits`."""

    embedding: Tensor
    logits: Tensor


class InsistsOnFloat32(Tiny):
    """Multiplies what it computed by a float32 matrix of its own making."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ torch.eye(2)


class Repeats(Tiny):
    """Runs one activation twice, and one convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.first = self.again = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.conv(x)))
        return self.head(self.relu(self.again(x)).mean((2, 3)))


def half() -> nn.Module:
    """Return a half-precision network."""
    return Tiny().half()


def wrapped_for_many_devices() -> nn.Module:
    """Return a network in `DataParallel`."""
    return nn.DataParallel(Tiny())


def wrapped_inside() -> nn.Module:
    """Return a network of which one part is in `DataParallel`, in `torch.compile`."""
    tiny = Tiny()
    tiny.conv = torch.compile(nn.DataParallel(tiny.conv))  # type: ignore[assignment]
    return tiny


def compiled() -> nn.Module:
    """Return a network that torch.compile wraps, with one part wrapped too and one compiled in place."""
    tiny = Tiny()
    tiny.conv = torch.compile(tiny.conv)  # type: ignore[assignment]
    tiny.head.compile()
    return torch.compile(tiny)  # type: ignore[return-value]


def lazy() -> nn.Module:
    """Return a network whose head has no shape yet."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))


def fails(**_options: object) -> nn.Module:
    """Raise."""
    msg = "no /srv/secret/config.yaml"
    raise FileNotFoundError(msg)


def no_network() -> object:
    """Return something else."""
    return {"not": "a network"}


NOT_CALLABLE = 3
