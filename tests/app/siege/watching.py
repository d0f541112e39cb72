"""What the processes of a server hold, looked at again and again, and whether that grows."""

import os
import statistics
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.app.siege.server import Fortress

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POINTS = 200
"""Of a series at most, for the slope, which takes their square."""


@dataclass(frozen=True)
class Held:
    """What a process held at a time."""

    at: float
    bytes: int
    files: int
    threads: int


@dataclass
class Life:
    """A process, for as long as it was seen."""

    role: str
    held: list[Held] = field(default_factory=list)

    def after(self, warm_s: float) -> list[Held]:
        """What it held once it had lived for a while."""
        return [held for held in self.held if held.at >= self.held[0].at + warm_s]


class Watch:
    """Looks at all processes every few seconds, in a thread of its own, until the `with` ends."""

    def __init__(self, server: Fortress, every_s: float) -> None:
        self._server = server
        self._every_s = every_s
        self.lives: dict[int, Life] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Look once."""
        for pid, role in self._server.roles().items():
            if (held := _held(pid)) is not None:
                self.lives.setdefault(pid, Life(role)).held.append(held)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.look()


def _held(pid: int) -> Held | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    except OSError:  # it has just ended
        return None
    return Held(time.monotonic(), pages * _PAGE_BYTES, files, threads)


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Return by how much a series grows in a unit: the median of all pairs' slopes, which no single spike moves."""
    all_points = sorted(points)
    few = all_points[:: max(1, len(all_points) // _POINTS)]
    slopes = [(y - b) / (x - a) for index, (a, b) in enumerate(few) for x, y in few[index + 1 :] if x > a]
    return statistics.median(slopes) if slopes else 0.0


def growth(held: list[Held], of: str) -> float:
    """Return by how much a process grew over a time, by its slope."""
    if len(held) < 2:
        return 0.0
    return slope((each.at, getattr(each, of)) for each in held) * (held[-1].at - held[0].at)
