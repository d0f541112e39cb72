"""Untrusted bytes to an upright RGB picture. Safe to call from many threads."""

import struct
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.imaging import arrays
from app.imaging.colour import to_rgb
from app.imaging.errors import CorruptImage
from app.imaging.formats import Opened, open_image
from app.imaging.limits import Limits, check_bytes, too_many_pixels

__all__ = ["Limits", "Picture", "decode"]

# What Pillow's parsers raise on damaged input, collected by fuzzing all six formats (a million files) and reading the
# plugins. Each is the parser's verdict on the file; `MemoryError`, for one, is not, and passes.
_PARSER_FAULTS = (
    OSError,  # truncated data, decoder errors
    SyntaxError,  # wrong magic numbers, chunk order, checksums; what a header's parser stumbles over
    ValueError,  # impossible sizes and lengths, modes that cannot be converted
    TypeError,  # tags of the wrong type
    OverflowError,  # BigTIFF offsets beyond what C can hold
    EOFError,  # an animated WebP whose first frame does not decode
    KeyError,  # these three Pillow turns into SyntaxError while opening, but not while loading
    IndexError,
    struct.error,
    Warning,  # where warnings are errors: Pillow's remarks on odd TIFF tags
)


@dataclass(frozen=True)
class Picture:
    """A decoded picture, upright.

    `pixels` is uint8 (H, W, 3) RGB, read-only; H and W are smaller than `height` and `width` when a JPEG was decoded
    at a reduced size. `width` and `height` are the file's own size in px after EXIF orientation: the frame. `planes`
    is all of an array that is no RGB or gray picture, uint8 (H, W, n); `pixels` then shows a part of it.
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int
    media_type: str
    planes: NDArray[np.uint8] | None = None

    @property
    def samples(self) -> NDArray[np.uint8]:
        """What a model may see of it: the planes, else the pixels."""
        return self.pixels if self.planes is None else self.planes


def decode(data: bytes, limits: Limits, *, enough_px: int | None = None, longest_px: int = 0) -> Picture:
    """Decode the first frame of a JPEG, PNG, WebP, BMP, TIFF or GIF file, or an `.npy` array, recognised by content.

    `enough_px`: no side need be decoded larger than this, nor the longest larger than `longest_px`. A JPEG is then
    decoded at the smallest of 1, 1/2, 1/4, 1/8 of its size that keeps both sides, and the longest, that long. A side
    that the factor does not divide is rounded up: its last pixel stands for a narrower strip of the frame, which
    shifts nothing by more than one reduced pixel.

    The order is: bytes limit, format, header, pixel and side limits, and only then pixels. Raises `EmptyImage`,
    `TooManyBytes`, `UnknownFormat`, `TooManyPixels`, `SideTooLong`, `UnsupportedPixels` or `CorruptImage`.
    """
    check_bytes(data, limits)
    if data.startswith(arrays.MAGIC):
        return _from_array(arrays.read_array(data, limits))
    try:
        opened = open_image(data, limits)
        width, height = opened.image.size
        stored = _pixels(opened, enough_px, longest_px)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's own guard, where it cannot be avoided: a GIF frame larger than its screen, a vast WebP canvas.
        raise too_many_pixels("The picture is too large", limits) from error
    except _PARSER_FAULTS as error:
        raise CorruptImage(
            "The picture cannot be decoded: it is damaged, truncated, or a variant of its format that is not supported."
        ) from error
    if opened.orientation >= 5:
        width, height = height, width
    return Picture(_upright(stored, opened.orientation), width, height, opened.media_type)


def _from_array(planes: NDArray[np.uint8]) -> Picture:
    height, width, count = planes.shape
    pixels = arrays.as_rgb(planes)
    pixels.setflags(write=False)
    return Picture(pixels, width, height, "application/x-npy", None if count in (1, 3) else planes)


def _pixels(opened: Opened, enough_px: int | None, longest_px: int) -> NDArray[np.uint8]:
    """Decode as stored, uint8 (H, W, 3) RGB."""
    image = opened.image
    if enough_px is not None:
        sides = max(enough_px, longest_px), enough_px
        image.draft(None, sides if image.width >= image.height else sides[::-1])  # of our formats, only JPEG has it
    image.load()
    rgb = to_rgb(image, full_scale=opened.full_scale, white_is_zero=opened.white_is_zero)
    if opened.painted is None or opened.painted == (0, 0, *image.size):
        return rgb
    left, top, right, bottom = opened.painted
    canvas = np.full_like(rgb, 255)  # what the frame does not paint is transparent, so white
    canvas[top:bottom, left:right] = rgb[top:bottom, left:right]
    return canvas


# EXIF orientations as OpenCV flips (1: left to right, 0: top to bottom, -1: both), after a transposition from 5 on.
_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}


def _upright(stored: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    turned = cv2.transpose(stored) if orientation >= 5 else stored
    if orientation in _FLIPS:
        turned = cv2.flip(turned, _FLIPS[orientation])
    pixels = np.asarray(turned, dtype=np.uint8)
    pixels.setflags(write=False)
    return pixels
