"""Any Pillow mode to 8-bit RGB: transparency on white, wide samples by one stated rule."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.imaging.errors import UnsupportedPixels

_BAND_PX = 2**16
"""Converted at a time: half the memory of the whole picture at once, and twice as fast, as it stays in the cache."""

_FULL_SCALES: dict[str, tuple[float, ...]] = {"I": (255.0, 65535.0), "F": (1.0, 255.0, 65535.0)}


def to_rgb(image: Image.Image, *, full_scale: float = 65535.0, white_is_zero: bool = False) -> NDArray[np.uint8]:
    """Return the loaded picture as uint8 (H, W, 3) RGB.

    - Gray, RGB, bilevel and palette pictures: as they are; CMYK, YCbCr: Pillow's formulas; LAB: through Pillow's
      built-in LAB and sRGB profiles.
    - Alpha in any form (channel, palette, key colour): composited on white.
    - 16-bit gray (`I;16*`): value / `full_scale` x 255, rounded; with the usual 65535 that is value / 257.
    - 32-bit integers (`I`) and floats (`F`) do not say what white is: white is the smallest of 255 and 65535 (floats:
      also 1) that no value exceeds. A picture for which that is too small a white would have been all but black.

    `white_is_zero` turns wide samples upside down, for TIFF files that ask for it (8-bit ones Pillow turns itself).
    Raises `UnsupportedPixels` for negative, larger or non-finite samples.
    """
    if image.mode in _FULL_SCALES or image.mode.startswith("I;16"):
        return _from_wide(image, full_scale, white_is_zero)
    if image.mode == "RGB" and not _has_alpha(image):
        return np.asarray(image)  # nothing to convert: no copy but Pillow's own
    if image.mode == "LAB":
        image = image.convert("RGB")  # whole: its transform is costly to set up for each band
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PX // width)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = np.asarray(_over_white(band) if _has_alpha(band) else band.convert("RGB"))
    return pixels


def _has_alpha(image: Image.Image) -> bool:
    """Say whether any pixel may be transparent. Pillow's own property asserts a palette that a file may lack."""
    return (
        image.mode in ("LA", "La", "PA", "RGBA", "RGBa")
        or "transparency" in image.info
        or (image.palette is not None and image.palette.mode == "RGBA")
    )


def _over_white(image: Image.Image) -> Image.Image:
    straight = image.convert("LA") if image.mode == "La" else image  # Pillow has no step from La to RGBA
    colours = straight.convert("RGBA")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(colours, mask=colours)
    return canvas


def _from_wide(image: Image.Image, full_scale: float, white_is_zero: bool) -> NDArray[np.uint8]:
    samples: NDArray[Any] = np.asarray(image)
    factor = np.float32(255.0 / _white(samples, _FULL_SCALES.get(image.mode, (full_scale,))))
    key = image.info.get("transparency")
    pixels = np.empty((*samples.shape, 3), np.uint8)
    rows = max(1, _BAND_PX // samples.shape[1])
    for top in range(0, len(samples), rows):
        band = samples[top : top + rows]
        gray = np.rint(band * factor).astype(np.uint8)  # NumPy multiplies 32-bit integers in float64
        if white_is_zero:
            gray = 255 - gray
        if isinstance(key, int):
            gray[band == key] = 255
        pixels[top : top + rows] = gray[:, :, None]
    return pixels


def _white(samples: NDArray[Any], scales: tuple[float, ...]) -> float:
    low, high = float(samples.min()), float(samples.max())  # a NaN anywhere makes both NaN
    for white in scales:
        if low >= 0.0 and high <= white:
            return white
    names = [f"0 to {scale:.0f}" for scale in scales]
    raise UnsupportedPixels(
        f"The samples of this picture are outside every range that has an agreed white: {', '.join(names)}.",
        choices=names,
    )
