"""Whether the cells of a layer's grid lie where the picture's parts do: observed, not assumed.

Shapes cannot tell: Hiera's tokens are not in rows, and an attention's output may have forgotten where it comes from.
So the network sees two pictures of noise, A and B, and two mixes of them: the left half of A beside the right half of
B, and the upper half of A above the lower half of B. Where a layer's grid is in order, each cell of a mix is nearer
to what that half's own picture gave there than to what the other one gave.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.layers import LayerInfo

_ENOUGH = 0.75  # of the cells: midway between all of them and the half that chance alone puts right
_IN_ORDER = 1.0  # maps: their axes are the picture's, however much a deep network has mixed what lies on them


def mixes(channels: int, size: tuple[int, int]) -> Tensor:
    """Return A, B and their mixes, (4, C, h, w) float32 noise of unit variance, the same numbers each time."""
    height, width = size
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn((2, channels, height, width), generator=generator)
    across, down = a.clone(), a.clone()
    across[:, :, width // 2 :] = b[:, :, width // 2 :]
    down[:, height // 2 :] = b[:, height // 2 :]
    return torch.stack([a, b, across, down])


class OrderCheck:
    """Call it with each module that finishes in one forward pass of `mixes`: `check(name, module, output)`.

    `layers` are those of a pass before. It keeps no tensor.
    """

    def __init__(self, layers: Iterable[LayerInfo]) -> None:
        self._layers = {info.name: info for info in layers}
        self._shares: dict[str, float] = {}

    def __call__(self, name: str, _module: nn.Module, output: object) -> None:
        """Note which share of the output's cells is in place; the last call counts."""
        info = self._layers.get(name)
        if info is None or info.layout is None or info.shape is None or not isinstance(output, Tensor):
            return
        if tuple(output.shape) != (4, *info.shape[1:]):
            self._shares[name] = 0.0  # not one row per picture
        elif info.layout.kind == "tokens":
            self._shares[name] = share_in_place(info.layout.to_grid(output))
        else:
            self._shares[name] = _IN_ORDER

    def passes(self, name: str) -> bool:
        """Whether the layer's grid was seen to be in order; without any forward pass all are believed to be."""
        return not self._shares or self._shares.get(name, 0.0) >= _ENOUGH

    @property
    def layers(self) -> list[LayerInfo]:
        """The layers as before, but for tokens whose place was a wrong guess.

        One layer with as many tokens in order speaks for all of them: an attention's output may have mixed them.
        """
        tokens = [info for info in self._layers.values() if info.layout and info.layout.kind == "tokens"]
        known = {info.layout for info in tokens if self.passes(info.name)}
        refuted = {info.name for info in tokens if info.layout not in known}
        return [replace(info, layout=None) if info.name in refuted else info for info in self._layers.values()]


def share_in_place(grid: Tensor) -> float:
    """Return the share of cells of the mixes' halves that are nearest to their own picture's, on the worse axis.

    `grid` is what `mixes` gave, (4, C, h, w). What all cells of a picture have in common is taken off first: a
    network that looks at all of the picture may make more of that than of the place. Cells on the seam do not
    count; one cell alone is always in place.
    """
    grid = grid.float()
    a, b, across, down = grid - grid.mean((2, 3), keepdim=True)
    return min(_share(a, b, across), _share(a.mT, b.mT, down.mT))


def _share(a: Tensor, b: Tensor, mix: Tensor) -> float:
    """Return the share of cells that are right where the left half of `mix` (C, h, w) is A's and the right half B's."""
    to_a, to_b = ((mix - other).square().sum(0) for other in (a, b))
    width = mix.shape[2]
    half = width // 2
    right = torch.cat([(to_a < to_b)[:, :half], (to_b < to_a)[:, width - half :]], dim=1)
    return right.float().mean().item() if half else 1.0
