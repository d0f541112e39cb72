"""What the routes share that answer a model, a picture, arrays or a chart, as the client wants it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flask import Response, g, request
from flask_openapi3 import APIBlueprint
from pydantic import BaseModel

from app.api.connection import require_client
from app.api.documents import picture_operation, picture_responses
from app.api.negotiation import preferred
from app.api.requests import read_timeout_s
from app.charts import MEDIA_TYPES as CHARTS
from app.drawing import MEDIA_TYPES as PICTURES
from app.errors import BadOption
from app.schemas.answers import Answer, Timings

_SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Charts have style attributes; opened by itself, one may have nothing else."""
_MEDIA_TYPES: Mapping[str, str] = dict([*PICTURES.items(), *CHARTS.items()])

_MODEL_HEADERS = ("X-HeatLens-Model", "X-HeatLens-With-Model")


def add_route(
    api: APIBlueprint,
    path: str,
    view: Any,
    options: type[BaseModel],
    answer: type[Answer],
    formats: Sequence[str],
    *,
    several: bool = False,
    parameters: Mapping[str, Any] | None = None,
) -> None:
    """Add a route that takes a picture, or `several`, for POST and for the PUT that `curl -T` sends."""
    operation = picture_operation(options, parameters=parameters, several=several)
    responses = picture_responses(answer, [_MEDIA_TYPES[name] for name in formats], cached=False)
    api.post(path, openapi_extensions=operation, responses=responses)(view)
    api.put(path, doc_ui=False)(view)


def chosen_format(option: str | None, able: Sequence[str]) -> str:
    """Return the option `format`, if it is one of those that can be made, else what the `Accept` header prefers."""
    if option is None:
        return preferred({_MEDIA_TYPES[name]: name for name in able})
    if option not in able:
        msg = f"format: this cannot be made as {option}; valid are {', '.join(able)}."
        raise BadOption(msg, field="format", choices=list(able))
    return option


def patience() -> dict[str, Any]:
    """Return until when, and for whom, the models work: `timeout_s` and `watch`."""
    return {"timeout_s": read_timeout_s(), "watch": require_client(request.environ)}


def answered(
    format_: str,
    models: Sequence[str],
    timings: Timings,
    answer: Callable[[], Answer],
    content: Callable[[], bytes],
) -> Response:
    """Make an answer in a format, JSON with `answer` (its members `request_id` and `timings_s` are filled in here).

    `models` are the names of who answered: one, or the first and the second; `timings` are what it took so far.
    """
    started = time.perf_counter()
    made = answer() if format_ == "json" else content()
    spent = timings.model_copy(update={"render": timings.render + time.perf_counter() - started})
    if isinstance(made, Answer):
        made = made.model_copy(update={"request_id": g.request_id, "timings_s": spent}).model_dump_json().encode()
    response = Response(made, content_type=_MEDIA_TYPES[format_])
    response.headers["Vary"] = "Accept"
    response.headers["Cache-Control"] = "private, no-cache"
    response.headers.update(zip(_MODEL_HEADERS, models, strict=False))
    response.headers["Server-Timing"] = server_timing(spent)
    if format_ == "svg":
        response.headers["Content-Security-Policy"] = _SVG_POLICY
    return response


def server_timing(spent: Timings) -> str:
    """Say where the time went as a `Server-Timing` header does, in milliseconds."""
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in spent)
