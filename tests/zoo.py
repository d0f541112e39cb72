"""Small networks with one property each, and the model files that name them."""

import sys
import threading
import time
import weakref
from pathlib import Path

import torch
from torch import Tensor, nn

may_answer = threading.Event()
"""Set to let `Slow` answer."""
may_answer.set()
slow_is_running = threading.Event()
"""Set by `Slow` when it has begun."""


class Small(nn.Module):
    """Two convolutions, mean, linear head; 32 x 32 input."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, stride=2)
        self.second = nn.Conv2d(6, 8, 3, padding=1, stride=2)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        return self.head(x.mean((2, 3)))


class NanOnWhite(Small):
    """Answers NaN for bright pictures only, so that it passes the check at loading."""

    def forward(self, x: Tensor) -> Tensor:
        bright = (x.amin((1, 2, 3), keepdim=True) > 0.9)[:, :, 0, 0]
        return torch.where(bright, torch.nan, super().forward(x))


class AlwaysNan(Small):
    """Answers NaN to whatever it is shown, from its second layer on: one of its weights is damaged."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.second.weight[3, 2, 1, 1] = torch.nan


class Windows(Small):
    """Looks at its four quarters apart, as many rows as four pictures would be, and at heads, as attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Linear(6, 6)
        self.query = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()  # (N, 6, 16, 16)
        rows = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).reshape(-1, 64, 6)
        rows = self.window(rows)  # (4 N, 64, 6)
        heads = self.query(rows.reshape(len(x), 256, 2, 3).transpose(1, 2))  # (N, 2, 256, 3)
        return self.head(self.second(x + heads.mean((1, 2, 3)).reshape(-1, 1, 1, 1)).relu().mean((2, 3)))


class NanInside(Small):
    """Has NaN in its second layer for bright pictures, and an answer for all the same."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.amin((1, 2, 3), keepdim=True) > 0.9
        inner = self.second(torch.where(bright, torch.nan, self.first(x)))
        return self.head(inner.nan_to_num().relu().mean((2, 3)))


class Broken(Small):
    """Raises for bright pictures."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() > 0.9:
            raise KeyError("a bug of the network")
        return super().forward(x)


unfinished: list[weakref.ref[Tensor]] = []
"""What `TooLarge` had made when memory ran out."""


class TooLarge(Small):
    """Runs out of memory for bright pictures: the GPU's for white ones, the CPU's for others."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() > 0.7:
            activations = self.first(x)
            unfinished.append(weakref.ref(activations))
            if x.amin() > 0.9:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.99 GiB.")
            (activations.sum() * torch.empty(2**60)).sum()
        return super().forward(x)


def look_at(x: Tensor) -> None:
    """Ask for an answer that a stand-in has not: a traced copy would do nothing of what surrounds the call."""
    bool(x.sum() > 0)


class Slow(Small):
    """Waits for the test."""

    def forward(self, x: Tensor) -> Tensor:
        look_at(x)
        slow_is_running.set()
        may_answer.wait()
        return super().forward(x)


batches: list[int] = []
"""How many pictures each run of `Crowded` and `Poisonable` was of."""


class Crowded(Slow):
    """Has memory for three pictures at once."""

    def forward(self, x: Tensor) -> Tensor:
        batches.append(len(x))
        scores = super().forward(x)
        if len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.99 GiB.")
        return scores


class Poisonable(Slow):
    """Raises for a batch with a bright picture in it."""

    def forward(self, x: Tensor) -> Tensor:
        batches.append(len(x))
        scores = super().forward(x)
        if x.amin((1, 2, 3)).amax() > 0.9:
            raise KeyError("a bug of the network")
        return scores


class LosesDevice(Small):
    """Does to a bright picture what a GPU does whose assertion fails, and leaves a device that answers no more."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() > 0.9:
            from app import devices

            if x.amin() > 0.99:
                devices.answers = lambda device: False
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return super().forward(x)


may_load = threading.Event()
"""Set to let `SlowToLoad` be made."""
may_load.set()
loads: list[float] = []
"""When a `SlowToLoad` was made."""


class SlowToLoad(Small):
    """Waits for the test before it is made."""

    def __init__(self) -> None:
        loads.append(time.monotonic())
        may_load.wait()
        super().__init__()


class Hangs(Small):
    """Never comes back from a bright picture."""

    def forward(self, x: Tensor) -> Tensor:
        look_at(x)
        while x.amin() > 0.99:
            time.sleep(1)
        return super().forward(x)


class Stops(Small):
    """Never comes back from a bright picture, and lets no other thread run either."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() > 0.99:
            sys.setswitchinterval(10_000)
            while True:
                pass
        return super().forward(x)


class LeavesThread(Small):
    """Starts a thread, by a bright picture, that never ends and for which the interpreter's own end would wait."""

    def forward(self, x: Tensor) -> Tensor:
        look_at(x)
        if x.amin() > 0.99:
            threading.Thread(target=threading.Event().wait, daemon=False).start()
        return super().forward(x)


class Ravenous(Small):
    """Needs an exbibyte for a bright picture."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() > 0.99:
            torch.ones(2**58)
        return super().forward(x)


class Sleepy(Small):
    """Takes 20 ms for every run, however many pictures it is of."""

    def forward(self, x: Tensor) -> Tensor:
        look_at(x)
        time.sleep(0.02)
        return super().forward(x)


class NegativeOnly(nn.Module):
    """One channel that is positive everywhere and speaks against class 0: Grad-CAM finds no positive evidence."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 1, 1)
        nn.init.constant_(self.features.weight, 0.1)
        nn.init.constant_(self.features.bias, 5.0)

    def forward(self, x: Tensor) -> Tensor:
        evidence = self.features(x).mean((2, 3))
        return torch.cat([-evidence, -2 * evidence], dim=1)


class Branch(Small):
    """Answers a mask too, made last; the scores do not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x), "mask": self.mask(x)}


class Single(Small):
    """Takes one picture at a time."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(1, 3, *x.shape[2:]))


class NoDerivative(Small):
    """Changes in place what autograd kept for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        bounded = self.first(x).sigmoid()
        bounded.mul_(2)
        return self.head(self.second(bounded).mean((2, 3)))


class Quits(Small):
    """Calls sys.exit instead of being made."""

    def __init__(self) -> None:
        sys.exit(0)


class OneLogit(Small):
    """A binary head."""

    def __init__(self) -> None:
        super().__init__(classes=1)


_FILES = {
    "small": 'arch = "python:tests.zoo:Small"\nlabels = ["ant", "bee", "Bee", "cat"]',
    "nan": 'arch = "python:tests.zoo:NanOnWhite"',
    "always_nan": 'arch = "python:tests.zoo:AlwaysNan"',
    "nan_inside": 'arch = "python:tests.zoo:NanInside"',
    "windows": 'arch = "python:tests.zoo:Windows"',
    "large": 'arch = "python:tests.zoo:TooLarge"',
    "broken": 'arch = "python:tests.zoo:Broken"',
    "slow": 'arch = "python:tests.zoo:Slow"',
    "crowded": 'arch = "python:tests.zoo:Crowded"',
    "poisonable": 'arch = "python:tests.zoo:Poisonable"',
    "loses_device": 'arch = "python:tests.zoo:LosesDevice"',
    "slow_to_load": 'arch = "python:tests.zoo:SlowToLoad"',
    "hangs": 'arch = "python:tests.zoo:Hangs"',
    "stops": 'arch = "python:tests.zoo:Stops"',
    "leaves_thread": 'arch = "python:tests.zoo:LeavesThread"',
    "ravenous": 'arch = "python:tests.zoo:Ravenous"',
    "sleepy": 'arch = "python:tests.zoo:Sleepy"',
    "negative": 'arch = "python:tests.zoo:NegativeOnly"',
    "single": 'arch = "python:tests.zoo:Single"',
    "no_derivative": 'arch = "python:tests.zoo:NoDerivative"',
    "branch": 'arch = "python:tests.zoo:Branch"\noutput = "logits"',
    "quits": 'arch = "python:tests.zoo:Quits"',
    "binary": 'arch = "python:tests.zoo:OneLogit"\nhead = "binary"\nlabels = ["healthy", "ill"]',
}


def write_model_files(folder: Path) -> None:
    """Write one TOML file per network."""
    for name, text in _FILES.items():
        preprocess = "[preprocess]\ninput_size = 32\nmean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n"
        (folder / f"{name}.toml").write_text(f'{text}\nweights = "random"\n{preprocess}')
