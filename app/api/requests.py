"""The three ways to send a picture: raw body, multipart, JSON. All end as bytes and a dictionary of options."""

import base64
import binascii
import json
import math
import re
from typing import Any

from flask import current_app, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge

from app.errors import BadOption, BadRequestBody, UnsupportedMediaType
from app.schemas.checking import REPEATABLE, from_text

_RAW = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
"""Types of raw bodies beside `image/*`: the last is what `curl --data-binary` says of any file."""

TIMEOUT_HEADER = "X-Request-Deadline-S"

_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,")
_WAYS = 'Send the picture as the raw body, as multipart part `image`, or as JSON {"image": {"base64": ...}}.'


def read_picture() -> tuple[bytes, dict[str, Any]]:
    """Return the picture of the current request and its options, unchecked.

    Options of a raw body come from the query; of a multipart form from its fields, of JSON from its members, and
    in both cases from the query too, for what the body does not say.
    """
    query = _options(request.args)
    if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
        msg = f"Content-Encoding {encoding[:100]!r} is not understood; send the body as it is."
        raise UnsupportedMediaType(msg, field="Content-Encoding", choices=["identity"])
    if request.mimetype == "multipart/form-data":
        data, options = _multipart()
    elif request.mimetype == "application/json":
        data, options = _json()
    elif request.mimetype.startswith("image/") or request.mimetype in _RAW:
        data, options = _body(), {}
    else:
        msg = f"A body of type {request.mimetype[:100]!r} is not understood. {_WAYS}"
        raise UnsupportedMediaType(msg, choices=["image/*", "multipart/form-data", "application/json"])
    if not data:
        raise BadRequestBody(f"There is no picture in the request. {_WAYS}", field="image")
    twice = sorted(query.keys() & options.keys())
    if twice:
        msg = f"{twice[0]} is given in the query and in the body; give it once."
        raise BadOption(msg, field=twice[0])
    return data, query | options


def read_timeout_s() -> float | None:
    """Return for how many seconds from now the client is willing to wait, if it says so."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        msg = f"{TIMEOUT_HEADER} is {text[:100]!r}; it has to be a positive number of seconds, such as 2.5."
        raise BadOption(msg, field=TIMEOUT_HEADER)
    return seconds


def _body() -> bytes:
    """Return the raw body. Werkzeug cuts one that comes in chunks off at the limit instead of refusing it."""
    data = request.get_data()
    if request.content_length is not None and len(data) < request.content_length:
        msg = f"The body ended after {len(data)} of {request.content_length} bytes."
        raise BadRequestBody(msg)
    limit = current_app.config["MAX_CONTENT_LENGTH"]
    if request.content_length is None and limit is not None and len(data) >= limit:
        raise RequestEntityTooLarge
    return data


def _multipart() -> tuple[bytes, dict[str, Any]]:
    unknown = [name for name in request.files if name != "image"]
    if unknown:
        msg = f"The multipart form has a file {str(unknown[0])[:100]!r}; the picture's part is called 'image'."
        raise BadRequestBody(msg, field="image")
    files = request.files.getlist("image")
    if len(files) > 1:
        msg = f"The multipart form has {len(files)} parts 'image'; send one picture per request."
        raise BadRequestBody(msg, field="image", limit=1)
    return files[0].read() if files else b"", _options(request.form)


def _options(fields: "MultiDict[str, str]") -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, values in fields.lists():
        if not name:
            raise BadRequestBody("A field of the request has no name.")
        values = [value for value in values if value]  # an empty field of a form is one that was left out
        if not values:
            continue
        if name in REPEATABLE:
            options[name] = [from_text(name, value) for value in values]
        elif len(values) == 1:
            options[name] = from_text(name, values[0])
        else:
            msg = f"{name[:100]} is given {len(values)} times; give it once."
            raise BadOption(msg, field=name[:100])
    return options


def _json() -> tuple[bytes, dict[str, Any]]:
    try:
        body = json.loads(_body())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, numbers too long; nested too deeply
        raise BadRequestBody("The body is not valid JSON.") from error
    if not isinstance(body, dict):
        raise BadRequestBody(f"The JSON body has to be an object. {_WAYS}")
    image = body.pop("image", None)
    if image is None:
        return b"", body
    if not isinstance(image, dict) or set(image) != {"base64"} or not isinstance(image["base64"], str):
        raise BadRequestBody('image has to be {"base64": "..."}.', field="image", choices=["base64"])
    for name in REPEATABLE & body.keys():
        if not isinstance(body[name], list):
            body[name] = [body[name]]
    return _decode_base64(image["base64"]), body


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(_DATA_URL.sub("", text, count=1), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: characters beyond ASCII
        raise BadRequestBody("image.base64 is not valid base64.", field="image.base64") from error
