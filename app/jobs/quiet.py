"""Has the engine's library log as everybody does, and quietly."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SAME_LINE_S = 60.0
_START = 40
_ALWAYS_THE_SAME = "applicationID", "applicationVersion", "executorID", "operationUUID"


@contextmanager
def quietly(name: str) -> Iterator[None]:
    """Keep a logger as ours while its library sets it up, as DBOS does whenever something of it is made."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.WARNING)
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())  # with a handler there, it adds none of its own and lets lines pass on
    try:
        yield
    finally:
        known = next((one for one in logger.filters if isinstance(one, _Quiet)), _Quiet())
        logger.removeFilter(known)
        logger.addFilter(known)  # after its own, which adds facts to each line


class _Quiet(logging.Filter):
    """Passes a warning on once a minute, since each thread repeats it, and takes off what is always the same."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        for name in _ALWAYS_THE_SAME:
            record.__dict__.pop(name, None)
        return record.levelno > logging.WARNING or self._is_new(record.getMessage()[:_START])

    def _is_new(self, line: str) -> bool:
        now = time.monotonic()
        if now - self._said.get(line, -_SAME_LINE_S) < _SAME_LINE_S:
            return False
        self._said[line] = now
        return True
