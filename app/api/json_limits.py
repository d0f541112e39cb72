"""JSON from outside: how deep it is and how much is in it is known before Python makes objects of it.

A body of 17 MiB may hold six million empty lists, of which each is 64 bytes of memory, or be nested deeper than the
stack. Bytes are counted instead, which takes milliseconds.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from flask import current_app
from numpy.typing import NDArray

from app.errors import BadRequestBody, JsonTooComplex

_AT_ONCE = 2**20
_QUOTE, _COMMA, _OPENING, _CLOSING = b'"', b",", b"[{", b"]}"


def parsed(data: bytes) -> Any:
    """Return what a body of JSON holds. Raises `BadRequestBody` and `JsonTooComplex`.

    It may hold no member twice: what stands before this server may have looked at the one, and this server takes the
    other. Only bodies of very many objects take longer for that: 1.4 s in place of 0.5 s for two million of them.
    """
    settings = current_app.extensions["heatlens"].settings
    check_limits(data, max_depth=settings.max_json_depth, max_values=settings.max_json_values)
    try:
        text = data.decode("utf-8-sig")  # of bytes, Python would also take UTF-16 and half characters
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, numbers too long
        raise BadRequestBody("The body is not valid JSON.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        name = twice[:100]
        raise BadRequestBody(f"The JSON body has the member {name!r} twice in one object; give it once.", field=name)
    return found


def check_limits(data: bytes, *, max_depth: int, max_values: int) -> None:
    """Raise `JsonTooComplex`. Whether it is JSON at all is not looked at.

    Every value is the first in a list or object, or follows a comma, or is the whole. An empty list counts twice.
    """
    opened = sum(data.count(kind) for kind in (b"[", b"{"))
    if opened <= max_depth and opened + data.count(_COMMA) < max_values:
        return  # as of a picture in base64, whatever stands in strings
    values, depth = 1, 0
    for codes, is_bare in _pieces(data):
        opening, closing = _among(codes, _OPENING) & is_bare, _among(codes, _CLOSING) & is_bare
        values += int(np.count_nonzero(opening)) + int(np.count_nonzero(_among(codes, _COMMA) & is_bare))
        if values > max_values:
            msg = f"The JSON body has more than {max_values} numbers, words, lists and objects"
            raise _too_complex(msg, max_values, "HEATLENS_MAX_JSON_VALUES")
        depths = depth + np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int64)
        if depths.max() > max_depth:
            raise _too_complex(
                f"The JSON body is nested more than {max_depth} deep", max_depth, "HEATLENS_MAX_JSON_DEPTH"
            )
        depth = int(depths[-1])


def _pieces(data: bytes) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """Yield the bytes, a mebibyte at a time, and which of them are in no string."""
    # Of backslashes in a row every second one is escaped by the one before, and a quote behind the last by that.
    plain = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    in_string = 0
    for start in range(0, len(plain), _AT_ONCE):
        codes = np.frombuffer(plain[start : start + _AT_ONCE], np.uint8)
        quotes = in_string + np.cumsum(_among(codes, _QUOTE), dtype=np.int64)
        yield codes, quotes & 1 == 0
        in_string = int(quotes[-1]) & 1


def _among(codes: NDArray[np.uint8], kinds: bytes) -> NDArray[np.bool_]:
    found = codes == kinds[0]
    for kind in kinds[1:]:
        found |= codes == kind
    return np.asarray(found, np.bool_)


def _too_complex(finding: str, limit: int, setting: str) -> JsonTooComplex:
    return JsonTooComplex(f"{finding} ({setting}).", limit=limit, setting=setting)
