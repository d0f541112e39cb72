"""Finished answers, kept for who asks the same again.

An answer is found by its content: the picture's bytes, what decides on its maps (`Service.identity`), how it is drawn,
and the version of HeatLens. Nothing goes stale, so nothing has to be thrown away but for room.
"""

import hashlib
import json
from importlib.metadata import version
from threading import Lock

from cachetools import LRUCache

from app.drawing import Drawn
from app.metrics import Metrics
from app.schemas.options import ExplainOptions, Format

_IN_IDENTITY = {"model", "method", "target", "versus", "layer"}
"""Options that `Service.identity` knows better: there the default model and the class of a label have their names."""
_BESIDE_BYTES = 1024
"""What an answer takes beside its body: key, headers and the objects around them; 1000 were measured."""


class ResultCache:
    """Answers by key, of together at most `max_bytes`; the one unused for longest makes room. Safe for threads."""

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self._drawn: LRUCache[str, Drawn] = LRUCache(max_bytes, getsizeof=_size_bytes)
        self._lock = Lock()
        self._metrics = metrics
        self._version = version("heatlens")

    def key(self, identity: str | None, picture: str, options: ExplainOptions, format_: Format) -> str | None:
        """Return the key of an answer, or None where there is no `identity`; `picture` is the hash of its bytes."""
        if identity is None:
            return None
        # Whatever is no part of the identity counts, so that an option that is new cannot be forgotten here.
        drawing = options.model_dump_json(exclude=_IN_IDENTITY | {"format"})
        parts = [self._version, identity, picture, drawing, format_]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def get(self, key: str | None) -> Drawn | None:
        """Return the answer if it is there."""
        with self._lock:
            drawn = None if key is None else self._drawn.get(key)
        self._metrics.cache(hit=drawn is not None)
        return drawn

    def put(self, key: str | None, drawn: Drawn) -> None:
        """Keep an answer, unless it has no key or is larger than all that may be kept."""
        if key is None or _size_bytes(drawn) > self._drawn.maxsize:
            return
        with self._lock:
            self._drawn[key] = drawn
            size_bytes = self._drawn.currsize
        self._metrics.cache_bytes(int(size_bytes))


def _size_bytes(drawn: Drawn) -> int:
    return len(drawn.content) + _BESIDE_BYTES
