"""What a job has brought: `GET /v1/jobs` and all below it."""

import hashlib
from collections.abc import Generator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from flask import Response, request
from flask_openapi3 import APIBlueprint
from flask_openapi3.types import ResponseDict
from pydantic import BaseModel, Field, TypeAdapter

from app.api.connection import whole_or_cut
from app.api.cursors import read_cursor, write_cursor
from app.api.events import Stream, Streams
from app.errors import JobsUnavailable, UnknownItem
from app.jobs import results
from app.jobs.artifacts import result_key
from app.schemas.jobs import (
    JOB_ID,
    ArtifactPath,
    EventsHeaders,
    EventsQuery,
    FileHeaders,
    ItemAnswer,
    ItemList,
    ItemPath,
    ItemsQuery,
    JobAnswer,
    JobList,
    JobPath,
    JobsQuery,
    OverlayQuery,
    item_answer,
    job_answer,
)
from app.security import caller, gate, is_admin

if TYPE_CHECKING:
    from app.jobs.jobs import Jobs
    from app.jobs.rows import ItemRow

_PICTURES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
_ARRAYS = {"npz": "application/x-npz"}
_RETRY_AFTER_S = 5
_BINARY = {"type": "string", "format": "binary"}
_JOB_PLACE = TypeAdapter(tuple[Annotated[float, Field(allow_inf_nan=False)], Annotated[str, Field(pattern=JOB_ID)]])
_ITEM_PLACE = TypeAdapter(Annotated[int, Field(ge=0, lt=2**31)])


def add_routes(api: APIBlueprint, jobs: "Jobs", streams: Streams) -> None:
    """Add the routes to a blueprint; the streams of events end once `streams.ending` is set."""
    _add_listings(api, jobs)
    _add_files(api, jobs)
    _add_streams(api, jobs, streams)


def _add_listings(api: APIBlueprint, jobs: "Jobs") -> None:
    @api.get("", responses={200: JobList})
    def list_jobs(query: JobsQuery) -> Response:
        """List the client's jobs, or with an admin's key all, newest first; without the rate where they are over."""
        return _json(_job_list(jobs, query))

    @api.get("/<id>", responses={200: JobAnswer})
    def job(path: JobPath) -> Response:
        """Say how far a job has come."""
        row = jobs.ledger.job(path.id)
        return _json(job_answer(row, jobs.ledger.rate_per_s(row)))

    @api.get("/<id>/items", responses={200: ItemList})
    def job_items(path: JobPath, query: ItemsQuery) -> Response:
        """List a job's pictures in its order, with what was found."""
        return _json(_item_list(jobs, path.id, query))

    @api.get("/<id>/items/<int:number>", responses={200: ItemAnswer})
    def job_item(path: ItemPath) -> Response:
        """Describe one picture of a job."""
        return _json(item_answer(jobs.ledger.item(path.id, path.number), path.id))


def _add_files(api: APIBlueprint, jobs: "Jobs") -> None:
    @api.get("/<id>/items/<int:number>/overlay", responses=_files(_PICTURES))
    def job_overlay(path: ItemPath, query: OverlayQuery, header: FileHeaders) -> Response:
        """Return the picture with the heat of one target, as the job's options have it drawn."""
        item = jobs.ledger.item(path.id, path.number)
        return _file(jobs, path.id, item, _overlay(item, query.target))

    kinds = _PICTURES | _ARRAYS

    @api.get("/<id>/items/<int:number>/artifacts/<name>", responses=_files(kinds))
    def job_artifact(path: ArtifactPath, header: FileHeaders) -> Response:
        """Return a file of a picture, by the name that the picture's `artifacts` has."""
        item = jobs.ledger.item(path.id, path.number)
        if path.name not in results.names_of(item):
            raise UnknownItem(f"Picture {path.number} has no file {path.name!r}.", choices=results.names_of(item))
        return _file(jobs, path.id, item, path.name)


def _add_streams(api: APIBlueprint, jobs: "Jobs", streams: Streams) -> None:
    @api.get("/<id>/events", responses=_stream("text/event-stream"))
    def job_events(path: JobPath, query: EventsQuery, header: EventsHeaders) -> Response:
        """Watch a job live: `progress` at most each second, an `item` for each picture, `end` when it is over.

        The events of pictures are numbered. All of them are sent, or those behind the one that is known.
        """
        row = jobs.ledger.job(path.id)
        after = (query.after or 0) if header.last_event is None else header.last_event
        streams.take()
        stream = Stream(jobs.ledger, row, after=after, ending=streams.ending, environ=request.environ)
        response = Response(gate().while_good(iter(stream)), content_type="text/event-stream")
        response.call_on_close(streams.leave)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"  # nginx would hold events back
        return response

    @api.get("/<id>/results.ndjson", responses=_stream("application/x-ndjson"))
    def results_ndjson(path: JobPath) -> Response:
        """Return one line of JSON for each picture that is finished."""
        row = jobs.ledger.job(path.id)
        return _download(results.ndjson(jobs.ledger, row), "application/x-ndjson", f"{row.id}.ndjson")

    @api.get("/<id>/results.zip", responses=_stream("application/zip"))
    def results_zip(path: JobPath) -> Response:
        """Return a zip of `results.ndjson` and the files of all pictures that are finished."""
        row = jobs.ledger.job(path.id)
        return _download(results.archive(jobs.ledger, jobs.store, row), "application/zip", f"{row.id}.zip")


def _job_list(jobs: "Jobs", query: JobsQuery) -> JobList:
    owner = None if is_admin() else caller()
    scope = ["jobs", owner, query.status]
    before = None if query.cursor is None else read_cursor(scope, query.cursor, _JOB_PLACE)
    found = jobs.ledger.jobs(owner=owner, status=query.status, before=before, limit=query.limit + 1)
    rows, more = found[: query.limit], len(found) > query.limit
    return JobList(
        jobs=[job_answer(row, None if row.is_finished else jobs.ledger.rate_per_s(row)) for row in rows],
        next=write_cursor(scope, [rows[-1].created_at, rows[-1].id]) if more else None,
    )


def _item_list(jobs: "Jobs", job_id: str, query: ItemsQuery) -> ItemList:
    wanted = query.model_dump(exclude={"limit", "cursor"})
    scope = ["items", job_id, wanted]
    after = None if query.cursor is None else read_cursor(scope, query.cursor, _ITEM_PLACE)
    found = jobs.ledger.items(job_id, after=after, limit=query.limit + 1, **wanted)
    rows, more = found[: query.limit], len(found) > query.limit
    return ItemList(
        items=[item_answer(row, job_id) for row in rows],
        next=write_cursor(scope, rows[-1].number) if more else None,
    )


def _overlay(item: "ItemRow", target: int) -> str:
    """Return the name of the picture of a target; raises `UnknownItem` where there is none."""
    explanations = item.result["explanations"] if item.result else []
    if not explanations:
        raise UnknownItem(f"Picture {item.number} is {item.status}, so there is nothing to show.")
    if target >= len(explanations):
        msg = f"Picture {item.number} has no target {target}; it has {len(explanations)}, from 0."
        raise UnknownItem(msg, field="target")
    name = explanations[target]["artifacts"].get("overlay")
    if name is None:
        raise UnknownItem(f"Picture {item.number} has no overlay: the job's option `artifacts` did not ask for it.")
    return str(name)


def _file(jobs: "Jobs", job_id: str, item: "ItemRow", name: str) -> Response:
    """Answer a file of a picture. It is what a worker made, under a name that we made; only its kind is looked at."""
    tag = hashlib.sha256(f"{job_id}/{item.event}/{name}".encode()).hexdigest()[:32]
    kind = name.rpartition(".")[2]
    response = Response(content_type=(_PICTURES | _ARRAYS).get(kind, "application/octet-stream"))
    response.headers["Cache-Control"] = "private, no-cache"
    if kind not in _PICTURES:
        response.headers["Content-Disposition"] = f"attachment; filename={name}"
    response.set_etag(tag)
    if request.if_none_match.contains(tag):
        response.status_code = 304
        return response
    try:
        file = jobs.store.open(result_key(job_id, name, item.number))
    except FileNotFoundError as error:
        raise UnknownItem(f"The file {name} of picture {item.number} is gone.") from error
    except OSError as error:
        msg = f"The store of the jobs' files does not answer; try again in {_RETRY_AFTER_S} s."
        raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error
    response.content_length = results.size_of(file)
    response.response = whole_or_cut(results.read_chunks(file))
    response.call_on_close(file.close)
    return response


def _download(pieces: Generator[bytes], content_type: str, name: str) -> Response:
    """Answer a stream to be saved. Its first piece is made at once: what fails by then is an error like others.

    What fails later, a job that is deleted or a key that is revoked, cuts the connection.
    """
    first = next(pieces, b"")
    rest = gate().while_good(chain([first], pieces), whole=True)
    response = Response(whole_or_cut(rest), content_type=content_type)
    response.call_on_close(pieces.close)  # which the chain does not
    response.headers["Content-Disposition"] = f"attachment; filename={name}"
    response.headers["Cache-Control"] = "no-store"
    return response


def _json(answer: BaseModel) -> Response:
    response = Response(answer.model_dump_json(), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def _files(kinds: dict[str, str]) -> ResponseDict:
    content = {media_type: {"schema": _BINARY} for media_type in kinds.values()}
    known = {"description": "The client has this file: `If-None-Match` names its `ETag`."}
    return {"200": {"description": "The file.", "content": content}, "304": known}


def _stream(media_type: str) -> ResponseDict:
    return {"200": {"description": "A stream.", "content": {media_type: {"schema": {"type": "string"}}}}}
