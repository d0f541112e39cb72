"""Bodies of requests, whole and within the limits, and what stands in them as text."""

import base64
import binascii
import re
from typing import Any

from flask import current_app, request
from werkzeug.exceptions import RequestEntityTooLarge

from app.api.json_limits import parsed
from app.errors import BadRequestBody, UnsupportedMediaType

_DATA_URL = re.compile(r"data:(image/[\w.+-]+|application/octet-stream)?;base64,")


def body() -> bytes:
    """Return the body; Werkzeug cuts one that comes in chunks off at the limit, instead of refusing it."""
    data = request.get_data()
    if request.content_length is not None and len(data) < request.content_length:
        raise BadRequestBody(f"The body ended after {len(data)} of {request.content_length} bytes.")
    limit = current_app.config["MAX_CONTENT_LENGTH"]
    is_full = request.content_length is None and limit is not None and len(data) >= limit
    if is_full and request.environ["wsgi.input"].read(1):
        raise RequestEntityTooLarge
    require_plain()
    return data


def require_plain() -> None:
    """Raise `UnsupportedMediaType` for a packed body.

    To be called when the body was read: gunicorn closes a connection on which one was left unread, and Triton's
    client does not open another.
    """
    if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
        msg = f"Content-Encoding {encoding[:100]!r} is not understood; send the body as it is."
        raise UnsupportedMediaType(msg, field="Content-Encoding", choices=["identity"])


def json_object(data: bytes, instead: str = "") -> dict[str, Any]:
    """Return the JSON object that the bytes hold; `instead` is said where there is none.

    Raises `BadRequestBody` and `JsonTooComplex`.
    """
    found = parsed(data)
    if not isinstance(found, dict):
        raise BadRequestBody(f"The JSON body has to be an object. {instead}".rstrip())
    return found


def only(found: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise `BadRequestBody` for a member that nobody would look at."""
    if unknown := sorted(found.keys() - set(known)):
        msg = f"There is no member {unknown[0][:100]!r} here; known are {', '.join(known)}."
        raise BadRequestBody(msg, field=unknown[0][:100], choices=list(known))


def from_base64(text: object, field: str) -> bytes:
    """Return the bytes that base64, or a data URL, stands for; `field` names it in the error."""
    if not isinstance(text, str):
        raise BadRequestBody(f"{field} has to be base64 in a string.", field=field)
    try:
        start = _DATA_URL.match(text)
        return base64.b64decode(text[start.end() :] if start else text, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: characters beyond ASCII
        raise BadRequestBody(f"{field} is not valid base64.", field=field) from error
