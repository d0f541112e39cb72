"""A heatmap as a brush stroke of Label Studio: few levels of opacity, run-length encoded.

The format is that of `@thi.ng/rle-pack`, which Label Studio's editor reads: the values of an RGBA picture as one row of
bits, with a header that says how long it is and in how many bits a run's length may be told.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

LEVELS = 8
"""How many opacities there are, none at all included: runs stay long, and steps are still seen."""

_CHANNELS = 4
_WORD_BITS = 8
_LENGTH_BITS = (3, 4, 8, 16)
"""The four sizes of a run's length; those that Label Studio's own tools write."""
_LONGEST = 2 ** _LENGTH_BITS[-1]
_HEAD_BITS = 3
"""Before the length: that it is a run, and which of the four sizes."""


def levels(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a display map, (h, w) in [0, 1], as opacities, uint8 (H, W), at the `size` (W, H) of the picture.

    There are `LEVELS` of them from 0 to 255, each for values as near to it as to any other.
    """
    gray = cv2.resize(cv2.convertScaleAbs(values, alpha=255.0), size, interpolation=cv2.INTER_LINEAR)
    step = 255.0 / (LEVELS - 1)
    table = np.rint(np.rint(np.arange(256) / step) * step).astype(np.uint8)
    return np.asarray(cv2.LUT(gray, table), np.uint8)


def encode(opacities: NDArray[np.uint8]) -> bytes:
    """Encode opacities, uint8 (H, W); decoded it is RGBA, each of a pixel's four values being its opacity.

    The editor gives its label's colour to every pixel that is not transparent, so the colours do not count.
    """
    flat = opacities.ravel()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    lengths = np.diff(starts, append=flat.size) * _CHANNELS
    values, lengths = _split(flat[starts].astype(np.uint32), lengths)
    bits = np.concatenate([_header(flat.size * _CHANNELS), _codes(values, lengths)])
    return np.packbits(bits).tobytes()


def _header(count: int) -> NDArray[np.uint8]:
    sizes = "".join(f"{bits - 1:04b}" for bits in _LENGTH_BITS)
    return np.array([int(bit) for bit in f"{count:032b}{_WORD_BITS - 1:05b}{sizes}"], np.uint8)


def _split(values: NDArray[np.uint32], lengths: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Cut runs that are too long for the longest length into several."""
    pieces = -(-lengths // _LONGEST)
    cut = np.full(int(pieces.sum()), _LONGEST, np.int64)
    cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * _LONGEST
    return np.repeat(values, pieces), cut.astype(np.uint32)


def _codes(values: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return the runs as bits: 1, the length's size in 2 bits, the length less one, the value."""
    limits = 2 ** np.array(_LENGTH_BITS[:-1])
    sizes = np.searchsorted(limits, lengths).astype(np.uint32)
    bits_of_length = np.array(_LENGTH_BITS, np.uint32)[sizes]
    codes = ((((4 | sizes) << bits_of_length) | (lengths - 1)) << _WORD_BITS) | values
    used = _HEAD_BITS + bits_of_length + _WORD_BITS
    unpacked = np.unpackbits(codes.astype(">u4").view(np.uint8)).reshape(-1, 32)
    return unpacked[np.arange(32) >= 32 - used[:, None]]
