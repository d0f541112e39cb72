"""Pictures with any number of planes: NumPy's `.npy` files of 8-bit samples."""

import re

import numpy as np
from numpy.typing import NDArray

from app.imaging.errors import CorruptImage, UnsupportedPixels
from app.imaging.limits import Limits, check_size

MAGIC = b"\x93NUMPY"
MAX_PLANES = 32

# NumPy's own reader evaluates the header as Python; this is what it, and every other writer, puts there.
_HEADER = re.compile(
    rb"\{\s*'descr':\s*'([^']{1,16})',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([0-9, ]{0,40})\),?\s*\}\s*"
)
_EIGHT_BITS = (b"|u1", b"u1", b"<u1", b">u1")


def read_array(data: bytes, limits: Limits) -> NDArray[np.uint8]:
    """Return the planes of a `.npy` file of shape (H, W) or (H, W, n), uint8, as (H, W, n), without a copy.

    Raises `CorruptImage`, `UnsupportedPixels` or the limit errors.
    """
    width_of_length = 2 if data[6:7] == b"\x01" else 4
    start = 8 + width_of_length
    end = start + int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data, start, end) if end <= len(data) else None
    if header is None:
        raise CorruptImage("The .npy file's header cannot be read.")
    shape = tuple(int(length) for length in header[3].replace(b" ", b"").split(b",") if length)
    if header[1] not in _EIGHT_BITS or len(shape) not in (2, 3):
        raise UnsupportedPixels("An array has to be uint8 of shape (height, width) or (height, width, planes).")
    height, width, planes = (*shape, 1)[:3]
    if not 1 <= planes <= MAX_PLANES:
        raise UnsupportedPixels(f"An array may have 1 to {MAX_PLANES} planes, this one has {planes}.", limit=MAX_PLANES)
    check_size(width, height, limits)
    if height * width == 0 or len(data) - end != height * width * planes:
        raise CorruptImage(f"The .npy file holds {len(data) - end} samples, its header says {height * width * planes}.")
    samples = np.frombuffer(data, np.uint8, offset=end)
    return samples.reshape((height, width, planes), order="F" if header[2] == b"True" else "C")


def as_rgb(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what is displayed of planes (H, W, n): the first three as red, green and blue, else the first as gray."""
    shown = planes[..., :3] if planes.shape[2] >= 3 else np.repeat(planes[..., :1], 3, axis=2)
    return np.ascontiguousarray(shown)
