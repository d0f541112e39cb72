"""A display map and a picture to the pixels of one view. Every view is the heat layer, laid on something."""

from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from app.imaging import legend as legends
from app.imaging import text, veil
from app.imaging.colormaps import COLORMAPS
from app.imaging.display import DisplayMap

View = Literal["overlay", "heatmap", "side_by_side", "layer"]

_NO_EVIDENCE = "no positive evidence"
_ROWS = 64  # composited at a time: what is in between stays in the cache, which makes it 2.5 times faster
_LEVELS = np.linspace(0.0, 1.0, 256, dtype=np.float32)


def render(
    pixels: NDArray[np.uint8],
    display: DisplayMap,
    seen: NDArray[np.bool_],
    *,
    view: View,
    colormap: str,
    alpha: float,
    legend: bool,
    note: str | None = None,
) -> NDArray[np.uint8]:
    """Draw a view of `display` (H, W) over `pixels`, uint8 (H, W, 3) RGB, neither of which is changed.

    - "overlay": the picture under the heat layer; (H, W, 3).
    - "heatmap": the colours alone, opaque; (H, W, 3).
    - "side_by_side": the picture, a small gap, the overlay; (H, > 2 W, 3).
    - "layer": the heat layer itself, RGBA with straight alpha, for clients that lay it over the picture themselves:
      doing so gives the overlay; (H, W, 4).

    The heat layer has the colour of each value, with an opacity that grows from 0 to `alpha` (in [0, 1]) as the value
    does, so that the picture stays readable where there is little heat; where the model did not see, it has the veil.
    Without positive evidence there is no heat, and a label says so; else the label is the `note`, if there is one.

    `legend` adds a strip below, except to a layer, which has to fit its picture.
    """
    opacity = np.ones(256, np.float32) if view == "heatmap" else fade(_LEVELS) * np.float32(alpha)
    layer = _layer(display, seen, COLORMAPS[colormap], opacity)
    if words := _NO_EVIDENCE if display.no_positive_evidence else note:
        label(layer, words)
    if view == "layer":
        return layer
    drawn = over(layer, np.full_like(pixels, veil.GRAY) if view == "heatmap" else pixels)
    if view == "side_by_side":
        drawn = beside(pixels, drawn)
    if legend:
        drawn = np.vstack([drawn, legends.strip(drawn.shape[1], drawn.shape[0], colormap, not_seen=not seen.all())])
    return drawn


def fade(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the share of the full opacity at which values in [0, 1] are drawn: a smooth step, full from 0.6 on."""
    x = np.clip(values / np.float32(0.6), 0.0, 1.0)
    return np.asarray(x * x * (3.0 - 2.0 * x), np.float32)


def _layer(
    display: DisplayMap, seen: NDArray[np.bool_], table: NDArray[np.uint8], opacity: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Draw the heat and the veil: uint8 (H, W, 4) RGBA. `opacity` is float32 (256,), by value."""
    colours = np.column_stack([table, np.rint(opacity * 255.0).astype(np.uint8)])
    levels = cv2.convertScaleAbs(display.values, alpha=255.0)
    # A colour looked up as one number is fast.
    layer = cv2.LUT(levels, colours.view(np.int32)[:, 0]).view(np.uint8).reshape(*levels.shape, 4)
    veil.drape(layer, seen)
    return layer


def over(layer: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Composite a layer, uint8 (H, W, 4) RGBA with straight alpha, on uint8 (H, W, 3) RGB."""
    result = np.empty(pixels.shape, np.uint8)
    for top in range(0, len(pixels), _ROWS):
        rows = slice(top, top + _ROWS)
        opacity = cv2.extractChannel(layer[rows], 3) * np.float32(1.0 / 255.0)
        colours = cv2.cvtColor(layer[rows], cv2.COLOR_RGBA2RGB)
        cv2.blendLinear(colours, pixels[rows], opacity, 1.0 - opacity, result[rows])
    return result


def beside(*pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Set pictures of one height, uint8 (H, W, 3), in a row with small gaps."""
    height, width = pictures[0].shape[:2]
    gap = np.full((height, max(2, round(width / 64)), 3), legends.BACKGROUND, np.uint8)
    return np.hstack([part for picture in pictures for part in (gap, picture)][1:])


def label(canvas: NDArray[np.uint8], words: str) -> None:
    """Write `words` on a dark plate at the top left of uint8 (H, W, 4), in place, if they can be read there."""
    height, width = canvas.shape[:2]
    for size in range(max(12, round(min(width / 28, height / 12, 32))), 8, -1):
        mask, margin = text.coverage(words, size), size // 2
        plate = canvas[margin : 2 * margin + mask.shape[0], margin : 3 * margin + mask.shape[1]]
        if plate.shape[:2] == (margin + mask.shape[0], 2 * margin + mask.shape[1]):
            plate[:] = (*legends.BACKGROUND, 255)
            text.stamp(plate, mask, (255, 255, 255, 255), margin, margin // 2)
            return
