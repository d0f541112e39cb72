"""What the ledger says of jobs and pictures, and what is told to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

JobStatus = Literal["receiving", "queued", "running", "succeeded", "completed_with_errors", "failed", "cancelled"]
ItemStatus = Literal["waiting", "succeeded", "failed", "cancelled"]

STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)
UNFINISHED: frozenset[str] = frozenset({"receiving", "queued", "running"})


@dataclass(frozen=True)
class NewItem:
    """A picture that a job is to explain. `input` is `store:KEY` or a URL; `sha256` is None if it was not read yet."""

    name: str
    input: str
    sha256: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class JobRow:
    """A job. `done` counts pictures with an outcome, failed ones among them; times are seconds since 1970."""

    id: str
    owner: str
    name: str
    status: JobStatus
    options: Mapping[str, Any]
    webhook: str | None
    waiting_for: str | None
    total: int
    done: int
    failed: int
    events: int
    attempt: int
    size_bytes: int
    created_at: float
    started_at: float | None
    finished_at: float | None

    @property
    def is_finished(self) -> bool:
        """Whether nothing will be done any more, unless somebody asks for a retry."""
        return self.status not in UNFINISHED


@dataclass(frozen=True)
class ItemRow:
    """A picture of a job and what came of it. `event` is the place of its outcome in the job's sequence, from 1."""

    number: int
    name: str
    input: str
    status: ItemStatus
    event: int | None
    attempts: int
    sha256: str | None
    size_bytes: int
    label: str | None
    target: int | None
    confidence: float | None
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    finished_at: float | None


@dataclass(frozen=True)
class Outcome:
    """What came of a picture: a result, or an error `{"code", "detail"}`."""

    number: int
    sha256: str | None = None
    artifact_bytes: int = 0
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Shard:
    """Pictures of one job that a worker takes together: those that wait. `attempt` counts the job's retries."""

    job_id: str
    shard: int
    attempt: int
    options: Mapping[str, Any]
    items: Sequence[ItemRow]


@dataclass(frozen=True)
class Usage:
    """What a caller has now."""

    unfinished_jobs: int
    size_bytes: int


@dataclass(frozen=True)
class Census:
    """How many jobs there are by status, all of them named; pictures that wait in them, and the bytes of all files."""

    jobs: Mapping[JobStatus, int]
    waiting: int
    size_bytes: int
