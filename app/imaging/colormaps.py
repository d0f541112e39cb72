"""Colour maps as tables: perceptual ones only, from OpenCV. Brighter, or warmer in turbo, is always more."""

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

DEFAULT_COLORMAP = "inferno"
