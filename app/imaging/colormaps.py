"""Colour maps as tables: perceptual ones only.

Those of a heat map are OpenCV's: brighter, or warmer in turbo, is always more. The one of a signed difference is made
here: what it shows is told by the hue, how much of it by the distance from a light neutral middle.
"""

from collections.abc import Mapping
from types import MappingProxyType

import cv2
import numpy as np
from numpy.typing import NDArray


def _table(code: int) -> NDArray[np.uint8]:
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    table = np.asarray(cv2.applyColorMap(ramp, code), np.uint8)[:, 0, ::-1].copy()  # OpenCV answers in BGR
    table.setflags(write=False)
    return table


def _diverging(
    low: tuple[int, int, int], middle: tuple[int, int, int], high: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Go from `low` through `middle`, at entry 128, to `high`, all RGB, in equal steps of CIELAB on either side."""
    anchors = np.array([[low, middle, high]], np.float32) / np.float32(255.0)
    lab = cv2.cvtColor(anchors, cv2.COLOR_RGB2LAB)[0]
    at = np.clip((np.arange(256) - MIDDLE) / (255 - MIDDLE), -1.0, 1.0)
    ramp = np.stack([np.interp(at, (-1.0, 0.0, 1.0), lab[:, axis]) for axis in range(3)], axis=1)
    rgb = cv2.cvtColor(ramp[None].astype(np.float32), cv2.COLOR_LAB2RGB)[0]
    table: NDArray[np.uint8] = np.rint(np.clip(rgb, 0.0, 1.0) * 255.0).astype(np.uint8)
    table.setflags(write=False)
    return table


MIDDLE = 128
"""The entry of `DIVERGING` that stands for no difference."""

DIVERGING: NDArray[np.uint8] = _diverging((33, 102, 172), (242, 242, 242), (178, 24, 43))
"""Blue for less than 0, light gray for 0, red for more: uint8 (256, 3) RGB, read-only.

Entry 128 + 127 v stands for v in [-1, 1]; entry 0 is as entry 1. The ends are those of ColorBrewer's RdBu (Brewer,
Harrower; its second class of nine), which is safe for the colour-blind: neither end turns into the other without red
or without green.
"""

COLORMAPS: Mapping[str, NDArray[np.uint8]] = MappingProxyType(
    {
        "inferno": _table(cv2.COLORMAP_INFERNO),
        "magma": _table(cv2.COLORMAP_MAGMA),
        "plasma": _table(cv2.COLORMAP_PLASMA),
        "viridis": _table(cv2.COLORMAP_VIRIDIS),
        "cividis": _table(cv2.COLORMAP_CIVIDIS),
        "turbo": _table(cv2.COLORMAP_TURBO),
    }
)
"""Name to table, uint8 (256, 3) RGB, low to high, read-only."""
