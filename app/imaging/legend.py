"""The strip below a picture that says what its colours mean."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.imaging import text, veil
from app.imaging.colormaps import COLORMAPS, DIVERGING

BACKGROUND = (22, 24, 29)
_INK = (232, 234, 238)
_MIN_WIDTH_PX = 32


class _Sizes(NamedTuple):
    """What everything on a strip is measured by, in px; `words` is 0 where no text fits."""

    words: int
    bar: int
    gap: int

    @classmethod
    def of(cls, width: int, height: int) -> "_Sizes":
        words = max(12, min(round(width / 56), height // 8, 44))
        if width < 12 * words:
            return cls(words=0, bar=max(4, width // 12), gap=3)
        return cls(words, bar=round(0.75 * words), gap=round(0.6 * words))


def strip(width: int, height: int, colormap: str, *, not_seen: bool) -> NDArray[np.uint8]:
    """Draw the strip for a picture of this size: uint8 (h, width, 3) RGB.

    It reads "low [colours] high" and, if `not_seen`, has a hatched swatch with these words. Sizes grow with the
    picture's; what does not fit is left out: first the swatch's words, then the bar's. Below 32 px of width there is no
    strip at all: h is 0.
    """
    return _strip(width, height, COLORMAPS[colormap], [("low", "high")], not_seen=not_seen)


def difference_strip(width: int, height: int, *, not_seen: bool) -> NDArray[np.uint8]:
    """Draw the strip of a signed difference: as `strip`, with the words "more in the second" and "first" at its ends.

    Where they leave too little of the bar, they are "second" and "first".
    """
    ends = [("more in the second", "more in the first"), ("second", "first")]
    return _strip(width, height, DIVERGING[1:], ends, not_seen=not_seen)  # entry 0 stands for no value


def _strip(
    width: int, height: int, colours: NDArray[np.uint8], ends: Sequence[tuple[str, str]], *, not_seen: bool
) -> NDArray[np.uint8]:
    """Draw a strip with `colours`, (n, 3), between the first pair of words that leaves room for them."""
    sizes = _Sizes.of(width, height)
    if width < _MIN_WIDTH_PX:
        return np.empty((0, width, 3), np.uint8)
    canvas = np.full((sizes.bar + 2 * sizes.gap, width, 3), BACKGROUND, np.uint8)
    left, right = sizes.gap, width - sizes.gap
    if not_seen:
        right = _swatch(canvas, sizes, right)
    if sizes.words:
        left, right = _words_at_ends(canvas, sizes, left, right, ends)
    shades = np.rint(np.linspace(0, len(colours) - 1, right - left)).astype(np.uint8)
    canvas[sizes.gap : -sizes.gap, left:right] = colours[shades]
    return canvas


def _swatch(canvas: NDArray[np.uint8], sizes: _Sizes, right: int) -> int:
    """Draw the swatch with its words against `right`; return where the rest has to end."""
    if canvas.shape[1] >= 24 * sizes.words > 0:
        words = text.coverage("not seen", sizes.words)
        right -= words.shape[1]
        _write(canvas, words, right)
        right -= sizes.gap
    left = right - 2 * sizes.bar
    hatch = veil.hatch(sizes.bar, 2 * sizes.bar, max(1, sizes.bar // 12)).astype(np.float32)
    opacity = hatch[..., 3:] / 255.0
    canvas[sizes.gap : -sizes.gap, left:right] = np.rint(hatch[..., :3] * opacity + veil.GRAY * (1.0 - opacity))
    return left - 2 * sizes.gap


def _words_at_ends(
    canvas: NDArray[np.uint8], sizes: _Sizes, left: int, right: int, ends: Sequence[tuple[str, str]]
) -> tuple[int, int]:
    """Write a word at each end, the first pair that leaves the bar half the room; return what remains between them."""
    for words in ends:
        low, high = (text.coverage(word, sizes.words) for word in words)
        taken = low.shape[1] + high.shape[1] + 2 * sizes.gap
        if 2 * taken <= right - left:
            _write(canvas, low, left)
            _write(canvas, high, right - high.shape[1])
            return left + low.shape[1] + sizes.gap, right - high.shape[1] - sizes.gap
    return left, right


def _write(canvas: NDArray[np.uint8], words: NDArray[np.float32], left: int) -> None:
    text.stamp(canvas, words, _INK, left, (canvas.shape[0] - words.shape[0]) // 2)
