"""What the model did not see: a gray veil with a thin diagonal hatch, and a line where it begins.

The veil pulls the picture towards one gray, so that black and white alike lose their contrast and their colour. The
hatch is both lighter and darker than that gray: one of its lines stands out wherever the other does not.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

GRAY = 112
_PLAIN = (GRAY, GRAY, GRAY, 170)  # RGBA, straight alpha
_LIGHT = (176, 176, 176, 205)
_DARK = (64, 64, 64, 205)
_EDGE = (236, 236, 236, 230)


def drape(layer: NDArray[np.uint8], seen: NDArray[np.bool_]) -> None:
    """Put the veil on uint8 (H, W, 4) RGBA, contiguous, wherever `seen`, bool (H, W), is False; in place."""
    if seen.all():
        return
    height, width = seen.shape
    line_px = max(1, round(max(height, width) / 700))
    unseen = ~seen
    whole = layer.view(np.uint32)[..., 0]  # four channels as one number: four times fewer elements to move
    np.copyto(whole, hatch(height, width, line_px).view(np.uint32)[..., 0], where=unseen)
    around = cv2.dilate(seen.view(np.uint8), np.ones((1 + 2 * line_px,) * 2, np.uint8)).view(np.bool_)
    np.copyto(whole, np.array(_EDGE, np.uint8).view(np.uint32), where=around & unseen)


def hatch(height: int, width: int, line_px: int) -> NDArray[np.uint8]:
    """Return the veil's pattern with lines `line_px` wide: uint8 (H, W, 4) RGBA, a read-only view of one long line."""
    period = np.array([_LIGHT] * line_px + [_DARK] * line_px + [_PLAIN] * (12 * line_px), np.uint8)
    line = np.resize(period, (height + width, 4))
    # Row y is the line from its y-th pixel on: each row one pixel further, which makes the lines diagonal.
    return np.lib.stride_tricks.as_strided(line, (height, width, 4), (4, 4, 1), writeable=False)
