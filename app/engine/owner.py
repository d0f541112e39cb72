"""One thread owns one thing (a loaded model), and nobody else touches it."""

import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Generic, Literal, TypeVar

from app.engine.errors import DeadlineExceeded, QueueFull, ShuttingDown

P = TypeVar("P")
R = TypeVar("R")
Report = Callable[[int, int], None]
"""Called between two steps of long work with how many are done, and of how many; what it raises ends the work."""
Run = Callable[[Hashable, Sequence[P], Report], Sequence[R | Exception]]
"""Answers payloads that share a key, one answer each, an exception where an item fails alone."""
Watch = Callable[["Job[Any, Any]"], None]
"""Called now and then while somebody waits for a job; what it raises ends the wait, and the job is abandoned."""

_WATCH_S = 0.2
_log = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "closed"]


class Job(Generic[P, R]):
    """A payload on its way, and later its answer.

    `deadline` is a reading of the owner's clock, in seconds. `progress` is how many steps are done, and of how many,
    once the work has reported any.
    """

    def __init__(self, key: Hashable, payload: P, *, deadline: float, clock: Callable[[], float]) -> None:
        self.key = key
        self.payload = payload
        self.deadline = deadline
        self.future: Future[R] = Future()
        self.accepted = clock()
        self.started = self.finished = math.nan
        self.progress: tuple[int, int] | None = None
        self._abandoned = False
        self._clock = clock

    @property
    def queue_s(self) -> float:
        """Seconds it waited."""
        return self.started - self.accepted

    @property
    def run_s(self) -> float:
        """Seconds it ran."""
        return self.finished - self.started

    def result(self, watch: Watch | None = None) -> R:
        """Wait for the answer; raise the item's own error, or `DeadlineExceeded`.

        Whoever stops waiting, because of the deadline, of what `watch` raises, or of Ctrl-C, abandons the job.
        """
        try:
            while not self.future.done():
                left_s = self.deadline - self._clock()
                if left_s <= 0:
                    raise _too_late(self.progress)
                wait([self.future], timeout=min(left_s, _WATCH_S) if watch else left_s)
                if watch:
                    watch(self)
        except BaseException:
            self.abandon()
            raise
        return self.future.result()

    def abandon(self) -> None:
        """Say that nobody waits any more: the job is dropped, or, if it runs, ended at its next report."""
        self._abandoned = True
        self.future.cancel()

    def report(self, done: int, total: int) -> None:
        """Note the progress. Raises `CancelledError` or `DeadlineExceeded` where the answer would come too late."""
        self.progress = (done, total)
        if self._abandoned:
            raise CancelledError
        if self._clock() > self.deadline:
            raise _too_late(self.progress)


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
                raise _too_late(None)
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
            error = _harmless(raised)
            _forget_work(error)
            error = error.with_traceback(None)  # it would hold this frame, which does not end before the error is told
            with self._changed:
                self.ready.set_exception(error)
            self._refuse_waiting(error)
            return
        self.ready.set_result(None)
        while (job := self._next()) is not None:
            if self._begin(job):
                self._end(job, _outcome(run, job))
            del job  # nothing of it is kept while the thread waits for the next

    def _next(self) -> Job[P, R] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def _begin(self, job: Job[P, R]) -> bool:
        """Say whether somebody still waits for the job."""
        job.started = self._clock()
        if not job.future.set_running_or_notify_cancel():
            return False
        if job.started > job.deadline:
            job.future.set_exception(_too_late(None))
            return False
        return True

    def _end(self, job: Job[P, R], answer: R | Exception) -> None:
        job.finished = self._clock()
        self._mean_run_s += 0.2 * (job.run_s - self._mean_run_s)
        if isinstance(answer, Exception):
            _forget_work(answer)
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


def _outcome(run: Run[P, R], job: Job[P, Any]) -> R | Exception:
    """Return the answer or the error; in a frame of its own, which has ended and can be emptied afterwards."""
    try:
        (answer,) = run(job.key, [job.payload], job.report)
    except BaseException as raised:  # noqa: BLE001 - the thread outlives any job; the error is the job's answer
        return _harmless(raised)
    return answer


def _forget_work(error: Exception) -> None:
    """Empty the frames of an error and of what led to it: they hold the work, and the job, which holds the error.

    The traceback still says where it happened. Its frames refer to their callers too, beyond where it was caught.
    """
    links: dict[int, BaseException] = {}
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in links:
            links[id(link)] = link
            pending += [link.__cause__, link.__context__]
    for trace in (link.__traceback__ for link in links.values()):
        traceback.clear_frames(trace)
        for caller, _ in traceback.walk_stack(trace.tb_frame) if trace else ():
            try:
                caller.clear()
            except RuntimeError:  # it still runs, and so do its own callers
                break


def _harmless(raised: BaseException) -> Exception:
    """Return an error that others may raise: `SystemExit` of foreign code would end whoever asks for the answer."""
    return raised if isinstance(raised, Exception) else RuntimeError(f"foreign code raised {raised!r}")


def _too_late(progress: tuple[int, int] | None) -> DeadlineExceeded:
    msg = "The request was not answered within its time (HEATLENS_REQUEST_TIMEOUT_S)"
    if progress is None:
        return DeadlineExceeded(f"{msg}.")
    done, total = progress
    what_helps = "ask for fewer samples, steps or targets, take a cheaper method, or have the time raised"
    return DeadlineExceeded(f"{msg}; {done} of {total} steps were done: {what_helps}.", done=done, total=total)


def _closing(name: str) -> ShuttingDown:
    return ShuttingDown(f"Model {name!r} is being shut down; try again in a moment.", retry_after_s=1)
