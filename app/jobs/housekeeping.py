"""What is kept, and what goes: jobs that are too old or too many, those that were deleted, uploads that broke off,
and pictures whose time is over.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from app.config import Settings
from app.errors import UnknownJob
from app.jobs.artifacts import Store
from app.jobs.ledger import Ledger
from app.jobs.shelf import Shelf

_LONGEST_UPLOAD_S = 24 * 3600.0
_SETTLES_S = 60.0
"""How long a worker that lives may still write files of a deleted job: until it looks, and what it began is written."""
_JUMP_S = 3600.0
_DISTRUST_S = 6 * 3600.0
"""After the time of day has jumped ahead, as long nothing goes for its age: the clock may be wrong, or soon right."""
_log = logging.getLogger(__name__)


class Housekeeping:
    """Does the rounds, for all processes in one; what fails is tried again in the next round."""

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._settings = settings
        self._shelf = Shelf(ledger.database, store, settings)
        self._clock = clock
        self._ages = _Ages(clock, time_of_day)
        self._settles_s = settings.job_stall_s + _SETTLES_S  # one that is stopped may go on until it is killed
        self._emptied: dict[str, float] = {}
        """When the files of a deleted job were removed first."""

    def tick(self) -> None:
        """Do one round. Raises `JobsUnavailable` while the database is away."""
        now = self._ages.now()
        if now is not None:
            self._drop_abandoned(now)
            self._expire(now)
        self._make_room()
        self._remove_deleted()
        if now is not None:
            self._shelf.sweep()

    def _drop_abandoned(self, now: float) -> None:
        """Forget uploads that nobody finished."""
        for job_id in self._ledger.abandoned(now - _LONGEST_UPLOAD_S):
            if self._remove_files(job_id):
                self._ledger.discard(job_id)

    def _expire(self, now: float) -> None:
        """Delete what has been over for too long."""
        if not self._settings.job_retention_s:
            return
        before = now - self._settings.job_retention_s
        for job_id in self._ledger.expired(before):
            self._delete(job_id, before, "it is older than HEATLENS_JOB_RETENTION_S")

    def _make_room(self) -> None:
        """Delete the oldest finished jobs while all together are too large."""
        limit = self._settings.job_store_bytes
        if not limit:
            return
        now = time.time()
        excess = self._ledger.total_bytes() - limit
        for job_id, size_bytes in self._ledger.oldest_finished():
            if excess <= 0:
                return
            self._delete(job_id, now, "all jobs together are larger than HEATLENS_JOB_STORE_BYTES")
            excess -= size_bytes

    def _delete(self, job_id: str, finished_before: float, why: str) -> None:
        _log.info("job %s is deleted, unless somebody tries it again: %s", job_id, why)
        with suppress(UnknownJob):  # somebody else was faster
            self._ledger.delete(job_id, finished_before=finished_before)

    def _remove_deleted(self) -> None:
        """Remove the files of deleted jobs at once, and what workers wrote after that before the rows go too."""
        now = self._clock()
        deleted = self._ledger.deleted()
        self._emptied = {job_id: self._emptied[job_id] for job_id in deleted if job_id in self._emptied}
        for job_id in deleted:
            since = self._emptied.get(job_id)
            if since is None:
                self._shelf.end_links_of(job_id)
                if self._remove_files(job_id):
                    self._emptied[job_id] = now
            elif now - since >= self._settles_s and self._remove_files(job_id):
                self._ledger.forget(job_id)

    def _remove_files(self, job_id: str) -> bool:
        """Say whether nothing is left."""
        try:
            self._store.delete_tree(job_id)
        except OSError as error:
            _log.warning("the files of job %s cannot be deleted now: %s", job_id, error)
            return False
        return True


class _Ages:
    """The time of day, unless it has just jumped: what is deleted for its age by a wrong clock does not come back."""

    def __init__(self, clock: Callable[[], float], time_of_day: Callable[[], float]) -> None:
        self._clock = clock
        self._time_of_day = time_of_day
        self._ahead_s = time_of_day() - clock()
        self._believed_at = clock()

    def now(self) -> float | None:
        """Return the time of day; None for some hours after it jumped ahead, unless it jumps back."""
        now = self._time_of_day()
        ahead_s = now - self._clock()
        jump_s = ahead_s - self._ahead_s
        if jump_s < -_JUMP_S:
            self._believed_at = self._clock()
        elif jump_s > _JUMP_S:
            self._believed_at = self._clock() + _DISTRUST_S
            hours = jump_s / 3600, _DISTRUST_S / 3600
            _log.warning("the clock jumped ahead by %.1f hours; nothing is deleted for its age for %g hours", *hours)
        self._ahead_s = ahead_s
        return now if self._clock() >= self._believed_at else None
