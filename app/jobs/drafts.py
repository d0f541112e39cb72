"""A job that is being made: its pictures come in one by one, and either all of it becomes a job or nothing remains."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from app.config import Settings
from app.errors import IdempotencyConflict, JobsUnavailable, QuotaExceeded, ServiceError, UnknownJob
from app.jobs.artifacts import STORED, Store, input_key
from app.jobs.ledger import Ledger
from app.jobs.names import shown
from app.jobs.options import Asked, to_json
from app.jobs.room import require_room
from app.jobs.rows import JobRow, NewItem
from app.jobs.unpacking import empty, too_large, too_many

_ITEMS_AT_ONCE = 1000
_RETRY_QUOTA_S = 60
_RETRY_STORE_S = 5
_log = logging.getLogger(__name__)


class Draft:
    """Use it in a `with`: at its end, what was not submitted is gone, rows and files."""

    def __init__(self, ledger: Ledger, store: Store, settings: Settings, *, owner: str) -> None:
        self._ledger = ledger
        self._store = store
        self._settings = settings
        self._owner = owner
        self.count = 0
        self._new: list[NewItem] = []
        self._payload = hashlib.sha256()
        self._is_to_stay = self._is_unsure = False
        self._left_bytes: int | None = None

    def __enter__(self) -> Self:
        self.id = self._ledger.open(owner=self._owner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_to_stay:
            return
        try:
            self._remove()
        except (OSError, ServiceError) as failed:
            _log.warning("what there is of job %s is left to the housekeeping: %s", self.id, failed)

    def _remove(self) -> None:
        if not self._is_unsure:
            self._store.delete_tree(self.id)
            self._ledger.discard(self.id)
            return
        self._ledger.discard(self.id)  # which only takes what was not accepted
        try:
            self._ledger.job(self.id)
        except UnknownJob:
            self._store.delete_tree(self.id)

    def is_repeated(self, key: str | None) -> bool:
        """Whether the owner submitted a job with this key before."""
        return key is not None and self._ledger.has_key(self._owner, key)

    def check_quota(self) -> None:
        """Raise `QuotaExceeded` where the owner has more jobs, this one among them, or bytes than one may have."""
        usage, settings = self._ledger.usage(self._owner), self._settings
        if usage.unfinished_jobs > settings.max_caller_jobs:
            limit, setting = settings.max_caller_jobs, "HEATLENS_MAX_CALLER_JOBS"
            msg = f"There are {limit} unfinished jobs of yours, and no more may be ({setting}); wait, or cancel some."
            raise QuotaExceeded(msg, field="jobs", limit=limit, setting=setting, retry_after_s=_RETRY_QUOTA_S)
        if settings.max_caller_bytes:
            self._left_bytes = settings.max_caller_bytes - usage.size_bytes
            self._spend(0)

    def check_room(self) -> None:
        """Raise `OutOfSpace` where the store has no room for more."""
        with _working_store():
            room = self._store.room()
        require_room(room, self._settings)

    def add_picture(self, name: str, data: Iterable[bytes]) -> None:
        """Store a picture as it comes. Raises `EmptyImage` for one that would be a file without bytes."""
        self._require_place()
        self.check_room()
        counted = _Counted(name, data, self._settings.max_body_bytes)
        key = input_key(self.id, self.count)
        with _working_store():
            size_bytes = self._store.write(key, counted)
        self._spend(size_bytes)
        sha256 = counted.sha256.hexdigest()
        self.tell_apart(name, sha256)
        self._add(NewItem(shown(name), f"{STORED}{key}", sha256, size_bytes))

    def add_found(self, item: NewItem) -> None:
        """Note a picture that is read when its turn comes."""
        self._require_place()
        self._add(item)

    def tell_apart(self, *facts: str) -> None:
        """Note what tells this job from another one with the same Idempotency-Key, beside its options."""
        self._payload.update(json.dumps(facts).encode() + b"\n")

    def submit(self, asked: Asked, *, key: str | None) -> JobRow:
        """Hand the job to the workers; where the owner did so before with this key, return that job instead.

        Raises `IdempotencyConflict` where that one was another.
        """
        self._flush()
        described: dict[str, Any] = {
            "options": to_json(asked),
            "name": shown(asked.options.name),
            "webhook": asked.options.webhook,
        }
        self.tell_apart(json.dumps(described, sort_keys=True))
        payload_sha256 = self._payload.hexdigest()
        self._is_unsure = True  # whatever is raised from here on, it may have been accepted all the same
        try:
            job = self._ledger.submit(self.id, **described, idempotency_key=key, payload_sha256=payload_sha256)
        except IdempotencyConflict:
            self._is_unsure = False
            raise
        self._is_unsure, self._is_to_stay = False, job.id == self.id
        return job

    def _add(self, item: NewItem) -> None:
        self._new.append(item)
        self.count += 1
        if len(self._new) == _ITEMS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._ledger.add(self.id, self.count - len(self._new), self._new)
        self._new = []

    def _require_place(self) -> None:
        if self.count == self._settings.max_job_items:
            raise too_many(self._settings.max_job_items)

    def _spend(self, size_bytes: int) -> None:
        if self._left_bytes is None:
            return
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            limit, setting = self._settings.max_caller_bytes, "HEATLENS_MAX_CALLER_BYTES"
            msg = f"The files of all your jobs would have more than {limit} bytes ({setting}); delete some jobs."
            raise QuotaExceeded(msg, field="image", limit=limit, setting=setting, retry_after_s=_RETRY_QUOTA_S)


@contextmanager
def _working_store() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.warning("the store of the jobs does not work: %s", error)
        msg = f"The store of the jobs' pictures does not work; try again in {_RETRY_STORE_S} s."
        raise JobsUnavailable(msg, retry_after_s=_RETRY_STORE_S) from error


class _Counted:
    """Bytes that are counted and hashed on their way."""

    def __init__(self, name: str, data: Iterable[bytes], limit: int) -> None:
        self.sha256 = hashlib.sha256()
        self._name = name
        self._data = data
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        size_bytes = 0
        for chunk in self._data:
            size_bytes += len(chunk)
            if size_bytes > self._limit:
                raise too_large(self._name, self._limit)
            self.sha256.update(chunk)
            yield chunk
        if not size_bytes:
            raise empty(self._name)
