"""Batch jobs and their items: what is asked about them, and the JSON answers."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.answers import Answer, Facts, MapFacts

if TYPE_CHECKING:
    from app.jobs.rows import ItemRow, JobRow

JobStatus = Literal["queued", "running", "succeeded", "completed_with_errors", "failed", "cancelled"]
ItemStatus = Literal["waiting", "succeeded", "failed", "cancelled"]

JOB_ID = r"^[A-Za-z0-9_-]{1,64}$"

_CURSOR = "Where to go on: `next` of the answer before, with all other options as they were."


class JobPath(BaseModel):
    """The job in the path."""

    id: str = Field(pattern=JOB_ID, description="Id of the job, as `POST /v1/jobs` answered it.")


class ItemPath(JobPath):
    """The picture in the path."""

    number: int = Field(ge=0, lt=2**31, description="Place of the picture in the job, from 0.")


class ArtifactPath(ItemPath):
    """The file in the path."""

    name: str = Field(max_length=200, description="Name of the file, as in `artifacts` of the picture.")


class JobsQuery(BaseModel, extra="forbid"):
    """Options of `GET /v1/jobs`."""

    status: JobStatus | None = Field(None, description="Only jobs in this state.")
    limit: int = Field(50, ge=1, le=1000, description="How many jobs to list at most.")
    cursor: str | None = Field(None, max_length=200, description=_CURSOR)


class ItemsQuery(BaseModel, extra="forbid"):
    """Options of `GET /v1/jobs/{id}/items`."""

    start: int | None = Field(None, ge=0, lt=2**31, description="Only pictures from this place in the job on, from 0.")
    status: ItemStatus | None = Field(None, description="Only pictures in this state.")
    label: str | None = Field(None, pattern=r"^[^\x00]{1,200}$", description="Only pictures explained for this label.")
    min_confidence: float | None = Field(
        None, ge=0, le=1, allow_inf_nan=False, description="Only pictures whose confidence is at least this."
    )
    max_confidence: float | None = Field(
        None, ge=0, le=1, allow_inf_nan=False, description="Only pictures whose confidence is at most this."
    )
    limit: int = Field(100, ge=1, le=1000, description="How many pictures to list at most.")
    cursor: str | None = Field(None, max_length=200, description=_CURSOR)


class OverlayQuery(BaseModel, extra="forbid"):
    """Options of `GET /v1/jobs/{id}/items/{number}/overlay`."""

    target: int = Field(0, ge=0, le=1000, description="Place of the target among those that were asked for, from 0.")


class EventsQuery(BaseModel, extra="forbid"):
    """Options of `GET /v1/jobs/{id}/events`."""

    after: int | None = Field(
        None, ge=0, le=2**53, description="Number of the last event that is known; the header Last-Event-ID wins."
    )


class EventsHeaders(BaseModel):
    """Headers of `GET /v1/jobs/{id}/events`."""

    last_event: int | None = Field(
        None,
        alias="Last-Event-ID",
        ge=0,
        le=2**53,
        description="The last event that the client has; browsers send it by themselves when they come again.",
    )


class FileHeaders(BaseModel):
    """Headers of the routes that answer a file."""

    if_none_match: str | None = Field(
        None, alias="If-None-Match", description="The `ETag` of the file that the client has: 304 if it is the same."
    )


class Progress(Answer):
    """How far a job has come, in pictures."""

    total: int
    done: int = Field(description="Pictures that are finished, the failed ones among them.")
    failed: int


class JobLinks(Answer):
    """Where to go from a job."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    self_: str = Field(alias="self")
    items: str
    events: str
    results_zip: str
    results_ndjson: str
    cancel: str
    retry: str


class JobAnswer(Answer):
    """A batch job."""

    id: str
    name: str
    status: JobStatus = Field(
        description="completed_with_errors: finished, and some pictures failed; failed: no picture was explained."
    )
    waiting_for: str | None = Field(description="What holds the job up, such as `disk_space`; null: nothing.")
    progress: Progress
    rate_per_s: float | None = Field(description="Pictures per second lately; null where nothing ran.")
    eta_s: float | None = Field(description="Seconds to the end at this rate; null where that is not known.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    size_bytes: int = Field(description="What its pictures and results take.")
    options: dict[str, Any] = Field(description="The options that were given, the method's own parameters among them.")
    links: JobLinks


class JobList(Answer):
    """Answer of `GET /v1/jobs`, the newest first."""

    jobs: list[JobAnswer]
    next: str | None = Field(description="Cursor of what follows; null: that was all.")


class ItemExplanation(MapFacts):
    """One map of a picture, and the files that show it."""

    model_config = ConfigDict(extra="ignore")

    artifacts: dict[str, str] = Field(description="Names of its files by kind: `overlay`, `map`.")


class ItemResult(Facts):
    """What `POST /v1/explain` answers of a picture, with names of files in place of pictures.

    What an older or a newer worker wrote beside it is passed over.
    """

    model_config = ConfigDict(extra="ignore")

    explanations: list[ItemExplanation]
    artifacts: dict[str, str] = Field({}, description="Names of files of all maps together by kind: `arrays`.")


class ItemError(Answer):
    """Why a picture could not be explained."""

    model_config = ConfigDict(extra="ignore")

    code: str = Field(description="As in the problem that `/v1/explain` would have answered.")
    detail: str


class ItemLinks(Answer):
    """Where to go from a picture of a job."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    self_: str = Field(alias="self")
    overlay: str | None = Field(description="The first target's picture; null where there is none.")
    artifacts: dict[str, str] = Field(description="Address of each file by its name.")


class ItemFacts(Answer):
    """A picture of a job; a line of `results.ndjson`."""

    number: int = Field(description="Its place in the job, from 0.")
    name: str = Field(description="As it was sent, or its path in the archive or below the source.")
    sha256: str | None = Field(description="Hash of the picture's bytes; null while nobody has read them.")
    status: ItemStatus
    label: str | None = Field(description="Label of the first target.")
    target: int | None = Field(description="Class index of the first target.")
    confidence: float | None = Field(description="Probability of the first target.")
    finished_at: datetime | None
    result: ItemResult | None
    error: ItemError | None


class ItemAnswer(ItemFacts):
    """A picture of a job, with where to go from it."""

    links: ItemLinks


class ItemList(Answer):
    """Answer of `GET /v1/jobs/{id}/items`, in the order of the job."""

    items: list[ItemAnswer]
    next: str | None = Field(description="Cursor of what follows; null: that was all.")


def job_answer(row: "JobRow", rate_per_s: float | None) -> JobAnswer:
    """Describe a job; `rate_per_s` is `Ledger.rate_per_s` of it."""
    return JobAnswer(
        id=row.id,
        name=row.name,
        status=cast("JobStatus", row.status),  # one that is being received is seen by nobody
        waiting_for=row.waiting_for,
        progress=Progress(total=row.total, done=row.done, failed=row.failed),
        rate_per_s=rate_per_s,
        eta_s=_eta_s(row, rate_per_s),
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        started_at=_utc(row.started_at),
        finished_at=_utc(row.finished_at),
        size_bytes=row.size_bytes,
        options=dict(row.options),
        links=_job_links(row.id),
    )


def job_path(job_id: str) -> str:
    """Return where a job is answered."""
    return f"/v1/jobs/{job_id}"


def item_facts(row: "ItemRow") -> ItemFacts:
    """Describe a picture of a job."""
    return ItemFacts(**_item_members(row))


def item_answer(row: "ItemRow", job_id: str) -> ItemAnswer:
    """Describe a picture of the job `job_id`, with its links."""
    members = _item_members(row)
    return ItemAnswer(**members, links=_item_links(job_id, row.number, members["result"]))


def artifact_names(result: ItemResult) -> list[str]:
    """Return the names of all files of a picture, those of the first target first."""
    of_targets = [name for explanation in result.explanations for name in explanation.artifacts.values()]
    return [*of_targets, *result.artifacts.values()]


def _item_members(row: "ItemRow") -> dict[str, Any]:
    return {
        "number": row.number,
        "name": row.name,
        "sha256": row.sha256,
        "status": row.status,
        "label": row.label,
        "target": row.target,
        "confidence": row.confidence,
        "finished_at": _utc(row.finished_at),
        "result": None if row.result is None else ItemResult.model_validate(row.result),
        "error": None if row.error is None else ItemError.model_validate(row.error),
    }


def _job_links(job_id: str) -> JobLinks:
    path = job_path(job_id)
    return JobLinks(
        self_=path,
        items=f"{path}/items",
        events=f"{path}/events",
        results_zip=f"{path}/results.zip",
        results_ndjson=f"{path}/results.ndjson",
        cancel=f"{path}/cancel",
        retry=f"{path}/retry",
    )


def _item_links(job_id: str, number: int, result: ItemResult | None) -> ItemLinks:
    path = f"{job_path(job_id)}/items/{number}"
    names = [] if result is None else artifact_names(result)
    drawn = result is not None and "overlay" in result.explanations[0].artifacts
    return ItemLinks(
        self_=path,
        overlay=f"{path}/overlay" if drawn else None,
        artifacts={name: f"{path}/artifacts/{name}" for name in names},
    )


def _eta_s(row: "JobRow", rate_per_s: float | None) -> float | None:
    """Return the seconds to the end; 0 where it has come, null where nothing moves."""
    if row.is_finished:
        return 0.0 if row.done == row.total else None
    return (row.total - row.done) / rate_per_s if rate_per_s else None


def _utc(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
