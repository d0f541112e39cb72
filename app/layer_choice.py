"""Which layer of a model is explained where the caller names none: observed, with no architecture's name known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explainers.errors import ExplainError
from models.layers import LayerInfo
from models.order import OrderCheck

_FLAT = 1e-5  # of a map's largest value: no more than rounding

RawMap = NDArray[np.float32]
Explain = Callable[[str, Sequence[str]], RawMap]
"""Returns the raw map `(h, w)` of a made-up picture by a method at some layers, or raises `ExplainError`."""


@dataclass(frozen=True)
class Choice:
    """The layer, or why there is none, as the rest of a sentence about the model."""

    layer: str | None
    why_none: str | None = None


def choose_layer(candidates: Sequence[LayerInfo], check: OrderCheck, explain: Explain) -> Choice:
    """Take the first candidate whose grid is in order and whose map is neither zero nor the same everywhere.

    Shapes do not tell: after a ViT's last attention only the class token feeds the head, and the gradient of the
    patch tokens is zero; Hiera's tokens lie in another order than the picture's parts.
    """
    if not candidates:
        return Choice(None, "none of its layers returns a spatial grid")
    if not _depends_on_the_picture(explain):
        return Choice(None, "its scores have no gradient with respect to the picture; its head may be all zero")
    in_order = [candidate for candidate in candidates if check.passes(candidate.name)]
    if not in_order:
        return Choice(None, "in none of its grids do the cells lie where the picture's parts do")
    for candidate in in_order:
        if _says_something(candidate.name, explain):
            return Choice(candidate.name)
    return Choice(None, "at all layers with a spatial grid the score's gradient is zero or the map the same everywhere")


def _depends_on_the_picture(explain: Explain) -> bool:
    try:
        return bool(explain("saliency", []).any())
    except (ExplainError, RuntimeError):
        return False


def _says_something(layer: str, explain: Explain) -> bool:
    """Whether the layer's map is neither zero nor, but for rounding, constant; one cell alone cannot differ."""
    try:
        raw = explain("gradcam", [layer])
    except (ExplainError, RuntimeError):  # on a branch that the score does not depend on, or without a derivative
        return False
    return bool(raw.any()) and (raw.size == 1 or float(np.ptp(raw)) > _FLAT * float(np.abs(raw).max()))
