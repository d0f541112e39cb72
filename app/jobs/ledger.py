"""The book of the jobs: which there are, which pictures, and what came of each.

Every change is one transaction that first locks the job's row, so changes of one job come one after the other, and the
counts are written with what they count. The first outcome of a picture stands: whoever works on it a second time
changes nothing. The reading of lists, pages and sums is `app.jobs.reading`'s.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.exc import IntegrityError

from app.errors import IdempotencyConflict, JobState, UnknownJob
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.reading import Reading, item_row, job_row
from app.jobs.rows import JobRow, NewItem, Outcome, Shard
from app.jobs.tables import items, jobs

__all__ = ["Ledger"]

_ROWS_AT_ONCE = 1000


class Ledger(Reading):
    """Writes the book, and reads it."""

    def __init__(self, database: Database, queue: ShardQueue, *, shard_pictures: int) -> None:
        super().__init__(database)
        self._queue = queue
        self._shard_pictures = shard_pictures

    # Making a job.

    def open(self, *, owner: str) -> str:
        """Begin a job that nobody sees before it is submitted, and return its id."""
        job_id = uuid.uuid4().hex
        row = {"id": job_id, "owner": owner, "name": "", "options": {}, "status": "receiving"}
        with self.database.write() as connection:
            connection.execute(sa.insert(jobs).values(created_at=time.time(), **row))
        return job_id

    def add(self, job_id: str, first_number: int, new: Sequence[NewItem]) -> None:
        """Add pictures to a job that was not submitted yet."""
        if not new:
            return
        rows = [
            {
                "job_id": job_id,
                "number": number,
                "shard": number // self._shard_pictures,
                "name": item.name,
                "input": item.input,
                "sha256": item.sha256,
                "size_bytes": item.size_bytes,
            }
            for number, item in enumerate(new, first_number)
        ]
        with self.database.write() as connection:
            connection.execute(sa.insert(items), rows)
            size_bytes = jobs.c.size_bytes + sum(item.size_bytes for item in new)
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(size_bytes=size_bytes))

    def submit(
        self,
        job_id: str,
        *,
        options: Mapping[str, Any],
        name: str = "",
        webhook: str | None = None,
        idempotency_key: str | None = None,
        payload_sha256: str = "",
    ) -> JobRow:
        """Let the workers have a job, whole or not at all.

        Where the owner submitted a job with this key before, that one is returned, and this one is left as it was;
        raises `IdempotencyConflict` where its payload was another.
        """
        said: dict[str, Any] = {"options": dict(options), "name": name, "webhook": webhook}
        key: dict[str, Any] = {"idempotency_key": idempotency_key, "payload_sha256": payload_sha256}
        try:
            with self.database.write() as connection:
                job = _locked(connection, job_id, receiving=True)
                if older := _with_key(connection, job.owner, idempotency_key):
                    return _the_same(older, payload_sha256)
                total = connection.scalar(select(func.count()).where(items.c.job_id == job_id)) or 0
                shards = -(-total // self._shard_pictures)
                values = {"status": "queued", "total": total, "shards": shards, "created_at": time.time()}
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**values, **said, **key))
                self._queue.enqueue(connection, job_id, [(shard, 1 + shard) for shard in range(shards)])
        except IntegrityError:  # both were submitted at once, and the other one was first
            return self.submit(job_id, **said, **key)
        return self.job(job_id)

    def discard(self, job_id: str) -> None:
        """Forget a job that was not submitted."""
        with self.database.write() as connection:
            connection.execute(sa.delete(jobs).where(jobs.c.id == job_id, jobs.c.status == "receiving"))

    # What people do with a job.

    def cancel(self, job_id: str) -> JobRow:
        """Stop a job: what waits never starts, and what runs ends with its batch. Raises `JobState` if it is over."""
        with self.database.write() as connection:
            job = _locked(connection, job_id)
            if job.is_finished and job.status != "cancelled":
                raise JobState(f"The job is over ({job.status}), so there is nothing to cancel.", job_status=job.status)
            if not job.is_finished:
                self._stop(connection, job)
        return self.job(job_id)

    def retry(self, job_id: str) -> JobRow:
        """Have the failed pictures of a finished job explained again, and those that a cancelled one left out."""
        with self.database.write() as connection:
            job = _locked(connection, job_id)
            if not job.is_finished:
                raise JobState(f"The job is still {job.status}; wait, or cancel it first.", job_status=job.status)
            again = ["failed", "waiting"] if job.status == "cancelled" else ["failed"]
            chosen = items.c.job_id == job_id, items.c.status.in_(again)
            numbers = connection.scalars(select(items.c.number).where(*chosen).order_by(items.c.number)).all()
            if not numbers:
                msg = "No picture of this job failed, so there is nothing to try again."
                raise JobState(msg, job_status=job.status)
            failed = job.failed
            nothing = dict.fromkeys(["event", "error", "finished_at", "label", "target", "confidence"])
            connection.execute(sa.update(items).where(*chosen).values(status="waiting", shard=-1, **nothing))
            counts = {"done": job.done - failed, "failed": 0, "attempt": job.attempt + 1}
            times = {"started_at": None, "finished_at": None, "status": "queued"}
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**counts, **times))
            self._reshard(connection, job_id, -1, numbers)
        return self.job(job_id)

    def delete(self, job_id: str, *, finished_before: float | None = None) -> None:
        """Make a job invisible, and stop it; its files and rows go later, see `deleted` and `forget`.

        With `finished_before` only if it has been over since before that time: somebody may have retried it.
        """
        with self.database.write() as connection:
            job = _locked(connection, job_id)
            if finished_before is not None and not (job.finished_at and job.finished_at < finished_before):
                return
            if not job.is_finished:
                self._stop(connection, job, tell=False)
            gone = {"deleted_at": time.time(), "idempotency_key": None}
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(gone))

    # What workers do with a job.

    def begin(self, job_id: str, shard: int) -> Shard | None:
        """Return the pictures of a shard that wait; None where nothing is to be done any more."""
        with self.database.write() as connection:
            job = _locked(connection, job_id, wanted=True)
            if job is None:
                return None
            mine = items.c.job_id == job_id, items.c.shard == shard, items.c.status == "waiting"
            connection.execute(sa.update(items).where(*mine).values(attempts=items.c.attempts + 1))
            rows = connection.execute(select(items).where(*mine).order_by(items.c.number)).all()
            if rows:
                begun = {"waiting_for": None, "status": "running", "started_at": job.started_at or time.time()}
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(begun))
        return Shard(job_id, shard, job.attempt, job.options, [item_row(row) for row in rows]) if rows else None

    def record(self, job_id: str, outcomes: Sequence[Outcome], *, attempt: int | None = None) -> None:
        """Note what came of pictures, unless something did before; the last one finishes the job.

        Nothing is noted that was begun in another attempt than the present one.
        """
        with self.database.write() as connection:
            job = _locked(connection, job_id, wanted=True)
            if job is not None and attempt in (None, job.attempt):
                self._record(connection, job, outcomes)

    def give_up(self, job_id: str, shard: int, error: Mapping[str, Any]) -> None:
        """Note that what still waits in a shard failed with this error."""
        with self.database.write() as connection:
            job = _locked(connection, job_id, wanted=True)
            if job is None:
                return
            mine = items.c.job_id == job_id, items.c.shard == shard, items.c.status == "waiting"
            numbers = connection.scalars(select(items.c.number).where(*mine).order_by(items.c.number)).all()
            self._record(connection, job, [Outcome(number, error=error) for number in numbers])

    def hand_back(self, job_id: str, shard: int) -> None:
        """Put what still waits in a shard into a new one, for whichever worker comes."""
        with self.database.write() as connection:
            if _locked(connection, job_id, wanted=True) is None:
                return
            mine = items.c.job_id == job_id, items.c.shard == shard, items.c.status == "waiting"
            numbers = connection.scalars(select(items.c.number).where(*mine).order_by(items.c.number)).all()
            self._reshard(connection, job_id, shard, numbers)

    def wait_for(self, job_id: str, what: str | None) -> None:
        """Note what the job waits for, or that it goes on."""
        with self.database.write() as connection:
            at_work = jobs.c.id == job_id, jobs.c.status.in_(["queued", "running"])
            connection.execute(sa.update(jobs).where(*at_work).values(waiting_for=what))

    def forget(self, job_id: str) -> None:
        """Remove all that is known of a job."""
        self._queue.forget(job_id)
        with self.database.write() as connection:
            connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))

    # From here on in somebody's transaction, with the job's row locked.

    def _record(self, connection: Connection, job: JobRow, outcomes: Sequence[Outcome]) -> None:
        waiting = _waiting(connection, job.id, [outcome.number for outcome in outcomes])
        fresh = [outcome for outcome in outcomes if outcome.number in waiting]
        if not fresh:
            return
        now = time.time()
        connection.execute(
            _OUTCOME, [_values(job.id, outcome, event, now) for event, outcome in enumerate(fresh, job.events + 1)]
        )
        done, failed = job.done + len(fresh), job.failed + sum(outcome.error is not None for outcome in fresh)
        size_bytes = job.size_bytes + sum(outcome.artifact_bytes for outcome in fresh)
        values: dict[str, Any] = {"done": done, "failed": failed, "events": job.events + len(fresh)}
        if done == job.total:
            values |= {"status": _verdict(job.total, failed), "finished_at": now, "waiting_for": None}
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(size_bytes=size_bytes, **values))
        if done == job.total and job.webhook:
            self._queue.enqueue_webhook(connection, job.id, job.attempt)

    def _stop(self, connection: Connection, job: JobRow, *, tell: bool = True) -> None:
        stopped = {"status": "cancelled", "finished_at": time.time(), "waiting_for": None}
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(stopped))
        self._queue.cancel(connection, job.id)
        if tell and job.webhook:
            self._queue.enqueue_webhook(connection, job.id, job.attempt)

    def _reshard(self, connection: Connection, job_id: str, old: int, numbers: Sequence[int]) -> None:
        """Give the pictures, which are in the shard `old` and wait, new shards, and enqueue these."""
        first = connection.scalar(select(jobs.c.shards).where(jobs.c.id == job_id)) or 0
        parts = list(_parts(numbers, self._shard_pictures))
        for shard, part in enumerate(parts, first):
            mine = items.c.job_id == job_id, items.c.shard == old, items.c.number.between(part[0], part[-1])
            connection.execute(sa.update(items).where(*mine, items.c.status == "waiting").values(shard=shard))
        connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(shards=first + len(parts)))
        queued = [(shard, 1 + part[0] // self._shard_pictures) for shard, part in enumerate(parts, first)]
        self._queue.enqueue(connection, job_id, queued)


def _locked(connection: Connection, job_id: str, *, receiving: bool = False, wanted: bool = False) -> Any:
    """Return the job, its row locked. Raises `UnknownJob`; with `wanted`, None is for one that is over or gone."""
    found = connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update()).one_or_none()
    if wanted:
        return job_row(found) if found and found.deleted_at is None and found.status in ("queued", "running") else None
    if found is None or found.deleted_at is not None or (found.status == "receiving") is not receiving:
        raise UnknownJob(f"There is no job {job_id[:100]!r}.")
    return job_row(found)


def _with_key(connection: Connection, owner: str, key: str | None) -> Any:
    if key is None:
        return None
    return connection.execute(select(jobs).where(jobs.c.owner == owner, jobs.c.idempotency_key == key)).one_or_none()


def _the_same(older: Any, payload_sha256: str) -> JobRow:
    if older.payload_sha256 != payload_sha256:
        msg = f"The Idempotency-Key {older.idempotency_key!r} was used for the job {older.id}, with other contents."
        raise IdempotencyConflict(msg, job=older.id)
    return job_row(older)


def _waiting(connection: Connection, job_id: str, numbers: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for part in _parts(numbers, _ROWS_AT_ONCE):
        mine = items.c.job_id == job_id, items.c.status == "waiting", items.c.number.in_(part)
        found.update(connection.scalars(select(items.c.number).where(*mine)))
    return found


_OUTCOME = (
    sa.update(items)
    .where(items.c.job_id == bindparam("of_job"), items.c.number == bindparam("of_number"))
    .values(
        {
            name: bindparam(f"new_{name}", type_=items.c[name].type)
            for name in (
                "status", "event", "artifact_bytes", "label", "target", "confidence", "result", "error", "finished_at"
            )
        }
        | {"sha256": func.coalesce(bindparam("new_sha256", type_=sa.Text), items.c.sha256)}
    )
)  # fmt: skip


def _values(job_id: str, outcome: Outcome, event: int, now: float) -> dict[str, Any]:
    explanations = outcome.result["explanations"] if outcome.result else []
    first = explanations[0]["target"] if explanations else {}
    return {
        "of_job": job_id,
        "of_number": outcome.number,
        "new_status": "succeeded" if outcome.error is None else "failed",
        "new_event": event,
        "new_sha256": outcome.sha256,
        "new_artifact_bytes": outcome.artifact_bytes,
        "new_label": first.get("label"),
        "new_target": first.get("index"),
        "new_confidence": first.get("probability"),
        "new_result": outcome.result,
        "new_error": outcome.error,
        "new_finished_at": now,
    }


def _verdict(total: int, failed: int) -> str:
    if failed == total:
        return "failed"
    return "completed_with_errors" if failed else "succeeded"


def _parts(numbers: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))
