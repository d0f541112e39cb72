"""Where a listing goes on: text that means something to this server alone, and only for the listing that gave it."""

import base64
import binascii
import hashlib
import json
from typing import Any

from app.errors import BadOption

_CHECK_BYTES = 6


def write_cursor(scope: object, place: object) -> str:
    """Return a cursor of the listing `scope`, which has all that decides on what is listed."""
    text = json.dumps(place, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_check(scope, text) + text).decode().rstrip("=")


def read_cursor(scope: object, cursor: str) -> Any:
    """Return the place that `write_cursor` was given; raises `BadOption` for any other text, or another listing's.

    The check is no secret: it keeps people from writing cursors and from mixing them up, and guards nothing.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    check, text = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
    if check != _check(scope, text) or write_cursor(scope, json.loads(text)) != cursor:
        msg = "cursor: it is none of this listing; take `next` of the answer before, and leave the other options alone."
        raise BadOption(msg, field="cursor")
    return json.loads(text)


def _check(scope: object, text: bytes) -> bytes:
    listing = json.dumps(scope, sort_keys=True).encode()
    return hashlib.blake2s(listing + b"\n" + text, digest_size=_CHECK_BYTES).digest()
