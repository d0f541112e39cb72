"""A worker like any other, but for the model: `python -m tests.app.jobs.double`.

Its double of explaining takes about a fifth of a second for a picture and no processor, and does what the picture
says: `deadly` kills the process, `slow` takes long, `hangs once` the first time does not end. What it does it writes
into the folder of `DOUBLE_TRACES`, which no database knows of: a line in `began` and in `ended` for each beginning and
end, and one in `at_once` when another process works on the same picture right now.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.config import Settings, load_settings
from app.engine import Watch
from app.jobs.explaining import Explained, artifact_name
from app.jobs.options import Asked
from app.jobs.worker import run_worker
from tests.app.jobs.books import result

TRACES = "DOUBLE_TRACES"
DEADLY, SLOW, HANGS_ONCE = b"deadly", b"slow", b"hangs once"
PICTURE_S, SLOW_S = 0.2, 6.5
"""The slow ones take longer than a place is sure without being confirmed."""


class Double:
    """Explains nothing; the overlay is the picture."""

    def __init__(self, traces: Path) -> None:
        self._traces = traces

    def __call__(self, picture: bytes, asked: Asked, number: int, watch: Watch) -> Explained:
        with self._alone_with(number):
            self._write("began", number)
            if picture == DEADLY:
                time.sleep(PICTURE_S / 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if picture == HANGS_ONCE and (self._traces / "began").read_text().count(f" {number}\n") == 1:
                threading.Event().wait()
            # Not all the same, so that at any time some are written that are not recorded yet.
            time.sleep(SLOW_S if picture == SLOW else PICTURE_S * (0.5 + number % 8 / 8))
            self._write("ended", number)
        return Explained(result(number), {artifact_name(number, "overlay", 0, "jpg"): picture})

    @contextmanager
    def _alone_with(self, number: int) -> Iterator[None]:
        descriptor = os.open(self._traces / f"{number}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._write("at_once", number)
        yield
        os.close(descriptor)

    def _write(self, name: str, number: int) -> None:
        with (self._traces / name).open("a") as file:
            file.write(f"{os.getpid()} {number}\n")


def _make(_settings: Settings) -> Double:
    return Double(Path(os.environ[TRACES]))


if __name__ == "__main__":
    run_worker(load_settings(), _make)
