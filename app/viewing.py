"""From bytes to what the model is shown of a picture, and what is kept to draw on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.clock import Clock
from app.config import Settings
from app.engine import DeadlineExceeded
from app.imaging.decode import Picture, decode
from app.imaging.encode import fit, resize
from app.imaging.limits import Limits
from models.preprocess import Geometry, Preprocess

_SHOWN_PX = 960
"""A large JPEG is decoded reduced, but never below twice what the model sees, so that its input differs by less than
half a grey level on average, and never shorter than this, which nearly fills an answer of the usual 1024 pixels."""
_ENLARGED = 16 / 15
"""By how much a reduced decode may be enlarged for the answer: 960 to 1024 pixels."""
_DECODERS = 4
"""Pictures decoded at once: one of 100 million pixels takes up to 1.2 gigabytes."""


@dataclass(frozen=True)
class View:
    """A picture, the model's input `(C, h, w)` float32 made of it, and where in the picture that lies."""

    picture: Picture
    inputs: NDArray[np.float32]
    geometry: Geometry


class Viewer:
    """Decodes and preprocesses within the operator's limits; safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self._decoding = threading.BoundedSemaphore(_DECODERS)
        self._limits = Limits(
            max_bytes=settings.max_body_bytes,
            max_pixels=settings.max_image_pixels,
            max_side_px=settings.max_image_side_px,
        )

    def view(self, data: bytes, preprocess: Preprocess, clock: Clock, *, max_side: int | None = None) -> View:
        """Look at a picture; with `max_side`, so that an answer of that size can be drawn on what is kept of it.

        Raises `ImageError`, and `DeadlineExceeded` where no decoder is free in the request's time.
        """
        with self._decoder(clock):
            if max_side is None:
                return self._look(data, preprocess, _SHOWN_PX)
            view = self._look(data, preprocess, max_side)
            return replace(view, picture=_no_larger(view.picture, max_side))

    def picture(self, data: bytes, clock: Clock, *, max_side: int) -> Picture:
        """Decode a picture for an answer of that size; raises what `view` does."""
        with self._decoder(clock):
            return _no_larger(decode(data, self._limits, enough_px=1, longest_px=max_side), max_side)

    def _look(self, data: bytes, preprocess: Preprocess, max_side: int) -> View:
        """Decode no larger than needed, and turn the picture into the model's input.

        What the model sees must not depend on the size of the answer, so a larger answer has a decode of its own.
        """
        picture = decode(data, self._limits, enough_px=2 * preprocess.enough_px, longest_px=_SHOWN_PX)
        inputs, geometry = preprocess(picture.samples, (picture.width, picture.height))
        wanted_px = min(max_side, max(picture.width, picture.height))
        if wanted_px > _ENLARGED * max(picture.pixels.shape[:2]):
            picture = decode(data, self._limits, enough_px=1, longest_px=max_side)
        return View(picture, inputs, geometry)

    @contextmanager
    def _decoder(self, clock: Clock) -> Iterator[None]:
        """Wait for one of the decoders, as long as the request has time; raises `DeadlineExceeded`."""
        if not self._decoding.acquire(timeout=clock.remaining_s):
            raise DeadlineExceeded(f"The request was not answered within {clock.limit}.")
        try:
            yield
        finally:
            self._decoding.release()


def _no_larger(picture: Picture, max_side: int) -> Picture:
    """Keep no more pixels than the answer shows while the picture waits for the model: it may be one of many."""
    size = fit(picture.width, picture.height, max_side)
    if size[0] * size[1] >= picture.pixels.shape[0] * picture.pixels.shape[1]:
        return picture
    pixels = resize(picture.pixels, size)
    pixels.setflags(write=False)
    return replace(picture, pixels=pixels, planes=None)
