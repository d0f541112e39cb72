"""What the HTTP server answers by itself, before there is a request that the app could answer: as problems too."""

import json
import uuid
from http import HTTPStatus
from typing import NamedTuple

from gunicorn.http import errors


class Refusal(NamedTuple):
    """What is wrong with what a client sent. The text has nothing of it: it may be logged."""

    status: HTTPStatus
    code: str
    detail: str


TOO_SLOW = Refusal(
    HTTPStatus.REQUEST_TIMEOUT, "headers_too_slow", "The request's headers were not there within {limit} s ({setting})."
)
UNEXPECTED = Refusal(
    HTTPStatus.INTERNAL_SERVER_ERROR,
    "internal_error",
    "Something unexpected went wrong; the server's log has the request_id.",
)
_NOT_HTTP = Refusal(HTTPStatus.BAD_REQUEST, "bad_request", "The request is not HTTP that can be understood.")
_SAID: dict[type[Exception], Refusal] = {
    errors.LimitRequestLine: Refusal(
        HTTPStatus.REQUEST_URI_TOO_LONG, "uri_too_long", "The request's first line is too long; options fit in a body."
    ),
    errors.LimitRequestHeaders: Refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "headers_too_large",
        "The headers are too many, or one of them is too long.",
    ),
    errors.UnsupportedTransferCoding: Refusal(
        HTTPStatus.NOT_IMPLEMENTED, "not_implemented", "Of Transfer-Encoding only chunked is understood."
    ),
    errors.ExpectationFailed: Refusal(
        HTTPStatus.EXPECTATION_FAILED, "expectation_failed", "Of Expect only 100-continue is understood."
    ),
}
_OUR_FAULT = (errors.ConfigurationProblem, errors.InvalidResponseHeader, errors.InvalidResponseHeaderName)


def refusal(error: BaseException) -> Refusal:
    """Return what a client is told of an error of gunicorn's, or of ours."""
    if isinstance(error, errors.ParseException) and not isinstance(error, _OUR_FAULT):
        return _SAID.get(type(error), _NOT_HTTP)
    return UNEXPECTED


def answer(refused: Refusal) -> tuple[bytes, str]:
    """Return the whole answer, with the headers that all answers have, and the id of the request."""
    from app.telemetry import HEADERS  # in the worker: it imports the metrics, which must not be before the fork

    request_id = uuid.uuid4().hex
    members = {
        "type": f"/docs/errors#{refused.code}",
        "title": refused.status.phrase,
        "status": refused.status.value,
        "detail": refused.detail,
        "code": refused.code,
        "request_id": request_id,
    }
    body = json.dumps(members).encode()
    headers = {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        "X-Request-Id": request_id,
        **HEADERS,
    }
    lines = [f"HTTP/1.1 {refused.status.value} {refused.status.phrase}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body, request_id
