"""One picture of a job: read, explained, its artifacts written; what came of it, or why that is not its own fault."""

import hashlib
import logging
from collections.abc import Callable

from app.config import Settings
from app.engine import DeviceLost, ShuttingDown
from app.errors import DeviceUnavailable, OutOfSpace, SourceUnreadable
from app.imaging.limits import Limits, check_bytes
from app.jobs.artifacts import STORED, Store, result_key
from app.jobs.explaining import Explain, Explained, Watching
from app.jobs.options import Asked
from app.jobs.rows import ItemRow, Outcome
from app.known_errors import KNOWN_ERRORS

_log = logging.getLogger(__name__)


class Dropped(Exception):
    """Nobody wants the picture any more, or not here; it still waits."""


class StoreAway(Exception):
    """The store does not work, so that nothing can be read or kept; it says why."""


NOT_ITS_OWN = (Dropped, StoreAway, OutOfSpace, DeviceLost, DeviceUnavailable, ShuttingDown)
"""What is no picture's own fault, so that it is tried again, here or elsewhere."""


class Pictures:
    """Works on pictures, in as many threads as there are callers."""

    def __init__(self, store: Store, limits: Limits, explain: Explain, read_source: Callable[[str], bytes]) -> None:
        self._store = store
        self._limits = limits
        self._explain = explain
        self._read_source = read_source

    def outcome(self, job_id: str, item: ItemRow, asked: Asked, watch: Watching) -> Outcome:
        """Return what came of a picture, its artifacts written before; raises `NOT_ITS_OWN`, and what `watch` does."""
        sha256 = item.sha256
        try:
            picture = self._read(job_id, item.input)
            sha256 = sha256 or hashlib.sha256(picture).hexdigest()
            explained = self._explain(picture, asked, item.number, watch)
        except NOT_ITS_OWN:
            raise
        except KNOWN_ERRORS as error:
            return Outcome(item.number, sha256, error={"code": error.code, "detail": str(error)})
        except Exception as error:  # noqa: BLE001 - a bug that one picture meets is not the end of all others
            _log.exception("explaining picture %d of job %s failed", item.number, job_id)
            detail = f"Explaining this picture raised {type(error).__name__}; the worker's log says where."
            return Outcome(item.number, sha256, error={"code": "internal_error", "detail": detail})
        written = self._keep(job_id, item.number, explained)
        return Outcome(item.number, sha256, written, result=explained.result)

    def _read(self, job_id: str, where: str) -> bytes:
        is_stored = where.startswith(STORED)
        try:
            picture = self._read_stored(job_id, where.removeprefix(STORED)) if is_stored else self._read_source(where)
        except OSError as error:
            place = "the store" if is_stored else "its source"
            reason = error.strerror or type(error).__name__
            raise SourceUnreadable(f"The picture cannot be read from {place}: {reason}.") from error
        check_bytes(picture, self._limits)
        return picture

    def _read_stored(self, job_id: str, key: str) -> bytes:
        """Return an uploaded picture; an `OSError` is of this one alone, for the store works."""
        try:
            return self._store.read(key)
        except OSError:
            self._require_store(job_id)
        return self._store.read(key)  # the store may have come back just before it was asked

    def _require_store(self, job_id: str) -> None:
        """Raise `StoreAway` unless something can be written there and read back."""
        probe = f"{job_id}/probe"
        try:
            self._store.write(probe, b"")
            self._store.read(probe)
        except OSError as error:
            raise StoreAway(str(error)) from error

    def _keep(self, job_id: str, number: int, explained: Explained) -> int:
        """Write the artifacts and return their bytes; the same names are written whenever the picture is explained."""
        try:
            return sum(
                self._store.write(result_key(job_id, name, number), content)
                for name, content in explained.artifacts.items()
            )
        except OSError as error:
            raise StoreAway(str(error)) from error


def limits_of(settings: Settings) -> Limits:
    """Return what one picture may cost."""
    return Limits(
        max_bytes=settings.max_body_bytes,
        max_pixels=settings.max_image_pixels,
        max_side_px=settings.max_image_side_px,
    )
