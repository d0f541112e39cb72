"""Errors as RFC 9457 problem details: one table from error to status, and the handlers that use it."""

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, current_app, g, json, request
from flask.sansio.app import App
from gunicorn.http.errors import ParseException
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from app import errors as service_errors
from app.engine import errors as engine_errors
from app.imaging import errors as image_errors
from app.known_errors import KNOWN_ERRORS, KnownError
from app.schemas.checking import bad_option
from explainers import errors as explain_errors
from models import errors as model_errors

STATUS: dict[type[Exception], HTTPStatus] = {
    service_errors.ServiceError: HTTPStatus.UNPROCESSABLE_ENTITY,
    service_errors.BadRequestBody: HTTPStatus.BAD_REQUEST,
    service_errors.JsonTooComplex: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    service_errors.NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    service_errors.UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    service_errors.RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    service_errors.Unauthorized: HTTPStatus.UNAUTHORIZED,
    service_errors.Forbidden: HTTPStatus.FORBIDDEN,
    service_errors.KeysUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.DatabaseTooNew: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.DeviceUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.OutOfMemory: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.ModelTooLarge: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.ModelFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    service_errors.AdminDisabled: HTTPStatus.FORBIDDEN,
    service_errors.JobsUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.TooManyStreams: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.UnknownJob: HTTPStatus.NOT_FOUND,
    service_errors.UnknownItem: HTTPStatus.NOT_FOUND,
    service_errors.UnknownImage: HTTPStatus.NOT_FOUND,
    service_errors.UnknownLink: HTTPStatus.NOT_FOUND,
    service_errors.UnknownVersion: HTTPStatus.NOT_FOUND,
    service_errors.LabelStudioUnavailable: HTTPStatus.BAD_GATEWAY,
    service_errors.ImagesFull: HTTPStatus.INSUFFICIENT_STORAGE,
    service_errors.JobState: HTTPStatus.CONFLICT,
    service_errors.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    service_errors.OutOfSpace: HTTPStatus.INSUFFICIENT_STORAGE,
    service_errors.BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    service_errors.TooManyUploads: HTTPStatus.SERVICE_UNAVAILABLE,
    service_errors.ArchiveTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    service_errors.TooManyItems: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    service_errors.JobTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    service_errors.SourceNotAllowed: HTTPStatus.FORBIDDEN,
    explain_errors.ExplainError: HTTPStatus.UNPROCESSABLE_ENTITY,
    explain_errors.NonFiniteScores: HTTPStatus.INTERNAL_SERVER_ERROR,
    explain_errors.NonFiniteMap: HTTPStatus.INTERNAL_SERVER_ERROR,
    model_errors.ModelError: HTTPStatus.INTERNAL_SERVER_ERROR,
    model_errors.UnknownModel: HTTPStatus.NOT_FOUND,
    model_errors.WeightsUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    model_errors.WrongChannels: HTTPStatus.UNPROCESSABLE_ENTITY,
    image_errors.ImageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    image_errors.TooManyBytes: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    image_errors.TooManyPixels: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    image_errors.SideTooLong: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    image_errors.UnknownFormat: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    engine_errors.QueueFull: HTTPStatus.SERVICE_UNAVAILABLE,
    engine_errors.NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    engine_errors.ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    engine_errors.DeviceLost: HTTPStatus.SERVICE_UNAVAILABLE,
    engine_errors.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
}
"""The status of each class of errors; a class that is not named has its base's."""

Shape = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Makes of a problem's members the JSON body that the clients of some interface expect."""

_SHAPES = "heatlens_problem_shapes"
_log = logging.getLogger(__name__)


def register(app: Flask) -> None:
    """Answer every error of `app` as a problem."""
    for known in KNOWN_ERRORS:
        app.register_error_handler(known, _known)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(ParseException, _unreadable)
    app.register_error_handler(Exception, _unknown)
    metrics = app.extensions["heatlens"].metrics
    metrics.expect_problems(error.code for error in documented_errors() if _is_watched(error.status))


def speak(app: App, pattern: re.Pattern[str], shape: Shape) -> None:
    """Answer the problems of paths that match `pattern` as whole in another shape; the status stays."""
    app.extensions.setdefault(_SHAPES, []).append((pattern, shape))


def problem(status: HTTPStatus, code: str, detail: str, **extra: object) -> Response:
    """Return a problem as a response."""
    members = {
        "type": f"/docs/errors#{code}",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "code": code,
        "request_id": g.request_id,
        **{name: value for name, value in extra.items() if value is not None},
    }
    current_app.extensions["heatlens"].metrics.problem(code)
    shapes: list[tuple[re.Pattern[str], Shape]] = current_app.extensions.get(_SHAPES, [])
    shape = next((shape for pattern, shape in shapes if pattern.fullmatch(request.path)), None)
    body, media_type = (shape(members), "json") if shape else (members, "problem+json")
    response = Response(json.dumps(body), status, content_type=f"application/{media_type}")
    if "retry_after_s" in extra:
        response.headers["Retry-After"] = str(extra["retry_after_s"])
    return response


def status_of(error: type[Exception]) -> HTTPStatus:
    """Return the status of a class of known errors."""
    return next(STATUS[base] for base in error.__mro__ if base in STATUS)


def from_validation(error: ValidationError) -> Response:
    """Answer what flask-openapi3 found wrong in a path or a query."""
    return _known(bad_option(error))


@dataclass(frozen=True)
class DocumentedError:
    """A row of the page that explains the errors."""

    code: str
    status: int
    meaning: str


def documented_errors() -> list[DocumentedError]:
    """Return every error that can be answered, by code; the text is the class's docstring."""
    found = [
        DocumentedError(error.code, status_of(error).value, (error.__doc__ or "").strip().partition("\n")[0])
        for base in KNOWN_ERRORS
        for error in _classes(base)
    ]
    return sorted([*found, *_OURS], key=lambda error: error.code)


_OURS = [
    DocumentedError("body_too_large", 413, "The request body is larger than HEATLENS_MAX_BODY_BYTES."),
    DocumentedError("form_too_large", 413, "A form beyond HEATLENS_MAX_FORM_BYTES or HEATLENS_MAX_FORM_FIELDS."),
    DocumentedError("bad_request", 400, "The request is not HTTP that can be understood."),
    DocumentedError("expectation_failed", 417, "The header Expect asks for what is unknown."),
    DocumentedError("headers_too_large", 431, "The headers are larger than the server reads."),
    DocumentedError("headers_too_slow", 408, "The headers were not there within HEATLENS_HEADER_TIMEOUT_S."),
    DocumentedError("not_implemented", 501, "The body comes in a coding that is not understood."),
    DocumentedError("uri_too_long", 414, "The request's first line is longer than the server reads."),
    DocumentedError("internal_error", 500, "Something unexpected; the server's log has the request_id."),
    DocumentedError("not_found", 404, "There is no such route."),
    DocumentedError("method_not_allowed", 405, "The route exists, but not with this HTTP method."),
]


def _classes(base: type[KnownError]) -> list[type[KnownError]]:
    """Return the errors below `base` that have a code of their own."""
    below = [error for child in base.__subclasses__() for error in (child, *_classes(child))]
    return [error for error in below if "code" in vars(error)]


def _is_watched(status: int) -> bool:
    """Whether a problem may concern whoever runs the server, and not the client alone."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.UNAUTHORIZED


def _known(error: KnownError) -> Response:
    status = status_of(type(error))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("%s: %s", error.code, error)
    traceback.clear_frames(error.__traceback__)  # they hold the picture and the job, which holds the error
    extra = {"field": error.field, **error.extra}
    return problem(status, error.code, str(error), **extra)


def _http(error: HTTPException) -> Response:
    """Answer what Flask and Werkzeug refuse by themselves: unknown routes, wrong methods, bodies too large."""
    if isinstance(error, RequestEntityTooLarge):
        return _too_large()
    status = HTTPStatus(error.code or 500)
    response = problem(status, status.name.lower(), error.description or status.description)
    if allow := dict(error.get_headers()).get("Allow"):
        response.headers["Allow"] = allow
    return response


def _unreadable(_error: ParseException) -> Response:
    return problem(HTTPStatus.BAD_REQUEST, "bad_request_body", "The body's chunks cannot be read.")


def _too_large() -> Response:
    status, config = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, current_app.config
    limit = config["MAX_CONTENT_LENGTH"]
    if request.mimetype == "multipart/form-data" and (request.content_length or 0) <= limit:
        limits = {"fields": config["MAX_FORM_PARTS"] - 1, "bytes": config["MAX_FORM_MEMORY_SIZE"]}
        msg = (
            f"A form may have at most {limits['fields']} fields (HEATLENS_MAX_FORM_FIELDS) of together "
            f"{limits['bytes']} bytes (HEATLENS_MAX_FORM_BYTES) beside the picture, which has a file name."
        )
        return problem(status, "form_too_large", msg, limits=limits)
    msg = f"The request body is larger than {limit} bytes (HEATLENS_MAX_BODY_BYTES)."
    return problem(status, "body_too_large", msg, limit=limit)


def _unknown(error: Exception) -> Response:
    _log.error("unexpected error", exc_info=error)
    traceback.clear_frames(error.__traceback__)
    msg = "Something unexpected went wrong; the server's log has the request_id."
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", msg)
