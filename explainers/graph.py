"""Reads the graph that autograd made in the forward pass: where gradients arrive, and which steps hand them on."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from explainers.errors import MethodNotApplicable


class Edge(NamedTuple):
    """A place where the gradient of one tensor arrives: the step that made the tensor, and which of its results."""

    step: Node
    number: int


def edge_of(tensor: Tensor) -> Edge | None:
    """Return where the gradient of a tensor arrives, as it is now; None if it has none.

    An in-place change gives the tensor a new edge, and what was returned before stays that of the old values.
    """
    if not tensor.requires_grad:
        return None
    edge = get_gradient_edge(tensor)
    return Edge(edge.node, edge.output_nr)


def base_of(tensor: Tensor) -> Tensor | None:
    """Return the tensor that this one is a view of, if it shows all of it.

    An in-place change of a view is one of its base: autograd then leaves out the step that made the view.
    """
    base = tensor._base if tensor._is_view() else None  # noqa: SLF001 - what `out += 1` looks at, public in all but name
    return base if base is not None and base.numel() == tensor.numel() else None


def first_change(view: Tensor, base: Edge) -> Node | None:
    """Return the step of the first in-place change of what a view shows whole, after the time of its edge `base`.

    What that step hands on at place 0 is the gradient of the view as it was before, value by value but for the shape.
    None: there is no such step, or the two have their values in different orders.
    """
    shown = base_of(view)
    step = None if shown is None or not shown.is_contiguous() else shown.grad_fn
    while step is not None and step.name().endswith("CopySlices"):
        before, number = step.next_functions[0]
        if before is None or Edge(before, number) == base:
            return None if before is None else step
        step = before
    return None


def leaf_of(step: Node) -> Tensor | None:
    """Return the tensor whose gradient a step keeps (a parameter), or None for a step of the calculation."""
    if step.name() != "torch::autograd::AccumulateGrad":
        return None
    leaf: Tensor = step.variable  # type: ignore[attr-defined]
    return leaf


def clock() -> int:
    """Return the number that autograd gives to the next step that it notes in this thread."""
    return torch._C._autograd._get_sequence_nr()  # noqa: SLF001 - the number is public as `Node._sequence_nr`


def crossings(
    outputs: Iterable[Edge], inputs: Mapping[Edge, int], since: int, until: int
) -> list[tuple[Node, int, int]]:
    """Return where a part of the graph hands gradients on to its inputs.

    The part are the steps noted from `since` to before `until` (`clock`) that lead to the outputs. Returned are each
    step, the place in its `next_functions`, and the value that `inputs` has for the edge there.
    """
    found = []
    seen: set[Node] = set()
    todo = [edge.step for edge in outputs if since <= edge.step._sequence_nr() < until]  # noqa: SLF001
    while todo:
        step = todo.pop()
        if step in seen:
            continue
        seen.add(step)
        for place, (before, number) in enumerate(step.next_functions):
            if before is None:
                continue
            key = inputs.get(Edge(before, number))
            if key is not None:
                found.append((step, place, key))
            elif since <= before._sequence_nr() < until:  # noqa: SLF001 - the gradient's keepers have the last number
                todo.append(before)
    return found


def steps_of(score: Tensor) -> list[Node]:
    """Return all steps of the backward pass from `score`."""
    steps: dict[Node, None] = {}
    todo = [score.grad_fn]
    while todo:
        step = todo.pop()
        if step is not None and step not in steps:
            steps[step] = None
            todo += [before for before, _ in step.next_functions]
    return list(steps)


_LOWER_BOUNDS = {
    "Relu": None,
    "Hardtanh": "_saved_min_val",  # ReLU6 is one
    "Threshold": "_saved_threshold",
    "Clamp": "_saved_min",
    "ClampMin": "_saved_min",
}
"""Steps that are ReLUs where their lower bound is zero, by the name that torch gives them, and the bound's name."""


def is_relu(step: Node) -> bool:
    """Return whether a step is a ReLU. Raises `MethodNotApplicable` where one may be hidden in it."""
    if step.name().endswith("CopySlices"):
        msg = (
            "The model changes a part or a view of a tensor in place, and a ReLU that does so cannot be seen; "
            "use saliency or smoothgrad instead."
        )
        raise MethodNotApplicable(msg)
    kind = step.name().partition("Backward")[0]
    if kind not in _LOWER_BOUNDS:
        return False
    bound = _LOWER_BOUNDS[kind]
    lower = 0 if bound is None else getattr(step, bound)
    return not isinstance(lower, Tensor) and lower == 0
