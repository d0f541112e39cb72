"""Who may come in: every request holds a place from before its picture is decoded until it is answered."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.errors import QueueFull

_LONGEST_RETRY_S = 600


class Admission:
    """Bounds those inside: `each` for one name (a model), `total` for all together.

    `limits` are what the operator calls the two. `entered` and `left` hear of every place taken and given back.
    """

    def __init__(
        self,
        *,
        each: int,
        total: int,
        limits: tuple[str, str] = ("each", "total"),
        entered: Callable[[str], None] = lambda name: None,
        left: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._each = each
        self._total = total
        self._limits = limits
        self._entered = entered
        self._left = left
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def inside(self, name: str | None = None) -> int:
        """Return how many are inside, for one name or in all."""
        return self._inside.total() if name is None else self._inside[name]

    @contextmanager
    def place(self, name: str, *, seconds_each: float) -> Iterator[None]:
        """Hold a place; raises `QueueFull`, which says when to come again: `seconds_each` is what one takes."""
        with self._lock:
            self._require_room(name, seconds_each)
            self._entered(name)  # before the place is taken: where this raises, nobody would give it back
            self._inside[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside[name] -= 1
                self._inside += Counter()  # forgets names that nobody is inside for
            self._left(name)

    def _require_room(self, name: str, seconds_each: float) -> None:
        each, total = self._limits
        if self._inside[name] >= self._each:
            raise _full(f"for {name!r} ", self._inside[name], self._each, each, seconds_each)
        if self._inside.total() >= self._total:
            raise _full("", self._inside.total(), self._total, total, seconds_each)


def _full(for_whom: str, inside: int, limit: int, setting: str, seconds_each: float) -> QueueFull:
    retry_after_s = min(_LONGEST_RETRY_S, max(1, math.ceil(seconds_each * inside)))
    msg = (
        f"{inside} requests {for_whom}are being worked on or wait, the limit is {limit} ({setting}); "
        f"try again in {retry_after_s} s."
    )
    return QueueFull(msg, limit=limit, retry_after_s=retry_after_s)
