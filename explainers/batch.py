"""What a method is given, and what it gives back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from explainers.errors import LayerNotSpatial
from explainers.gradients import Scored
from explainers.subject import Subject
from explainers.targets import Target
from explainers.work import Work

ToGrid = Callable[[Tensor], Tensor]
"""Turns a layer's output into `(N, C, h, w)` by a differentiable rearrangement (tokens, channels last)."""


@dataclass(frozen=True)
class Batch:
    """Pictures to explain together: `inputs` `(N, C, H, W)` on the model's device, and each one's targets.

    `to_grid` says how the output of a layer becomes a grid where it is none, `token_grids` how so many tokens do.
    """

    subject: Subject
    inputs: Tensor
    targets: Sequence[Sequence[Target]]
    layers: Sequence[str] = ()
    to_grid: Mapping[str, ToGrid] = field(default_factory=dict)
    token_grids: Mapping[int, ToGrid] = field(default_factory=dict)
    work: Work = field(default_factory=Work)

    def score(self, inputs: Tensor) -> Scored:
        """Run the model once and resolve the targets. A copy is passed on: some models write into their input."""
        return Scored(self.subject.scores(inputs.clone()), self.targets)

    def grid(self, layer: str, tensor: Tensor) -> Tensor:
        """Return a layer's output, or its gradient, as `(N, C, h, w)` float32 (float64 stays)."""
        grid = self.to_grid[layer](tensor) if layer in self.to_grid else tensor
        if grid.dim() != 4:
            msg = (
                f"Layer {layer!r} returns shape {tuple(tensor.shape)}, which has no spatial axes; "
                "choose a layer before pooling and flattening."
            )
            raise LayerNotSpatial(msg)
        if len(grid) != len(self.inputs):
            msg = (
                f"Layer {layer!r} returns {len(grid)} rows for {len(self.inputs)} pictures (it works on "
                "crops or windows); choose a layer that returns one row per picture."
            )
            raise LayerNotSpatial(msg)
        return at_least_float32(grid)


@dataclass(frozen=True)
class Maps:
    """A method's answer: `rounds[k]` holds the signed map `(N, h, w)` of every picture's k-th target."""

    scored: Scored
    rounds: Sequence[Tensor]
    gaps: Sequence[Tensor] | None = None
    """For complete methods, per round: by how much the map's sum misses what it should be, `(N,)` in logits."""


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32, others as they are: sums over a map overflow in float16."""
    return tensor.float() if tensor.dtype.itemsize < torch.float32.itemsize else tensor
