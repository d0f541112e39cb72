"""The time of one request."""

import time


class Clock:
    """Laps of one request, and what is left of its time, in seconds; `limit` says how long that is and who set it."""

    def __init__(self, timeout_s: float, source: str) -> None:
        self.limit = f"{timeout_s:g} s ({source})"
        self._lapped = time.perf_counter()
        self._deadline = self._lapped + timeout_s

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = time.perf_counter()
        lap_s, self._lapped = now - self._lapped, now
        return lap_s

    @property
    def remaining_s(self) -> float:
        """The seconds that are left, never below 0."""
        return max(0.0, self._deadline - time.perf_counter())
