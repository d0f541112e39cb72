"""Networks with normalisation layers, of which some let the pictures of a batch see each other."""

from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.networks import Tiny


class Normed(Tiny):
    """`Tiny` with a normalisation behind its convolution."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def with_norm(name: str) -> nn.Module:
    """Return a network with one normalisation layer."""
    norms = {
        "batch": nn.BatchNorm2d(4),
        "batch, no statistics": nn.BatchNorm2d(4, track_running_stats=False),
        "batch, no weights": nn.BatchNorm2d(4, affine=False),
        "group": nn.GroupNorm(2, 4),
        "instance": nn.InstanceNorm2d(4),
        "instance, with statistics": nn.InstanceNorm2d(4, track_running_stats=True),
        "local": nn.LocalResponseNorm(2),
    }
    return Normed(norms[name])


def training() -> nn.Module:
    """Return a network as training leaves it."""
    return nn.Sequential(with_norm("batch"), nn.Dropout()).train()


class Stubborn(nn.BatchNorm2d):
    """Stays in training mode, as people write it to adapt to new pictures."""

    def train(self, _mode: bool = True) -> Self:
        return super().train(mode=True)


def stubborn() -> nn.Module:
    """Return a network with such a part."""
    return Normed(Stubborn(4))


class StubbornNetwork(Tiny):
    """Stays in training mode as a whole."""

    def train(self, _mode: bool = True) -> Self:
        return super().train(mode=True)


class TrainsInForward(Normed):
    """Calls `train` while it answers, and may call `eval` before it returns."""

    def __init__(self, back: bool = False, spatial: bool = True) -> None:
        super().__init__(nn.BatchNorm2d(4))
        self.back = back
        self.spatial = spatial

    def forward(self, x: Tensor) -> Tensor:
        self.train()
        y = super().forward(x if self.spatial else x[:, :, :1, :1])
        return self.eval() and y if self.back else y


class Functional(Tiny):
    """Normalises by a function, with the batch's statistics."""

    def forward(self, x: Tensor) -> Tensor:
        normed = F.batch_norm(self.conv(x), None, None, training=True)
        return self.head(normed.relu().mean((2, 3)))


class NormsItsWeights(Tiny):
    """Standardises its weights with `batch_norm`, as networks without normalisation layers do."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.conv.weight.reshape(1, 4, -1), None, None, training=True)
        return self.head(F.conv2d(x, weight.reshape_as(self.conv.weight), padding=1).relu().mean((2, 3)))


class NormsEachPicture(Tiny):
    """Folds the batch into the channels, so that `batch_norm` sees each picture alone."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = F.batch_norm(y.reshape(1, -1, *y.shape[2:]), None, None, training=True).reshape_as(y)
        return self.head(y.relu().mean((2, 3)))


class Contrasts(Tiny):
    """Takes off what the batch has in common, without any normalisation layer."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu().mean((2, 3))
        return self.head(features - 0.9 * features.mean(0))


class OnePictureOnly(Functional):
    """Takes no batch, so nothing can be beside a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(1, 3, 16, 16))
