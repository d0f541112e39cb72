"""One thread owns one thing (a loaded model), and nobody else touches it."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from typing import Generic, Literal, TypeVar

from app.engine.errors import DeadlineExceeded, QueueFull, ShuttingDown

P = TypeVar("P")
R = TypeVar("R")
Run = Callable[[Hashable, Sequence[P]], Sequence[R | Exception]]
"""Answers payloads that share a key, one answer each, an exception where an item fails alone."""

_log = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "closed"]


class Job(Generic[P, R]):
    """A payload on its way, and later its answer. `deadline` is a reading of the owner's clock, in seconds."""

    def __init__(self, key: Hashable, payload: P, *, deadline: float, clock: Callable[[], float]) -> None:
        self.key = key
        self.payload = payload
        self.deadline = deadline
        self.future: Future[R] = Future()
        self.accepted = clock()
        self.started = self.finished = math.nan
        self._clock = clock

    @property
    def queue_s(self) -> float:
        """Seconds it waited."""
        return self.started - self.accepted

    @property
    def run_s(self) -> float:
        """Seconds it ran."""
        return self.finished - self.started

    def result(self) -> R:
        """Wait for the answer; raise the item's own error, or `DeadlineExceeded`, and then the job is dropped."""
        done, _ = wait([self.future], timeout=max(0.0, self.deadline - self._clock()))
        if not done:
            self.future.cancel()
            raise _too_late()
        return self.future.result()


class Owner(Generic[P, R]):
    """A thread with a bounded queue.

    `prepare` runs first, in the thread (loading the model), and returns the function that answers payloads there.
    A job that is accepted gets exactly one answer: its result, its own error, `DeadlineExceeded`, `ShuttingDown`,
    or what `prepare` raised.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], Run[P, R]],
        *,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.ready: Future[None] = Future()
        self._capacity = capacity
        self._clock = clock
        self._jobs: deque[Job[P, R]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._mean_run_s = 0.0
        self._waiting_for_ready = 0
        self._thread = threading.Thread(target=self._work, args=(prepare,), name=f"owner-{name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> State:
        """What a newcomer would meet."""
        if self._closed:
            return "closed"
        if not self.ready.done():
            return "loading"
        return "failed" if self.ready.exception() else "ready"

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def submit(self, key: Hashable, payload: P, *, timeout_s: float) -> Job[P, R]:
        """Accept a payload, or raise `QueueFull`, `ShuttingDown`, or what `prepare` raised."""
        with self._changed:
            self._raise_failure()
            if self._closed:
                raise _closing(self.name)
            if len(self._jobs) >= self._capacity:  # who gave up waiting holds no place
                self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
            if len(self._jobs) >= self._capacity:
                raise self._full()
            job: Job[P, R] = Job(key, payload, deadline=self._clock() + timeout_s, clock=self._clock)
            self._jobs.append(job)
            self._changed.notify()
        return job

    def wait_until_ready(self, *, timeout_s: float | None) -> None:
        """Wait for `prepare`; raise what it raised, `DeadlineExceeded`, or `QueueFull` where too many wait already."""
        with self._changed:
            if self._waiting_for_ready >= self._capacity and not self.ready.done():
                raise self._full()
            self._waiting_for_ready += 1
        try:
            if not wait([self.ready], timeout=timeout_s).done:
                raise _too_late()
        finally:
            with self._changed:
                self._waiting_for_ready -= 1
        self._raise_failure()

    def stop_accepting(self) -> None:
        """Take no more jobs; those accepted are still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self, *, grace_s: float) -> None:
        """Take no more jobs, wait `grace_s` seconds at most for those accepted, and refuse what still waits then."""
        self.stop_accepting()
        self._thread.join(grace_s)
        self._refuse_waiting(_closing(self.name))

    def _work(self, prepare: Callable[[], Run[P, R]]) -> None:
        try:
            run = prepare()
        except BaseException as raised:  # noqa: BLE001 - whatever it is, all who wait are told
            _log.info("preparing %s failed", self.name, exc_info=raised)
            error = _harmless(raised).with_traceback(None)  # it would hold what was half prepared
            with self._changed:
                self.ready.set_exception(error)
            self._refuse_waiting(error)
            return
        self.ready.set_result(None)
        while (job := self._next()) is not None:
            self._answer(run, job)

    def _next(self) -> Job[P, R] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def _answer(self, run: Run[P, R], job: Job[P, R]) -> None:
        job.started = self._clock()
        if not job.future.set_running_or_notify_cancel():
            return
        if job.started > job.deadline:
            job.future.set_exception(_too_late())
            return
        try:
            (answer,) = run(job.key, [job.payload])
        except BaseException as raised:  # noqa: BLE001 - the thread outlives any job; the error is the job's answer
            answer = _harmless(raised)
        job.finished = self._clock()
        self._mean_run_s += 0.2 * (job.run_s - self._mean_run_s)
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)

    def _raise_failure(self) -> None:
        """Raise what `prepare` raised; every caller adds its own frames to the one exception, none keeps them."""
        if self.ready.done() and (error := self.ready.exception()):
            raise error.with_traceback(None)

    def _refuse_waiting(self, error: Exception) -> None:
        with self._changed:
            waiting, self._jobs = self._jobs, deque()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)

    def _full(self) -> QueueFull:
        waiting = max(len(self._jobs), self._waiting_for_ready)
        retry_after_s = max(1, math.ceil(self._mean_run_s * waiting))
        msg = (
            f"{waiting} requests are waiting for model {self.name!r}, the limit (HEATLENS_QUEUE_SIZE); "
            f"try again in {retry_after_s} s."
        )
        return QueueFull(msg, limit=self._capacity, retry_after_s=retry_after_s)


def _harmless(raised: BaseException) -> Exception:
    """Return an error that others may raise: `SystemExit` of foreign code would end whoever asks for the answer."""
    return raised if isinstance(raised, Exception) else RuntimeError(f"foreign code raised {raised!r}")


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("The request was not answered within its time (HEATLENS_REQUEST_TIMEOUT_S).")


def _closing(name: str) -> ShuttingDown:
    return ShuttingDown(f"Model {name!r} is being shut down; try again in a moment.", retry_after_s=1)
