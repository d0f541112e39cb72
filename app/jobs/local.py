"""A job of this machine alone, without a server: its database and store lie in a folder beside the results."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from app.config import PREFIX, Settings
from app.errors import NoPictures, ServiceError
from app.jobs.artifacts import STORED, Store, input_key
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.ledger import Ledger
from app.jobs.own_source import OwnSource
from app.jobs.rows import ItemRow, JobRow, NewItem
from app.jobs.supervisor import command

_OWN = ".heatlens"
_ROWS_AT_ONCE = 1000
_POLL_S = 0.25
_LAST_LINES = 15


class BatchError(ServiceError):
    """A batch cannot be run here, or not go on."""

    code = "batch_failed"


class OtherBatch(BatchError):
    """The folder has the results of another batch."""

    code = "other_batch"


class Tally(NamedTuple):
    """How far a batch has come, in pictures."""

    total: int
    done: int
    failed: int
    waiting_for: str | None


class Batch:
    """The batch of a folder. One process at a time may have it, see `locked`."""

    def __init__(self, settings: Settings, source: str, out: Path) -> None:
        self.out = Path(os.path.abspath(out))  # without `..`, as the source is written
        self.folder = self.out / _OWN
        self._about = self.folder / "batch.json"
        self.source = OwnSource(source)
        self.source.require_apart(self.out)
        own = _own_settings(settings, self.folder, self.source.allowed)
        self.settings = settings.model_copy(update=own)
        self._environment = os.environ | {PREFIX + name.upper(): _text(value) for name, value in own.items()}
        self._database = Database(self.settings)
        queue = ShardQueue(self._database)
        self.ledger = Ledger(self._database, queue, shard_pictures=settings.job_shard_pictures)
        self.store = Store(self.settings)

    @contextmanager
    def locked(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Have the folder to oneself. Raises `OtherBatch` if it is one of another source or of other options."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "batch.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BatchError(f"Another `heatlens batch` is at work in {self.out}.") from error
            self._require_same(options)
            self._database.migrate()
            try:
                yield
            finally:
                self._database.close()

    def submit_new(self, options: Mapping[str, Any], name: str) -> JobRow | None:
        """Make a job of those pictures of the source that no job of this folder has, if there are any.

        Raises `NoPictures` where the source has none at all.
        """
        for unfinished in self.ledger.abandoned(time.time()):  # by a command that was killed
            self.store.delete_tree(unfinished)
            self.ledger.discard(unfinished)
        known = {item.name for job in self.jobs() for item in self.items(job)}
        job_id = self.ledger.open(owner="")
        new = self._new_items(job_id, known)
        added = 0
        while rows := list(islice(new, _ROWS_AT_ONCE)):
            self.ledger.add(job_id, added, rows)
            added += len(rows)
        if added:
            self._note_what(options)
            return self.ledger.submit(job_id, name=name, options=options)
        self.ledger.discard(job_id)
        if not known:
            raise NoPictures(f"There are no pictures in {self.source.text}.")
        return None

    def jobs(self) -> list[JobRow]:
        """Return all jobs of the folder, the oldest first."""
        return self.ledger.jobs(limit=1_000_000)[::-1]

    def items(self, job: JobRow) -> Iterator[ItemRow]:
        """Yield the pictures of a job."""
        after = None
        while page := self.ledger.items(job.id, after=after, limit=_ROWS_AT_ONCE):
            yield from page
            after = page[-1].number

    def tally(self) -> Tally:
        """Return how far all jobs of the folder are."""
        return _tally(self.jobs())

    def failures(self, limit: int) -> Iterator[ItemRow]:
        """Yield the first pictures that failed."""
        for job in self.jobs():
            found = self.ledger.items(job.id, limit=limit, status="failed")
            yield from found
            limit -= len(found)
            if limit <= 0:
                return

    def resume(self, *, retry: bool) -> list[str]:
        """Return the jobs that have something to do; with `retry` also those whose failed pictures are tried again."""
        for job in self.jobs():
            if job.status == "cancelled" or (retry and job.is_finished and job.failed):
                self.ledger.retry(job.id)
        return [job.id for job in self.jobs() if not job.is_finished]

    def run(self, job_ids: Iterable[str]) -> Iterator[Tally]:
        """Have jobs done by worker processes, one for each device, and yield now and then how far they are.

        Raises `BatchError` where the workers cannot go on. Whoever stops this, stops the workers; what they have not
        done is done the next time.
        """
        ids = list(job_ids)
        with self._workers() as workers:
            while True:
                jobs = self._database.patiently(lambda: [self.ledger.job(job_id) for job_id in ids])
                yield _tally(jobs)
                if all(job.is_finished for job in jobs):
                    return
                if all(worker.poll() is not None for worker in workers):
                    raise BatchError(f"No worker can go on. Its last words were:\n{self._last_words()}")
                time.sleep(_POLL_S)

    def _require_same(self, options: Mapping[str, Any]) -> None:
        """Raise `OtherBatch` unless the folder is new or has been used for the same."""
        try:
            found = json.loads(self._about.read_text())
        except FileNotFoundError:
            return
        if found != self._wanted(options):
            msg = f"{self.out} has the results of another batch, {json.dumps(found)}; take another folder for --out."
            raise OtherBatch(msg, field="out")

    def _note_what(self, options: Mapping[str, Any]) -> None:
        temporary = self._about.with_suffix(".new")
        temporary.write_text(json.dumps(self._wanted(options), indent=2))
        temporary.replace(self._about)

    def _wanted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"source": self.source.text, "options": dict(options)}

    def _new_items(self, job_id: str, known: set[str]) -> Iterator[NewItem]:
        if self.source.is_archive:
            yield from self._unpacked(job_id, known)
            return
        for found in self.source.found(self.settings, self.out):
            if found.name not in known:
                yield NewItem(found.name, found.url)

    def _unpacked(self, job_id: str, known: set[str]) -> Iterator[NewItem]:
        """Yield the pictures of an archive, each written to the store before."""
        numbers = count()
        for member in self.source.members(self.settings):
            if member.name in known:
                deque(member.data, maxlen=0)  # it has to be read before the next one is
                continue
            key, sha256 = input_key(job_id, next(numbers)), hashlib.sha256()
            size = self.store.write(key, _hashed(member.data, sha256))
            yield NewItem(member.name, f"{STORED}{key}", sha256.hexdigest(), size)

    @contextmanager
    def _workers(self) -> Iterator[list["subprocess.Popen[bytes]"]]:
        settings = self.settings
        started = command(stall_s=settings.job_stall_s, grace_s=settings.graceful_timeout_s + 5, parent=os.getpid())
        with open(self.folder / "worker.log", "ab") as log:
            workers = [
                subprocess.Popen(  # noqa: S603
                    started, env=self._environment, stdout=log, stderr=log, start_new_session=True
                )
                for _ in settings.devices
            ]
        try:
            yield workers
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _end(workers, number, patience_s=settings.graceful_timeout_s + 10)

    def _last_words(self) -> str:
        return "\n".join((self.folder / "worker.log").read_text(errors="replace").splitlines()[-_LAST_LINES:])


def _tally(jobs: Sequence[JobRow]) -> Tally:
    waiting = next(filter(None, (job.waiting_for for job in jobs)), None)
    return Tally(
        sum(job.total for job in jobs), sum(job.done for job in jobs), sum(job.failed for job in jobs), waiting
    )


def _end(workers: list["subprocess.Popen[bytes]"], number: signal.Signals, *, patience_s: float) -> None:
    """Send a signal to those that still run, and wait for them."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(number)
    ends = time.monotonic() + patience_s
    for worker in workers:
        try:
            worker.wait(max(0.1, ends - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            return


def _own_settings(settings: Settings, folder: Path, allowed: str) -> dict[str, Any]:
    """Return what differs from the operator's settings: the place, what may be read, and that nothing is cleared."""
    return {
        "data_dir": folder,
        "database_url": "",
        "artifacts_url": "",
        "job_sources": (allowed,),
        "job_retention_s": 0.0,
        "job_store_bytes": 0,
        "models": settings.models,
    }


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _hashed(pieces: Iterable[bytes], sha256: Any) -> Iterator[bytes]:
    for piece in pieces:
        sha256.update(piece)
        yield piece
