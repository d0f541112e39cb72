"""The signed difference of two maps to pixels: red where the first has more, blue where the second has."""

from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from app.imaging import legend as legends
from app.imaging import veil
from app.imaging.colormaps import DIVERGING, MIDDLE
from app.imaging.render import fade, label, over

DifferenceView = Literal["overlay", "heatmap"]

_NO_DIFFERENCE = "no difference"
_SIGNED_LEVELS = (np.arange(256, dtype=np.float32) - np.float32(MIDDLE)) / np.float32(255 - MIDDLE)


def render_difference(
    pixels: NDArray[np.uint8],
    values: NDArray[np.float32],
    seen: NDArray[np.bool_],
    *,
    view: DifferenceView,
    alpha: float,
    legend: bool = False,
) -> NDArray[np.uint8]:
    """Draw `values`, float32 (H, W) in [-1, 1], over `pixels`, uint8 (H, W, 3) RGB; neither is changed.

    - "overlay": the picture under the colours, whose opacity grows from 0 at 0 to `alpha` (in [0, 1]) as |value| does;
      (H, W, 3).
    - "heatmap": the colours alone, opaque, light gray where there is no difference; (H, W, 3).

    What the model did not see, bool (H, W) `seen`, has the veil. If the values that were seen are all 0, a label says
    that there is no difference. `legend` adds a strip below.

    Raises `ValueError` for values that are not finite, or outside of [-1, 1].
    """
    if not (np.isfinite(values).all() and np.abs(values).max(initial=0.0) <= 1.0):
        raise ValueError("a difference has to be finite and within [-1, 1]")
    opacity = np.ones(256, np.float32) if view == "heatmap" else fade(np.abs(_SIGNED_LEVELS)) * np.float32(alpha)
    drawn = over(_layer(values, seen, opacity), np.full_like(pixels, veil.GRAY) if view == "heatmap" else pixels)
    if legend:
        strip = legends.difference_strip(drawn.shape[1], drawn.shape[0], not_seen=not seen.all())
        drawn = np.vstack([drawn, strip])
    return drawn


def signed_levels(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return which entry of `DIVERGING` stands for each of `values`, any shape, in [-1, 1]."""
    return np.asarray(np.rint(values * np.float32(255 - MIDDLE) + np.float32(MIDDLE)), np.uint8)


def _layer(values: NDArray[np.float32], seen: NDArray[np.bool_], opacity: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Draw the colours, the veil and the label: uint8 (H, W, 4) RGBA. `opacity` is float32 (256,), by level."""
    colours = np.column_stack([DIVERGING, np.rint(opacity * 255.0).astype(np.uint8)])
    levels = signed_levels(values)
    layer = cv2.LUT(levels, colours.view(np.int32)[:, 0]).view(np.uint8).reshape(*levels.shape, 4)
    veil.drape(layer, seen)
    if not values[seen].any():
        label(layer, _NO_DIFFERENCE)
    return layer
