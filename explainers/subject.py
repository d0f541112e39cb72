"""What is explained: a module, and how its output becomes class scores."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from explainers.errors import UnhookableModel


@dataclass(frozen=True)
class Subject:
    """A classifier as the explainers see it.

    `module` is in eval mode; frozen parameters make explanations cheap, but unfrozen ones are answered with the
    same maps. `scores` maps inputs `(N, C, H, W)` to class scores before softmax, `(N, K)` float32, runs `module`
    exactly once, and is differentiable. A subject belongs to one thread: hooks are seen by every forward pass
    of the module, whoever starts it.
    """

    module: nn.Module
    scores: Callable[[Tensor], Tensor]
    black: tuple[float, ...] | None = None
    """What a black pixel is in the module's input, one number per channel; None: zero."""
    backward_hookable: dict[tuple[str, ...], tuple[bool, ...]] = field(default_factory=dict, repr=False)
    """What `explainers.hooks` found out: for layers captured together, which of them bear a full-backward hook."""

    _parameters: tuple[nn.Parameter, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.module, torch.jit.ScriptModule):
            msg = "A traced or scripted model runs without Python hooks; load the original nn.Module instead."
            raise UnhookableModel(msg)
        object.__setattr__(self, "_parameters", tuple(self.module.parameters()))  # walking the modules takes longer

    def black_like(self, inputs: Tensor) -> Tensor:
        """Return black pictures of the shape `(N, C, H, W)` of `inputs`."""
        if self.black is None:
            return torch.zeros_like(inputs)
        return inputs.new_tensor(self.black).reshape(1, -1, 1, 1).expand_as(inputs)

    @property
    def frozen(self) -> bool:
        """Whether no parameter requires a gradient, so that no graph exists before the first captured layer."""
        return not any(parameter.requires_grad for parameter in self._parameters)
