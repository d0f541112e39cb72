"""Words on pictures, in the font that ships inside Pillow."""

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

_OVERSAMPLING = 4  # drawn larger and averaged down: hinting at small sizes swallows the spaces between words


@lru_cache(maxsize=64)
def coverage(text: str, size_px: int) -> NDArray[np.float32]:
    """Draw one line of text: float32 (h, w) in [0, 1], read-only, h being the line's height from ascent to descent."""
    font = ImageFont.load_default(size_px * _OVERSAMPLING)
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow without FreeType: a bitmap font of one size
        raise RuntimeError("Pillow lacks FreeType, so text cannot be scaled")
    ascent, descent = font.getmetrics()
    height, width = -(-(ascent + descent) // _OVERSAMPLING), -(-round(font.getlength(text)) // _OVERSAMPLING)
    canvas = Image.new("L", (width * _OVERSAMPLING, height * _OVERSAMPLING), 0)
    ImageDraw.Draw(canvas).text((0, ascent), text, fill=255, font=font, anchor="ls")
    mask = np.asarray(cv2.resize(np.asarray(canvas), (width, height), interpolation=cv2.INTER_AREA), np.float32)
    mask /= 255.0
    mask.setflags(write=False)
    return mask


def stamp(canvas: NDArray[np.uint8], mask: NDArray[np.float32], colour: tuple[int, ...], left: int, top: int) -> None:
    """Blend `colour` into `canvas`, uint8 (H, W, C), in place, with `mask` at (left, top); it has to fit."""
    area = canvas[top : top + mask.shape[0], left : left + mask.shape[1]]
    area[:] = np.rint(area + mask[:, :, None] * (np.asarray(colour, np.float32) - area)).astype(np.uint8)
