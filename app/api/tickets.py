"""`/v1/tickets`: a download of a job, as a URL that a browser can go to, since it sends no key of its own with one."""

import re
from datetime import UTC, datetime
from typing import Any

from flask import Response, current_app
from flask_openapi3 import APIBlueprint, Tag
from pydantic import BaseModel, Field
from werkzeug.exceptions import HTTPException

from app.api.bodies import body, json_object, only
from app.api.documents import PROBLEMS, operation_id
from app.errors import BadOption, BadRequestBody
from app.security import TICKET, caller_key_id, gate

_PATH_CHARACTERS = 2000
_PATH = re.compile(r"/v1/jobs/[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Of a job, and in a URL it stands as it is: no host, no query, no step up, nothing that has to be quoted."""


class TicketAnswer(BaseModel):
    """A ticket."""

    url: str = Field(description="Where the download is, for one minute, for whoever has this URL.")
    expires_at: datetime = Field(description="When it is over.")


def blueprint() -> APIBlueprint:
    """Return the route."""
    api = APIBlueprint(
        "tickets",
        __name__,
        url_prefix="/v1/tickets",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="jobs")],
        abp_responses=PROBLEMS,
    )

    @api.post("", openapi_extensions=_operation(), responses={201: TicketAnswer})
    def make_ticket() -> Response:
        """Make a URL below `/v1/jobs/` that a browser can GET without a key, for one minute."""
        path = _path()
        ticket, expires_at = gate().tickets.issue(path, caller_key_id() or "")
        url = f"{path}?{TICKET}={ticket}"
        answer = TicketAnswer(url=url, expires_at=datetime.fromtimestamp(expires_at, UTC))
        response = Response(answer.model_dump_json(), 201, content_type="application/json")
        response.headers["Cache-Control"] = "no-store"
        return response

    return api


def _path() -> str:
    found = json_object(body(), 'Send {"path": "/v1/jobs/.../results.zip"}.')
    only(found, ("path",))
    path = found.get("path")
    if not isinstance(path, str):
        raise BadRequestBody("path has to be a string, as in /v1/jobs/.../results.zip.", field="path")
    if len(path) > _PATH_CHARACTERS or not _is_of_a_job(path):
        msg = f"{path[:100]!r} is nothing that can be had by GET below /v1/jobs/; the path has no host and no query."
        raise BadOption(msg, field="path")
    return path


def _is_of_a_job(path: str) -> bool:
    if not _PATH.fullmatch(path):
        return False
    try:
        endpoint, _ = current_app.url_map.bind("").match(path, method="GET")
    except HTTPException:  # there is no such route, or not for GET
        return False
    return str(endpoint).startswith("jobs.")


def _operation() -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": _PATH_CHARACTERS, "description": "What to download."}},
        "required": ["path"],
        "additionalProperties": False,
    }
    content = {"application/json": {"schema": schema, "example": {"path": "/v1/jobs/j_1/results.zip"}}}
    return {"requestBody": {"required": True, "content": content}}
