"""The reading half of the book of the jobs: one job, lists, pages, sums. It changes nothing and locks nothing."""

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select

from app.errors import UnknownItem, UnknownJob
from app.jobs.database import Database
from app.jobs.rows import STATUSES, UNFINISHED, Census, ItemRow, ItemStatus, JobRow, JobStatus, Usage
from app.jobs.tables import items, jobs

_LATELY = 500
"""Outcomes over which the rate is taken."""
_JOB = [field.name for field in fields(JobRow)]
_ITEM = [field.name for field in fields(ItemRow)]
_AT_WORK = ("queued", "running")
_VISIBLE = jobs.c.deleted_at.is_(None), jobs.c.status != "receiving"


class Reading:
    """Reads the book."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def job(self, job_id: str, *, owner: str | None = None) -> JobRow:
        """Return a job, if it is that owner's or no matter whose; raises `UnknownJob`."""
        wanted = select(jobs).where(jobs.c.id == job_id, *_VISIBLE)
        if owner is not None:
            wanted = wanted.where(jobs.c.owner == owner)
        with self.database.read() as connection:
            found = connection.execute(wanted).one_or_none()
        if found is None:
            raise UnknownJob(f"There is no job {job_id[:100]!r}.")
        return job_row(found)

    def jobs(
        self,
        *,
        owner: str | None = None,
        status: JobStatus | None = None,
        before: tuple[float, str] | None = None,
        limit: int,
    ) -> list[JobRow]:
        """Return jobs, the newest first; `before` is `created_at` and `id` of the last one that was seen."""
        wanted = select(jobs).where(*_VISIBLE)
        if owner is not None:
            wanted = wanted.where(jobs.c.owner == owner)
        if status is not None:
            wanted = wanted.where(jobs.c.status == status)
        if before is not None:
            made, last = before
            older = jobs.c.created_at < made
            wanted = wanted.where(or_(older, (jobs.c.created_at == made) & (jobs.c.id < last)))
        with self.database.read() as connection:
            found = connection.execute(wanted.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit))
            return [job_row(row) for row in found]

    def rate_per_s(self, job: JobRow) -> float | None:
        """Return how many outcomes a second the job had lately, until now or until it was over.

        What an earlier attempt brought does not count.
        """
        if job.started_at is None:
            return None
        lately = items.c.job_id == job.id, items.c.event > job.events - _LATELY, items.c.finished_at >= job.started_at
        with self.database.read() as connection:
            count, first = connection.execute(select(func.count(), func.min(items.c.finished_at)).where(*lately)).one()
        begun = first if count == _LATELY else job.started_at
        seconds = (job.finished_at or time.time()) - begun
        return float(count / seconds) if count and seconds > 0 else None

    def items(
        self,
        job_id: str,
        *,
        after: int | None = None,
        limit: int,
        start: int | None = None,
        status: ItemStatus | None = None,
        label: str | None = None,
        min_confidence: float | None = None,
        max_confidence: float | None = None,
    ) -> list[ItemRow]:
        """Return pictures of a job by number, beginning behind `after`, with those filters."""
        job = self.job(job_id)
        wanted: list[ColumnElement[bool]] = [items.c.job_id == job_id]
        if after is not None:
            wanted.append(items.c.number > after)
        if start is not None:
            wanted.append(items.c.number >= start)
        if status is not None:
            if (status == "cancelled") is not (job.status == "cancelled") and status in ("cancelled", "waiting"):
                return []
            wanted.append(items.c.status == ("waiting" if status == "cancelled" else status))
        if label is not None:
            wanted.append(items.c.label == label)
        if min_confidence is not None:
            wanted.append(items.c.confidence >= min_confidence)
        if max_confidence is not None:
            wanted.append(items.c.confidence <= max_confidence)
        return self._items(job, wanted, items.c.number, limit)

    def item(self, job_id: str, number: int) -> ItemRow:
        """Return one picture of a job; raises `UnknownJob` and `UnknownItem`."""
        job = self.job(job_id)
        found = self._items(job, [items.c.job_id == job_id, items.c.number == number], items.c.number, 1)
        if not found:
            raise UnknownItem(f"The job has no picture {number}; it has {job.total}, from 0.")
        return found[0]

    def events(self, job_id: str, *, after: int, limit: int) -> list[ItemRow]:
        """Return pictures in the order of their outcomes, beginning behind the event `after`."""
        wanted = [items.c.job_id == job_id, items.c.event > after]
        return self._items(self.job(job_id), wanted, items.c.event, limit)

    def has_key(self, owner: str, idempotency_key: str) -> bool:
        """Whether the owner submitted a job with this key before."""
        of_key = jobs.c.owner == owner, jobs.c.idempotency_key == idempotency_key
        with self.database.read() as connection:
            return connection.scalar(select(jobs.c.id).where(*of_key)) is not None

    def usage(self, owner: str) -> Usage:
        """Return what one caller has now."""
        mine = jobs.c.owner == owner, jobs.c.deleted_at.is_(None)
        with self.database.read() as connection:
            unfinished = connection.scalar(select(func.count()).where(*mine, jobs.c.status.in_(UNFINISHED)))
            size_bytes = connection.scalar(select(func.coalesce(func.sum(jobs.c.size_bytes), 0)).where(*mine))
        return Usage(unfinished or 0, int(size_bytes or 0))

    def census(self) -> Census:
        """Count the jobs."""
        by_status = select(
            jobs.c.status,
            func.count(),
            func.sum(jobs.c.total - jobs.c.done),
            func.sum(jobs.c.size_bytes),
        )
        with self.database.read() as connection:
            found = connection.execute(by_status.where(jobs.c.deleted_at.is_(None)).group_by(jobs.c.status)).all()
        counts = {status: count for status, count, _, _ in found}
        return Census(
            jobs={status: counts.get(status, 0) for status in STATUSES},
            waiting=int(sum(left for status, _, left, _ in found if status in UNFINISHED)),
            size_bytes=int(sum(size for _, _, _, size in found)),
        )

    def wanted(self, job_id: str, attempt: int) -> bool:
        """Whether a worker is to go on with what it began in this attempt of a job."""
        alive = jobs.c.id == job_id, jobs.c.attempt == attempt, jobs.c.deleted_at.is_(None), jobs.c.status.in_(_AT_WORK)
        with self.database.read() as connection:
            return connection.scalar(select(jobs.c.id).where(*alive)) is not None

    def expired(self, before: float) -> list[str]:
        """Return the jobs that were over before that time."""
        return self._ids(*_VISIBLE, jobs.c.finished_at < before)

    def deleted(self) -> list[str]:
        """Return the jobs that are invisible, and whose files are still there."""
        return self._ids(jobs.c.deleted_at.is_not(None))

    def abandoned(self, before: float) -> list[str]:
        """Return the jobs that were begun before that time, and never submitted."""
        return self._ids(jobs.c.status == "receiving", jobs.c.created_at < before)

    def oldest_finished(self) -> list[tuple[str, int]]:
        """Return the jobs that are over, with their bytes, those first that have been over for longest."""
        finished = select(jobs.c.id, jobs.c.size_bytes).where(*_VISIBLE, jobs.c.finished_at.is_not(None))
        with self.database.read() as connection:
            return [(row.id, row.size_bytes) for row in connection.execute(finished.order_by(jobs.c.finished_at))]

    def total_bytes(self) -> int:
        """Return the bytes of all jobs but those that are being deleted."""
        kept = select(func.coalesce(func.sum(jobs.c.size_bytes), 0)).where(jobs.c.deleted_at.is_(None))
        with self.database.read() as connection:
            return int(connection.scalar(kept) or 0)

    def _ids(self, *wanted: ColumnElement[bool]) -> list[str]:
        with self.database.read() as connection:
            return list(connection.scalars(select(jobs.c.id).where(*wanted)))

    def _items(
        self, job: JobRow, wanted: Sequence[ColumnElement[bool]], order: ColumnElement[Any], limit: int
    ) -> list[ItemRow]:
        with self.database.read() as connection:
            found = connection.execute(select(items).where(*wanted).order_by(order).limit(limit))
            return [item_row(row, cancelled=job.status == "cancelled") for row in found]


def job_row(row: Row[Any]) -> JobRow:
    """Return a row of the table as what is known outside."""
    return JobRow(**{name: getattr(row, name) for name in _JOB})


def item_row(row: Row[Any], *, cancelled: bool = False) -> ItemRow:
    """Return a row of the table as what is known outside."""
    values = {name: getattr(row, name) for name in _ITEM}
    if cancelled and values["status"] == "waiting":
        values["status"] = "cancelled"
    return ItemRow(**values)
