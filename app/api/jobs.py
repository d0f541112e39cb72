"""`POST /v1/jobs`, and what can be done to a job; what comes of it is `app.api.job_results`'."""

from typing import Any

from flask import Response, request
from flask_openapi3 import APIBlueprint, Tag
from flask_openapi3.types import ResponseDict
from pydantic import ValidationError

from app.api import job_results
from app.api.documents import PROBLEMS, operation_id, picture_operation
from app.api.events import Streams
from app.api.job_requests import KEY_HEADER, REPLAYED_HEADER, make_job
from app.jobs.jobs import Jobs
from app.jobs.options import REPEATABLE, JobOptions
from app.jobs.rows import JobRow
from app.schemas.jobs import JobAnswer, JobPath, job_answer, job_path
from app.security import only_of
from app.service import Service

_BINARY = {"type": "string", "format": "binary"}
_KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "A word of the client's own: the same request again, with the same word, gives the same job; "
    "another request with that word is refused (422).",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_PICTURES: dict[str, Any] = {
    "image": {"type": "array", "items": _BINARY, "description": "The pictures, each with its file name."},
    "archive": {**_BINARY, "description": "Or a zip, or a tar (as it is, or packed by gzip, bzip2 or xz), of them."},
    "source": {
        "type": "string",
        "description": "Or where the server finds them, if the operator allows that: a URL of a folder or a file, or "
        "with `*`, `[...]` and `**` as in `file:///data/pictures/**/*.jpg`, `s3://bucket/prefix/*.png`.",
    },
}


def blueprint(jobs: Jobs, service: Service, streams: Streams) -> APIBlueprint:
    """Return the routes below `/v1/jobs`, all of them: flask-openapi3 documents a path for one blueprint only."""
    api = APIBlueprint(
        "jobs",
        __name__,
        url_prefix="/v1/jobs",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="jobs")],
        abp_responses=PROBLEMS,
    )

    @api.post(
        "",
        description="Has many pictures explained, by workers that go on whatever happens. Options may stand in the "
        "form or the JSON body, or in the query. The answer's `Location` is where to ask how far it is.",
        openapi_extensions=_operation(service.catalogue.parameter_schemas()),
        responses=_accepted(),
    )
    def create_job() -> Response:
        """Make a job of pictures, of an archive, or of what is found at a source."""
        made = make_job(jobs)
        response = _answer(jobs, made.job, 202)
        response.headers["Location"] = job_path(made.job.id)
        if made.replayed:
            response.headers[REPLAYED_HEADER] = "true"
        return response

    @api.post("/<id>/cancel", responses={200: JobAnswer})
    def cancel_job(path: JobPath) -> Response:
        """Stop a job: what waits never starts, and what runs ends with its batch."""
        return _answer(jobs, jobs.cancel(path.id), 200)

    @api.post("/<id>/retry", responses={202: JobAnswer})
    def retry_job(path: JobPath) -> Response:
        """Have the pictures that failed explained again, and those that a cancelled job left out."""
        return _answer(jobs, jobs.retry(path.id), 202)

    @api.delete("/<id>", responses={204: None})
    def delete_job(path: JobPath) -> Response:
        """Delete a job with its pictures and results; one that still runs is stopped."""
        jobs.delete(path.id)
        return Response(status=204)

    job_results.add_routes(api, jobs, streams)
    api.before_request(lambda: _require_own(jobs))
    return api


def _require_own(jobs: Jobs) -> None:
    """Raise `UnknownJob` for another's job, on whatever route has a job in its path."""
    id_, owner = (request.view_args or {}).get("id"), only_of()
    if id_ is None or owner is None or request.method == "OPTIONS":
        return
    try:
        JobPath(id=id_)
    except ValidationError:  # the route says so
        return
    jobs.ledger.job(id_, owner=owner)


def _answer(jobs: Jobs, job: JobRow, status: int) -> Response:
    answer = job_answer(job, jobs.ledger.rate_per_s(job))
    return Response(answer.model_dump_json(), status, content_type="application/json")


def _operation(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what `picture_operation` says of these options, with many pictures in place of one."""
    one = picture_operation(JobOptions, parameters=parameters)
    bodies = one["requestBody"]["content"]
    form, as_json = bodies["multipart/form-data"], bodies["application/json"]
    repeated = {name: {"style": "form", "explode": True} for name in sorted(REPEATABLE)}
    return {
        "parameters": [
            *(parameter for parameter in one["parameters"] if parameter["in"] == "query"),
            {"name": "source", "in": "query", "required": False, "schema": {"type": "string"}},
            _KEY,
        ],
        "requestBody": {
            "required": False,
            "description": "The pictures, or where they are.",
            "content": {
                "multipart/form-data": {"schema": _with(form["schema"], _PICTURES), "encoding": repeated},
                "application/json": {
                    "schema": _with(as_json["schema"], {"source": _PICTURES["source"]}),
                    "example": {"source": "file:///data/pictures/**/*.jpg"},
                },
            },
        },
    }


def _with(schema: dict[str, Any], pictures: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body that has these in place of one picture, one of them."""
    options = {name: field for name, field in schema["properties"].items() if name != "image"}
    one_of = [{"required": [name]} for name in pictures]
    return {
        "type": "object",
        "properties": {**pictures, **options},
        "oneOf": one_of,
        "additionalProperties": False,
    }


def _accepted() -> ResponseDict:
    headers = {
        "Location": {"description": "Where the job is.", "schema": {"type": "string"}},
        REPLAYED_HEADER: {
            "description": f"`true` where the job was there already, by its `{KEY_HEADER}`.",
            "schema": {"type": "string"},
        },
    }
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{JobAnswer.__name__}"}}}
    return {"202": {"description": "The job, which is queued.", "headers": headers, "content": content}}
