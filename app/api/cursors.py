"""Where a listing goes on: text that means something to this server alone, and only for the listing that gave it."""

import base64
import hashlib
import json
from typing import TypeVar

from pydantic import TypeAdapter

from app.errors import BadOption

_CHECK_BYTES = 6

Place = TypeVar("Place")


def write_cursor(scope: object, place: object) -> str:
    """Return a cursor of the listing `scope`, which has all that decides on what is listed."""
    text = json.dumps(place, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_check(scope, text) + text).decode().rstrip("=")


def read_cursor(scope: object, cursor: str, kind: TypeAdapter[Place]) -> Place:
    """Return the place that `write_cursor` was given; raises `BadOption` for any other text, or another listing's.

    The check is no secret: it keeps people from mixing cursors up, and guards nothing. So a place is believed only if
    it is of the `kind` that the listing writes.
    """
    msg = "cursor: it is none of this listing; take `next` of the answer before, and leave the other options alone."
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place = kind.validate_json(raw[_CHECK_BYTES:], strict=True)
    except ValueError as error:  # no base64, no such place
        raise BadOption(msg, field="cursor") from error
    if write_cursor(scope, place) != cursor:
        raise BadOption(msg, field="cursor")
    return place


def _check(scope: object, text: bytes) -> bytes:
    listing = json.dumps(scope, sort_keys=True).encode()
    return hashlib.blake2s(listing + b"\n" + text, digest_size=_CHECK_BYTES).digest()
