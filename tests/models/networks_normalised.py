"""Networks that end in a softmax or a sigmoid, written in the ways people write it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.networks import Tiny


class Ends(nn.Module):
    """`Tiny`, and behind it what `end` names."""

    def __init__(self, end: str, classes: int = 3) -> None:
        super().__init__()
        self.tiny = Tiny(classes)
        self.end = ENDS[end]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.tiny(x))


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda logits: logits,
    "F.softmax": lambda logits: F.softmax(logits, dim=1),
    "F.softmax of -1": lambda logits: F.softmax(logits, -1),
    "torch.softmax": lambda logits: torch.softmax(logits, 1),
    "Tensor.softmax": lambda logits: logits.softmax(1),
    "torch.special.softmax": lambda logits: torch.special.softmax(logits, 1),
    "by hand": lambda logits: logits.exp() / logits.exp().sum(1, keepdim=True),
    "F.log_softmax": lambda logits: F.log_softmax(logits, dim=1),
    "Tensor.log_softmax": lambda logits: logits.log_softmax(1),
    "log by hand": lambda logits: logits - logits.logsumexp(1, keepdim=True),
    "torch.sigmoid": torch.sigmoid,
    "Tensor.sigmoid": lambda logits: logits.sigmoid(),
    "Tensor.sigmoid_": lambda logits: logits.sigmoid_(),
    "F.sigmoid": F.sigmoid,
    "sigmoid squeezed": lambda logits: logits.sigmoid().squeeze(1),
    "half the softmax": lambda logits: logits.softmax(1) / 2,
    "softmax of the batch": lambda logits: logits.softmax(0),
}


def sequential(end: str, classes: int = 3) -> nn.Module:
    """Return `Tiny` and a module that normalises, as most people write it."""
    ends: dict[str, nn.Module] = {
        "nothing": nn.Identity(),
        "Softmax": nn.Softmax(dim=1),
        "LogSoftmax": nn.LogSoftmax(dim=-1),
        "Sigmoid": nn.Sigmoid(),
        "Softmax, flat": nn.Sequential(nn.Unflatten(1, (classes, 1, 1)), nn.Softmax(dim=1), nn.Flatten()),
    }
    return nn.Sequential(Tiny(classes), ends[end])


class Shares(nn.Module):
    """Uses one softmax for an attention over positions and for its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        map_ = self.conv(x)
        attention = self.softmax(map_.sum(1).flatten(1))
        return self.softmax(self.head((map_.flatten(2) * attention[:, None]).sum(2)))


class NamesTwice(nn.Module):
    """Holds one softmax under two names and runs it once."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = Tiny(3)
        self.end = nn.Softmax(dim=1)
        self.heads = nn.ModuleList([self.end])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](self.tiny(x))


class AsksItsSoftmax(nn.Module):
    """Reads an attribute that an identity has not."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = Tiny(3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        assert self.softmax.dim == 1
        return self.softmax(self.tiny(x))


class HidesItsSoftmax(nn.Module):
    """Keeps the softmax where nobody can take it out."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = Tiny(3)
        self.softmax = nn.Softmax(dim=1)
        self.hidden = [self.softmax]

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden[0](self.tiny(x))


class GivesBoth(nn.Module):
    """Returns embedding and probabilities in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = Tiny(3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"embedding": x.mean((2, 3)), "probabilities": self.softmax(self.tiny(x))}


class Constant(nn.Module):
    """Answers 0.25 and 0.75 whatever it sees, and no softmax is to blame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3)) * 0 + torch.tensor([0.25, 0.75])


class SelfSure(nn.Module):
    """Logits so far apart that float32 rounds the probabilities to 0 and 1."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.tiny = Tiny(3)
        self.end = ENDS[end]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.tiny(x) + torch.tensor([300.0, 0.0, -300.0]))


class Counts(Tiny):
    """Counts its forward passes."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)
