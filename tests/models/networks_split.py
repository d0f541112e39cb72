"""Networks that a copy of their first part could easily get wrong; 16 x 16 input, the layer is called `layer`."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import Tensor, nn


class Net(nn.Module):
    """A convolution with a batch norm, what the subclass does, the layer, and a head that adds `x` to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.layer = nn.Conv2d(6, 6, 1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 4)

    def first(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))

    def middle(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.middle(x)
        out = self.layer(x)
        out += x
        return self.head(self.relu(out).mean((2, 3)))


class ConvTwice(Net):
    """One convolution with two batch norms."""

    def middle(self, x: Tensor) -> Tensor:
        return self.bn(self.conv2(self.bn2(self.conv2(x)).relu()))


class ConvSeen(Net):
    """The convolution's output is used beside its batch norm."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.conv2(x)
        return self.bn2(x) * x.sigmoid()


class Leaky(nn.Module):
    """Hands on a part of what is negative; it cannot be traced."""

    def forward(self, x: Tensor, part: float) -> Tensor:
        return F.leaky_relu(x, part) if x.sum() < torch.inf else x


class CalledRelu(Net):
    """A module whose name is that of a method, and which does something else."""

    def __init__(self) -> None:
        super().__init__()
        self.relu_ = Leaky()

    def middle(self, x: Tensor) -> Tensor:
        return self.relu_(self.bn2(self.conv2(x)), 0.5)


class ActivationSeen(Net):
    """What the in-place ReLU changes is used by another name too."""

    def middle(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(x))
        view = out.flatten(2)
        self.relu(out)
        return view.reshape(out.shape) + out


class Sum(Net):
    """A residual sum, however it is written, with the ReLU behind it."""

    how: Callable[[Tensor, Tensor], Tensor] = staticmethod(torch.add)

    def middle(self, x: Tensor) -> Tensor:
        return F.relu(self.how(self.bn2(self.conv2(x)), x), inplace=True)


class SumInPlace(Sum):
    how = staticmethod(operator.iadd)


class SumMethod(Sum):
    how = staticmethod(lambda out, x: x + out)


class SumBounded(Net):
    """An activation behind the sum that oneDNN does not take there."""

    def __init__(self) -> None:
        super().__init__()
        self.relu6 = nn.ReLU6()

    def middle(self, x: Tensor) -> Tensor:
        return self.relu6(self.bn2(self.conv2(x)) + x)


class SumIntoOther(Net):
    """The sum is written into the other tensor, which goes on under its old name; a graph of fx makes it a new one."""

    def middle(self, x: Tensor) -> Tensor:
        y = before = x * 2
        y += self.bn2(self.conv2(x))
        return y * before


class SumOfItself(Net):
    def middle(self, x: Tensor) -> Tensor:
        x = self.bn2(self.conv2(x))
        return x + x


class SumOfOneCell(Net):
    """What is added has another shape."""

    def middle(self, x: Tensor) -> Tensor:
        cell = x.mean((2, 3), keepdim=True)
        return self.bn2(self.conv2(x)) + cell


class SumLater(Net):
    """Between convolution and sum the other tensor changes in place."""

    def middle(self, x: Tensor) -> Tensor:
        out = self.conv2(x)
        x.mul_(3)
        return out + x


class Activated(Net):
    """timm's batch norm, with each activation that can be fused and one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        acts = (nn.ReLU6, nn.Hardswish, nn.SiLU, nn.LeakyReLU)
        self.steps = nn.Sequential(*(nn.Sequential(nn.Conv2d(6, 6, 3), BatchNormAct2d(6, act_layer=a)) for a in acts))
        self.last = BatchNormAct2d(6, apply_act=False)

    def middle(self, x: Tensor) -> Tensor:
        x = self.steps(x)
        return self.last(self.conv2(x)) + x


class Same(Net):
    """TensorFlow's padding, uneven for even sizes and strides, on odd sizes, and dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            Conv2dSame(6, 6, 3, stride=2, groups=6), nn.BatchNorm2d(6), nn.ReLU6(),
            Conv2dSame(6, 6, (2, 5), stride=(1, 2)), nn.BatchNorm2d(6), nn.ReLU6(),
            Conv2dSame(6, 6, 2, dilation=3), nn.BatchNorm2d(6),
        )  # fmt: skip

    def middle(self, x: Tensor) -> Tensor:
        return self.steps(x[..., :15])


class Reflected(Net):
    """Another padding mode, and a word for the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding="same", bias=False)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")


class Standardised(Net):
    """A convolution that is none: it uses its weights in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2 = _Standardised(6, 6, 3, padding=1)


class _Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight / self.weight.std(), self.bias, padding=1)


class NoStatistics(Net):
    """The second batch norm has no statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bn2 = nn.BatchNorm2d(6, track_running_stats=False)


class Hooked(Net):
    """Its author changes what a convolution returns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2.register_forward_hook(lambda _module, _args, output: output * 2)


class Parametrised(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.conv2)


class Branching(Net):
    """A part whose way depends on the size, and which is used twice, so that its weights are met again."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = _Branching()

    def middle(self, x: Tensor) -> Tensor:
        return self.steps(self.steps(self.bn2(self.conv2(x))))


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(6, 6, 1), nn.Parameter(torch.ones(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.scale
        return x.tanh() if x.shape[2] > 8 else x


class NoGradBehind(Net):
    """Behind the layer a part is cut out of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = _NoGrad()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(self.middle(self.first(x)))
        return self.head((out * self.gate(out)).mean((2, 3)))


class _NoGrad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return x.sigmoid()


class Optional(Net):
    """Takes more than a picture."""

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0) -> Tensor:
        if mask is not None:
            x = x * mask
        return super().forward(x * scale)


class Answers(Net):
    """Answers several things; the second does not depend on the layer."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.first(x), "logits": super().forward(x)}


class Constant(Net):
    """Makes a tensor of its own on the way."""

    def middle(self, x: Tensor) -> Tensor:
        return super().middle(x) + torch.arange(16.0, dtype=torch.float64).to(x.dtype)


class Nested(Net):
    """The layer is a part with convolutions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))


class InPlaceLayer(Net):
    """The layer changes its input, which is used behind it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU(inplace=True)


class LayerTwice(Net):
    def middle(self, x: Tensor) -> Tensor:
        return self.layer(self.bn2(self.conv2(x)))


class LayerHidden(Net):
    """The layer is inside something that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.amax() > 0 else -x)


class Pair(Net):
    """The layer returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Pair()

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.layer(self.middle(self.first(x)))
        return self.head((one + other).mean((2, 3)))


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu(), x.tanh()


class Unlisted(Net):
    """Calls a module that is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = (nn.ReLU(),)

    def middle(self, x: Tensor) -> Tensor:
        return self.hidden[0](super().middle(x))


class Remembers(Net):
    """Keeps what it saw last."""

    def middle(self, x: Tensor) -> Tensor:
        self.seen = super().middle(x)
        return self.seen


class PerBatch(Net):
    """Its author has written the number of the pictures down."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(1, 3, 16, 16))


class Unfoldable(Net):
    """Has nothing that can be folded."""

    def first(self, x: Tensor) -> Tensor:
        return self.conv(x).tanh()

    def middle(self, x: Tensor) -> Tensor:
        return x


class Shift(nn.Module):
    """A module of the author's own that is nothing but a few calls."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 - 0.5


class Around(Net):
    """The layer is within a part."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential()
        self.trunk.add_module("layer", self.layer)
        del self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.middle(self.first(x))).mean((2, 3)))


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-1e6, 1e6)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class ClippedBehind(Net):
    """Hands on its very input behind the layer, but not every gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Clip.apply(self.layer(self.middle(self.first(x)))).mean((2, 3)))


class RoundedBehind(Net):
    """Rounds behind the layer, and lets the gradient pass."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Round.apply(self.layer(self.middle(self.first(x)))).mean((2, 3)))


class _Rounding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Round.apply(x)


class RoundedInside(Net):
    """Parts before and behind the layer do so."""

    def __init__(self) -> None:
        super().__init__()
        self.rounding = _Rounding()

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.rounding(self.middle(self.first(x))))
        return self.head(self.rounding(x).mean((2, 3)))


RIGHT = (
    Net, ConvTwice, ConvSeen, ActivationSeen, Sum, SumInPlace, SumBounded, SumMethod, SumOfItself, SumOfOneCell,
    SumLater, Activated, Same, Reflected, Standardised, NoStatistics, Hooked, Parametrised, Branching, NoGradBehind,
    Optional, Answers, Constant, Nested, InPlaceLayer, CalledRelu,
)  # fmt: skip
"""Those that have a fast way, which must be right."""


class InfiniteOnWhite(nn.Module):
    """Divides by zero inside for bright pictures; a sum with a shortcut and a bounded activation come after it."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, *, shortcut: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.act, self.head = activation(), nn.Linear(8, 4)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        h = h / torch.where(x.mean((1, 2, 3), keepdim=True) > 0.9, 0.0, 1.0)
        z = self.second(h)
        z = self.act(z + h if self.shortcut else z)
        return self.head(z.mean((2, 3)))
