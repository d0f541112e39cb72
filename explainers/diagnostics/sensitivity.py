"""What in the picture moves a unit inside the network: its gradient with respect to the input."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from explainers.batch import ToGrid, at_least_float32
from explainers.diagnostics.activations import run_to_layer
from explainers.errors import (
    BadParameter,
    ExplainError,
    LayerNotSpatial,
    NonFiniteMap,
    NonFiniteScores,
    NotConnected,
)
from explainers.graph import steps_of
from explainers.hooks import find_layer
from explainers.saliency import Parameters, reduced
from explainers.subject import Subject

Reduction = Literal["max_abs", "signed_sum"]


@dataclass(frozen=True)
class Unit:
    """Values of a layer: of one channel or all, at one place of its grid or all; counted from 0.

    `row` and `column` go together; a layer without a grid `(N, D)` has channels only.
    """

    channel: int | None = None
    row: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class Sensitivity:
    """One picture's answer: the mean of the unit's values, and its gradient as a map `(H, W)` float32 of the input.

    The map is in units of the layer per unit of the model's input, and all zero where the unit does not move (a ReLU
    that is off).
    """

    value: float
    raw: NDArray[np.float32]


def sensitivity(
    subject: Subject,
    inputs: Tensor,
    layer: str,
    unit: Unit,
    *,
    to_grid: ToGrid | None = None,
    reduction: Reduction = "max_abs",
) -> list[Sensitivity | ExplainError]:
    """Return, for each of the pictures `(N, C, H, W)`, how the unit of the layer reacts to each pixel.

    Saliency (Simonyan et al., 2013, arXiv:1312.6034, section 3) of a unit inside the network instead of a score: with x
    the input and A the layer's output `(C', h, w)` at its last call,

        value = mean of A over the chosen channels and places        g = d value / dx
        max_abs: map[i, j] = max over c of |g[c, i, j]|        signed_sum: map[i, j] = sum over c of g[c, i, j]

    `to_grid` says how the output becomes `(N, C', h, w)` where it is none. One forward and one backward pass serve all
    pictures; a picture with numbers that are not finite gets its own error. Raises `UnknownLayer`, `LayerNeverRan`,
    `LayerOutputNotTensor`, `LayerNotSpatial`, `BadParameter` (it names the field, and its bounds) and `NotConnected`.
    """
    leaf = inputs.detach().clone().requires_grad_()
    with torch.inference_mode(mode=False), torch.enable_grad():
        output, scores = run_to_layer(subject, leaf.clone(), layer)
        seen = output.detach().requires_grad_()
        values = _chosen(_grid(layer, seen, to_grid, len(inputs)), unit).flatten(1).mean(dim=1)
        (weights,) = torch.autograd.grad(values.sum(), seen)
        behind_hooks = _behind_own_hooks(find_layer(subject.module, layer), output, scores)
        gradient = _at_input(output, behind_hooks, weights, leaf)
    if gradient is None:
        msg = (
            f"Layer {layer!r} does not depend on the picture: the model cuts the gradient (no_grad, detach) before it, "
            "or it works on something else."
        )
        raise NotConnected(msg, field="layer")
    maps = reduced(at_least_float32(gradient), Parameters(reduction=reduction)).float().cpu().numpy()
    return [_answer(layer, float(value), map_) for value, map_ in zip(values.tolist(), maps, strict=True)]


def _grid(layer: str, output: Tensor, to_grid: ToGrid | None, pictures: int) -> Tensor:
    """Return the output as `(N, C, h, w)`, or `(N, D)` as it is, at least float32."""
    grid = to_grid(output) if to_grid else output
    if grid.dim() not in (2, 4):
        msg = f"Layer {layer!r} returns shape {tuple(output.shape)}, in which channels and places are not known."
        raise LayerNotSpatial(msg)
    if len(grid) != pictures:
        msg = (
            f"Layer {layer!r} returns {len(grid)} rows for {pictures} pictures (it works on crops or windows); "
            "choose a layer that returns one row per picture."
        )
        raise LayerNotSpatial(msg)
    return at_least_float32(grid)


def _chosen(grid: Tensor, unit: Unit) -> Tensor:
    """Return the unit's values `(N, ...)`; raises `BadParameter`."""
    if grid.dim() == 2:
        for field in ("row", "column"):
            if getattr(unit, field) is not None:
                msg = f"{field}: the layer has no grid, only {grid.shape[1]} channels; leave row and column out."
                raise BadParameter(msg, field=field)
    elif (unit.row is None) != (unit.column is None):
        missing, given = ("row", "column") if unit.row is None else ("column", "row")
        msg = f"{missing}: a place has a row and a column, and only the {given} was given."
        raise BadParameter(msg, field=missing)
    for axis, field in enumerate(("channel", "row", "column")[: grid.dim() - 1], start=1):
        index, count = getattr(unit, field), grid.shape[axis]
        if index is None:
            continue
        if not 0 <= index < count:
            msg = f"{field}: there is no {field} {index}; the layer has {count}: valid are 0 to {count - 1}."
            raise BadParameter(msg, field=field, minimum=0, maximum=count - 1)
        grid = grid.narrow(axis, index, 1)
    return grid


def _at_input(output: Tensor, behind_hooks: GradientEdge | None, weights: Tensor, leaf: Tensor) -> Tensor | None:
    """Return the gradient of the weighted output at the input, None where there is no way to it."""
    if not output.requires_grad:
        return None
    source = get_gradient_edge(output) if behind_hooks is None else behind_hooks
    return torch.autograd.grad([source], [leaf], [weights], allow_unused=True)[0]


def _behind_own_hooks(module: nn.Module, output: Tensor, scores: Tensor) -> GradientEdge | None:
    """Return where the backward pass of a layer with full-backward hooks of its own begins; None: at its output.

    torch puts a step for them behind the output, after all forward hooks, and unless the gradient comes that way they
    are not asked. It is found from the scores; if those do not depend on the layer, the hooks stay out.
    """
    if not (module._backward_hooks or module._backward_pre_hooks) or output.grad_fn is None:  # noqa: SLF001
        return None
    ((layer_step, place),) = output.grad_fn.next_functions  # `output` is a copy
    for step in steps_of(scores):
        if step.name() == "BackwardHookFunctionBackward" and (layer_step, place) in step.next_functions:
            return GradientEdge(step, 0)
    return None


def _answer(layer: str, value: float, map_: NDArray[np.float32]) -> Sensitivity | ExplainError:
    if not math.isfinite(value):
        return NonFiniteScores(f"Layer {layer!r} answered NaN or infinity for this picture.", field="layer")
    if not np.isfinite(map_).all():
        msg = f"The gradient from layer {layer!r} to the picture holds NaN or infinity, although its value is finite."
        return NonFiniteMap(msg, field="layer")
    return Sensitivity(value, map_.copy())  # a view would keep the maps of the whole batch
