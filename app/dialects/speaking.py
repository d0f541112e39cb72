"""What the dialects have in common on the way in and out."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Never

from flask import Response, json, request
from flask_openapi3 import APIBlueprint
from flask_openapi3.types import ResponseDict
from werkzeug.exceptions import MethodNotAllowed

from app.errors import BadOption, UnknownVersion
from app.known_errors import KnownError
from app.service import Service

_JSON: dict[str, Any] = {"application/json": {"schema": {}}}
_ERROR = {"description": "An error, as the protocol has it.", "content": _JSON}
ANSWERS: ResponseDict = {
    "200": {"description": "The answer, as the protocol has it.", "content": _JSON},
    "422": _ERROR,
    "default": _ERROR,
}
"""Responses of every route; what they hold is described by the protocols."""

VERSIONS = ("1", "1.0")
"""A model has one version; TorchServe writes the second."""

PICTURE_FAULTS = frozenset(
    {
        "picture_unavailable",
        "empty_image",
        "image_too_many_bytes",
        "image_too_many_pixels",
        "image_side_too_long",
        "unsupported_image_format",
        "unsupported_image_pixels",
        "corrupt_image",
        "wrong_channels",
        "versus_equals_target",
        "layer_never_ran",
        "non_finite_scores",
        "non_finite_map",
    }
)
"""Codes of what is wrong with one picture, and not with the others of a request."""

_ALLOWED = ("POST", "OPTIONS")
_VERSIONED = re.compile(r"(.+?)/(?:versions/)?([0-9][^/]*)", re.DOTALL)


def at_fault(error: KnownError) -> bool:
    """Say whether an error is that of one picture."""
    return error.code in PICTURE_FAULTS


def require_version(service: Service, model: str) -> None:
    """Raise `UnknownVersion` for a path that is a model's, with a version behind it that there is none of.

    A model's name may have slashes, so that the routes take both together for a name.
    """
    found = _VERSIONED.fullmatch(model)
    names = service.registry.names() if found else []
    if found and model not in names and found[1] in names:
        msg = f"Model {found[1]!r} has no version {found[2][:100]!r}; its only version is {VERSIONS[0]}."
        raise UnknownVersion(msg, choices=[VERSIONS[0]])


def post_alone(api: APIBlueprint, *paths: str) -> None:
    """Refuse other methods for paths that a wider GET route, as that of a model, would take."""
    for path in paths:
        api.add_url_rule(path, "post_alone", _refuse, methods=["GET", "PUT", "PATCH", "DELETE"])

    @api.after_request
    def allow(response: Response) -> Response:
        """Name the one method that there is: Flask would name those of the refusal, and of the wider route."""
        if request.method == "OPTIONS" and request.url_rule and request.url_rule.rule.endswith(paths):
            response.headers["Allow"] = ", ".join(_ALLOWED)
        return response


def _refuse(**_: object) -> Never:
    raise MethodNotAllowed(valid_methods=_ALLOWED)


def error_alone(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a problem as the protocols of KServe have it."""
    return {"error": problem["detail"]}


def said(value: object) -> str:
    """Return what a client sent, short enough to be told again, and by its kind where it may be nested."""
    shown = repr(value) if value is None or isinstance(value, str | bool | int | float) else type(value).__name__
    return shown if len(shown) <= 100 else f"{shown[:100]}..."


def only_parameters(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise `BadOption` for a parameter of an input or output that nobody would look at."""
    if unknown := sorted(given.keys() - set(known)):
        msg = f"{what} cannot have the parameter {unknown[0][:100]!r}; known are {', '.join(known)}."
        raise BadOption(msg, field=unknown[0][:100], choices=list(known))


def answer(content: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Answer JSON whose members keep their order."""
    return Response(json.dumps(content, sort_keys=False), status, content_type="application/json")
