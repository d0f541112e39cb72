"""The three ways to send pictures: raw body, multipart, JSON. All end as bytes and a dictionary of options."""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from flask import current_app, request
from werkzeug.datastructures import MultiDict

from app.api.bodies import body, from_base64, json_object, require_plain
from app.errors import BadOption, BadRequestBody, UnsupportedMediaType
from app.imaging import containers
from app.imaging.errors import TooManyBytes
from app.schemas.checking import REPEATABLE, from_text

_RAW = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
"""Types of raw bodies beside `image/*`: the last is what `curl --data-binary` says of any file."""
_FIELDS = re.compile(rb"[A-Za-z0-9_.%+-]{1,100}=")
"""How fields begin that were sent as such a body."""

_BESIDE_BYTES = 4096
"""What a picture of a list counts beside its bytes, so that a body of nothing but ids is no endless work."""

TIMEOUT_HEADER = "X-Request-Deadline-S"

_WAYS = 'Send the picture as the raw body, as multipart part `image`, or as JSON {"image": {"base64": ...}}.'


class Sent(NamedTuple):
    """What came with a request; `image_id` is of the last picture that was given by the id of a kept one."""

    pictures: list[bytes]
    options: dict[str, Any]
    image_id: str | None = None


def read_picture() -> tuple[bytes, dict[str, Any]]:
    """Return the one picture of the current request and its options, unchecked; see `read_pictures`."""
    pictures, options = read_pictures()
    if len(pictures) > 1:
        msg = f"The request has {len(pictures)} pictures; send one picture per request."
        raise BadRequestBody(msg, field="image", limit=1)
    return pictures[0], options


def read_pictures() -> tuple[list[bytes], dict[str, Any]]:
    """Return the pictures of the current request, at least one, and its options, unchecked; see `read_sent`."""
    pictures, options, _ = read_sent()
    if not pictures:
        raise BadRequestBody(f"There is no picture in the request. {_WAYS}", field="image")
    return pictures, options


def read_sent() -> Sent:
    """Return the pictures of the current request, if there are any, and its options, unchecked.

    Options of a raw body come from the query; of a multipart form from its fields, of JSON from its members, and
    in both cases from the query too, for what the body does not say.
    """
    query = _options(request.args)
    if request.mimetype == "multipart/form-data":
        sent = _multipart()
    elif request.mimetype == "application/json":
        sent = _json()
    elif request.mimetype.startswith("image/") or request.mimetype in _RAW:
        data = body()
        _require_no_fields(data)
        sent = Sent([data] if data else [], {})
    else:
        msg = f"A body of type {request.mimetype[:100]!r} is not understood. {_WAYS}"
        raise UnsupportedMediaType(msg, choices=["image/*", "multipart/form-data", "application/json"])
    if not all(sent.pictures):
        raise BadRequestBody(f"There is no picture in the request. {_WAYS}", field="image")
    twice = sorted(query.keys() & sent.options.keys())
    if twice:
        msg = f"{twice[0]} is given in the query and in the body; give it once."
        raise BadOption(msg, field=twice[0])
    return sent._replace(options=query | sent.options)


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


def _require_no_fields(data: bytes) -> None:
    """Raise `UnsupportedMediaType` for a form in place of a picture, which is what `curl -d` makes of options."""
    if _FIELDS.match(data) and containers.sniff(data) is None:
        msg = (
            "The body has fields of a form and no picture. Send a form as multipart (curl -F), or options in "
            f"the query. {_WAYS}"
        )
        raise UnsupportedMediaType(msg, choices=["image/*", "multipart/form-data", "application/json"])


def _multipart() -> Sent:
    unknown = [name for name in request.files if name != "image"]
    if unknown:
        msg = f"The multipart form has a file {str(unknown[0])[:100]!r}; the picture's part is called 'image'."
        raise BadRequestBody(msg, field="image")
    require_plain()
    return Sent([file.read() for file in request.files.getlist("image")], _options(request.form))


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


def _json() -> Sent:
    options = json_object(body(), _WAYS)
    image = options.pop("image", None)
    for name in REPEATABLE & options.keys():
        if not isinstance(options[name], list):
            options[name] = [options[name]]
    images = [] if image is None else image if isinstance(image, list) else [image]
    ids = [one["id"] for one in images if isinstance(one, dict) and "id" in one]
    return Sent(list(_all_from_json(images)), options, ids[-1] if ids else None)


def _all_from_json(images: list[object]) -> Iterator[bytes]:
    """Yield the pictures of a body; kept ones together may have as many bytes as if they had been sent."""
    limit, total = current_app.config["MAX_CONTENT_LENGTH"], 0
    for image in images:
        picture = _from_json(image)
        total += len(picture) + _BESIDE_BYTES
        if limit is not None and total > limit + _BESIDE_BYTES:
            msg = (
                f"The pictures of the request, each counting {_BESIDE_BYTES} bytes more than it has, are together "
                f"larger than {limit} bytes (HEATLENS_MAX_BODY_BYTES); send fewer at once."
            )
            raise TooManyBytes(msg, limit=limit)
        yield picture


def _from_json(image: object) -> bytes:
    """Return a picture that stands in the body, or the kept one whose id does; raises `UnknownImage`."""
    match image:
        case {"base64": str(text), **rest} if not rest:
            return from_base64(text, "image.base64")
        case {"id": str(id_), **rest} if not rest:
            data: bytes = current_app.extensions["heatlens_images"].read(id_)
            return data
    msg = 'image has to be {"base64": "..."} or {"id": "..."}.'
    raise BadRequestBody(msg, field="image", choices=["base64", "id"])
