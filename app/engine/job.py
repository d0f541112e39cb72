"""A payload on its way through the engine, and later its one answer."""

import math
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

from app.engine.errors import DeadlineExceeded

P = TypeVar("P")
R = TypeVar("R")
Watch = Callable[["Job[Any, Any]"], None]
"""Called now and then while somebody waits for a job; what it raises ends the wait, and the job is abandoned."""

_WATCH_S = 0.2


class Job(Generic[P, R]):
    """A payload, and later its answer: the first one given; later ones are not heard.

    Jobs with equal `key` may run together. `deadline` is a reading of `clock`, in seconds, and `limit` says what set
    it. `progress` is how many steps are done, and of how many, once the work has reported any. `withdraw` is called
    when nobody waits any more.
    """

    def __init__(
        self,
        key: Hashable,
        payload: P,
        *,
        deadline: float,
        limit: str,
        clock: Callable[[], float],
        withdraw: Callable[["Job[P, R]"], None] = lambda job: None,
    ) -> None:
        self.key = key
        self.payload = payload
        self.deadline = deadline
        self.limit = limit
        self.future: Future[R] = Future()
        self.accepted = clock()
        self.started = self.finished = math.nan
        self.progress: tuple[int, int] | None = None
        self._clock = clock
        self._withdraw = withdraw

    @property
    def queue_s(self) -> float:
        """Seconds it waited."""
        return self.started - self.accepted

    @property
    def run_s(self) -> float:
        """Seconds that its batch ran."""
        return self.finished - self.started

    def result(self, watch: Watch | None = None) -> R:
        """Wait for the answer; raise the item's own error, or `DeadlineExceeded`.

        Whoever stops waiting, because of the deadline, of what `watch` raises, or of Ctrl-C, abandons the job.
        """
        try:
            while not self.future.done():
                left_s = self.deadline - self._clock()
                if left_s <= 0:
                    raise self._too_late()
                wait([self.future], timeout=min(left_s, _WATCH_S) if watch else left_s)
                if watch:
                    watch(self)
        except BaseException:
            self.abandon()
            raise
        return self.future.result()

    def abandon(self) -> None:
        """Say that nobody waits any more: it is dropped, or, once its whole batch is lost, ended at the next report."""
        self.answer(CancelledError())
        self._withdraw(self)

    def answer(self, outcome: R | Exception) -> None:
        """Give the answer, unless it has one."""
        with suppress(InvalidStateError):  # it was answered before
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

    def is_lost(self, now: float) -> bool:
        """Whether working on it is in vain. A job past its deadline is told so here."""
        if now > self.deadline:
            self.answer(self._too_late())
        return self.future.done()

    def _too_late(self) -> DeadlineExceeded:
        msg = f"The request was not answered within {self.limit}"
        if self.progress is None:
            return DeadlineExceeded(f"{msg}.")
        done, total = self.progress
        what_helps = (
            "ask for fewer samples, steps or targets, take a cheaper method, have the time raised, or send the picture "
            "as a job (POST /v1/jobs), which takes as long as it takes"
        )
        return DeadlineExceeded(f"{msg}; {done} of {total} steps were done: {what_helps}.", done=done, total=total)
