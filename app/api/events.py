"""A job watched live, as server-sent events: its progress, and each picture as it is finished."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from werkzeug.exceptions import ClientDisconnected

from app.api.connection import require_client
from app.errors import JobsUnavailable, OutOfSpace, TooManyStreams, UnknownJob
from app.schemas.jobs import item_answer, job_answer

if TYPE_CHECKING:
    from app.jobs.reading import Reading
    from app.jobs.rows import JobRow

_POLL_S = 0.5
_PROGRESS_S = 1.0
"""Progress is told at most this often."""
_HEARTBEAT_S = 15.0
"""Silence after which something is sent, for proxies that end a silent connection."""
_AWAY_S = 2.0
_PAGE = 200
_RETRY_MS = 2000
"""After how long a browser that lost its connection is to come again."""


class Streams:
    """The streams of one process; each costs a thread, so they are limited."""

    def __init__(self, limit: int) -> None:
        self.ending = threading.Event()
        """Set when the process is to end: streams end as well, and their clients come again to another."""
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)

    def take(self) -> None:
        """Take a place, to be given back by `leave`; raises `TooManyStreams`."""
        if not self._free.acquire(blocking=False):
            msg = f"{self._limit} clients of this worker watch jobs live, which is the limit (HEATLENS_EVENT_STREAMS)."
            raise TooManyStreams(msg, limit=self._limit, retry_after_s=5)

    def leave(self) -> None:
        """Give a place back."""
        self._free.release()


class Stream:
    """What one client is sent of one job."""

    def __init__(
        self, ledger: "Reading", job: "JobRow", *, after: int, ending: threading.Event, environ: Mapping[str, Any]
    ) -> None:
        self._ledger = ledger
        self._job = job
        self._after = after
        self._ending = ending
        self._client = require_client(environ)
        self._shown: JobRow | None = None
        self._shown_at = 0.0
        self._sent_at = 0.0

    def __iter__(self) -> Iterator[bytes]:
        """Yield events until the job is over and told of, the client has gone, or the process ends."""
        yield b"retry: %d\n\n" % _RETRY_MS
        try:
            while not self._ending.is_set():
                try:
                    yield from self._news()
                    if self._is_told():
                        yield _event("end", self._answer())
                        return
                except (JobsUnavailable, OutOfSpace):  # it is waited for: a browser that is refused does not come again
                    self._ending.wait(_AWAY_S)
                yield from self._heartbeat()
                self._ending.wait(_POLL_S)
                self._require_client()
        except (ClientDisconnected, UnknownJob):  # nobody is there any more, or nothing
            return

    def _news(self) -> Iterator[bytes]:
        """Yield what has changed since this was asked last."""
        if self._shown is not None:
            self._job = self._ledger.job(self._job.id)
        now = time.monotonic()
        if self._shown is None or (self._shown != self._job and now - self._shown_at >= _PROGRESS_S):
            told = _event("progress", self._answer())
            self._shown, self._shown_at, self._sent_at = self._job, now, now
            yield told
        yield from self._items()

    def _heartbeat(self) -> Iterator[bytes]:
        """Break a silence that lasts, also while the database is away."""
        now = time.monotonic()
        if now - self._sent_at >= _HEARTBEAT_S:
            self._sent_at = now
            yield b": still here\n\n"

    def _items(self) -> Iterator[bytes]:
        """Yield the outcomes that the job had when it was read. One that is tried again has left its number."""
        while self._after < self._job.events and not self._ending.is_set():
            page = self._ledger.events(self._job.id, after=self._after, limit=_PAGE)
            for row in page:
                self._after = row.event or self._after
                yield _event("item", item_answer(row, self._job.id), id_=self._after)
            if not page:
                self._after = self._job.events
            self._sent_at = time.monotonic()
            self._require_client()

    def _require_client(self) -> None:
        if self._client is not None:
            self._client(None)  # type: ignore[arg-type]  # it looks at the connection alone

    def _is_told(self) -> bool:
        return self._job.is_finished and self._after >= self._job.events

    def _answer(self) -> BaseModel:
        return job_answer(self._job, self._ledger.rate_per_s(self._job))


def _event(kind: str, data: BaseModel, *, id_: int | None = None) -> bytes:
    """Write an event; JSON has no line breaks of its own, so the data is one line."""
    number = "" if id_ is None else f"id: {id_}\n"
    return f"{number}event: {kind}\ndata: {data.model_dump_json()}\n\n".encode()
