"""The ways to ask for a job: a form of any size, which is read as it comes, or JSON. Options as for a picture."""

import json
import re
from collections.abc import Iterator
from typing import Any

from flask import request
from werkzeug.exceptions import ClientDisconnected

from app.api.bodies import body, json_object, require_plain
from app.errors import BadOption, BadRequestBody, UnsupportedMediaType
from app.jobs.intake import job_too_large, options_of, together
from app.jobs.jobs import Jobs, Made
from app.security import caller

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_BOUNDARY = re.compile(r"[\x20-\x7e]{0,69}[\x21-\x7e]")
_CHUNK_BYTES = 2**16
_FORM, _JSON = "multipart/form-data", "application/json"
_WAYS = 'Send a multipart form with parts `image`, an `archive` or a `source`, or JSON {"source": "..."}.'


def make_job(jobs: Jobs) -> Made:
    """Make the job that the current request asks for; what the query says is checked before the body is read."""
    key, query = _key(), options_of(request.args.lists())
    jobs.check_early(query)
    require_plain()
    if request.mimetype == _FORM:
        return jobs.receive(_chunks(jobs.settings.max_job_bytes), _boundary(), query, owner=caller(), key=key)
    if request.mimetype == _JSON:
        return jobs.create(together(query, _json()), owner=caller(), key=key)
    if _has_body():
        msg = f"A body of type {request.mimetype[:100]!r} is not understood. {_WAYS}"
        raise UnsupportedMediaType(msg, choices=[_FORM, _JSON])
    return jobs.create(query, owner=caller(), key=key)


def _key() -> str | None:
    key = request.headers.get(KEY_HEADER)
    if key is not None and not _KEY.fullmatch(key):
        msg = f"{KEY_HEADER} has to be 1 to 255 visible ASCII characters, such as a UUID."
        raise BadOption(msg, field=KEY_HEADER, limit=255)
    return key


def _has_body() -> bool:
    return bool(request.content_length) or "Transfer-Encoding" in request.headers


def _boundary() -> str:
    boundary = request.mimetype_params.get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise BadRequestBody("The Content-Type of the form has no boundary.", field="Content-Type")
    return boundary


def _chunks(limit: int) -> Iterator[bytes]:
    """Return the body as it comes. The intake counts it; without a limit of its own the stream would end at another."""
    if (request.content_length or 0) > limit:
        raise job_too_large(limit)
    request.max_content_length = limit + 1
    return _read()


def _read() -> Iterator[bytes]:
    try:
        while chunk := request.stream.read(_CHUNK_BYTES):
            yield chunk
    except ClientDisconnected as error:
        raise BadRequestBody("The body ended before it was complete.") from error


def _json() -> dict[str, Any]:
    found = json_object(body(), _WAYS)
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # as it is stored: half characters, infinities
    except ValueError as error:
        raise BadRequestBody("The body is not valid JSON.") from error
    return found
