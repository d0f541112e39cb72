"""Networks in which the pictures of a batch see each other: refused, since a batch must answer as its pictures do.

That is what BatchNorm does with the batch's own statistics: in training mode, or without running statistics.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from models.errors import CheckForwardFailed, UnsupportedModule

_ROUNDING = 1e-3  # of the largest number of an answer


def refuse_training_mode(module: nn.Module) -> None:
    """Raise `UnsupportedModule`, naming the part, if any is in training mode although `eval` was called."""
    for name, part in module.named_modules():
        if part.training:
            raise _unsupported(
                name, part, "stays in training mode, whatever eval() says; correct its `train`, or its `forward`"
            )


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise `UnsupportedModule`, naming the part, for a BatchNorm without running statistics. InstanceNorm is none."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is None:
            raise _unsupported(
                name,
                part,
                "has no running statistics (track_running_stats=False), so each picture is normalised by all pictures "
                "of its batch; use GroupNorm or InstanceNorm, or train it with running statistics",
            )


class BatchNormWatch(TorchFunctionMode):
    """Keeps the weights of each batch norm of a forward pass that uses its input's own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            self._note(*args, **(kwargs or {}))
        elif func is torch.batch_norm:  # what the other calls, with the same arguments in another order
            picture, weight, bias, mean, var, training = args[:6]
            self._note(picture, mean, var, weight, bias, training)
        return func(*args, **(kwargs or {}))

    def _note(
        self,
        input: Tensor,  # noqa: A002 - torch's own names
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        *_others: Any,
        **_options: Any,
    ) -> None:
        if training or running_mean is None:
            self.weights.append(weight)

    def refuse_coupling(self, module: nn.Module, answer: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> None:
        """Raise `UnsupportedModule` if the answer to `x` depends on what is beside it, (1, C, h, w) each.

        The culprit is the batch norm that was seen, if any: some networks only standardise their weights with one.
        """
        try:
            beside_itself, beside_other = answer(torch.cat([x, x]))[0], answer(torch.cat([x, y]))[0]
        except CheckForwardFailed:  # it takes one picture only, which has nothing to see
            return
        if (beside_itself - beside_other).abs().max() > _ROUNDING * beside_itself.abs().max():
            name, part = self._culprit(module)
            raise _unsupported(
                name,
                part,
                "answers a picture by what else is in its batch; it must look at each alone, as BatchNorm does with "
                "running statistics",
            )

    def _culprit(self, module: nn.Module) -> tuple[str, nn.Module]:
        """Return the part whose weights were used, the network itself if none has them."""
        used = {id(weight) for weight in self.weights if weight is not None}
        parts = dict(module.named_modules())
        owners = (name for name, part in parts.items() for own in part.parameters(recurse=False) if id(own) in used)
        name = next(owners, "")
        return name, parts[name]


def _unsupported(name: str, part: nn.Module, reason: str) -> UnsupportedModule:
    kind = type(part).__name__
    return UnsupportedModule(f"Part {name or '(root)'!r} of the network ({kind}) {reason}.", part=name, type=kind)
