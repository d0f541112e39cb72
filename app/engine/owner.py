"""One thread owns one thing (a loaded model), and nobody else touches it."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Generic, Literal

from app.engine.batcher import Batcher
from app.engine.errors import DeviceLost, EngineError, NotReady, ShuttingDown
from app.engine.job import Job, P, R

Report = Callable[[int, int], None]
"""Called between two steps of long work with how many are done, and of how many; what it raises ends the work."""
Run = Callable[[Hashable, Sequence[P], Report], Sequence[R | Exception]]
"""Answers payloads that share a key, one answer each, an exception where an item fails alone."""

_RETRY_LOADING_S = 5
_LINE_CHARACTERS = 500
_log = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "closed"]


class Owner(Generic[P, R]):
    """A thread that answers jobs in batches.

    `prepare` runs first, in the thread (loading the model), and returns the function that answers payloads there.
    A job that is accepted gets exactly one answer: its result, its own error, `DeadlineExceeded`, `CancelledError`,
    `ShuttingDown`, `DeviceLost`, or what `prepare` raised. A batch whose run raises is run once more, item by item,
    so that one bad item fails alone.

    `batch_size(key)` is how many may run together. After a batch, `wait_s` seconds at most are waited for the next
    to fill; a job that comes while the thread idles runs at once. `ran(key, jobs, seconds)` hears of every batch, and
    `ended()` is the last thing that the thread does. Where `prepare` raises what is `expected`, one line is logged,
    else the traceback too.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], Run[P, R]],
        *,
        batch_size: Callable[[Hashable], int] = lambda key: 1,
        wait_s: float = 0.0,
        ran: Callable[[Hashable, Sequence[Job[P, R]], float], None] = lambda key, jobs, seconds: None,
        ended: Callable[[], None] = lambda: None,
        expected: tuple[type[Exception], ...] = (EngineError,),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.ready: Future[None] = Future()
        self.seconds_each = 0.0
        """What a job took lately, its share of its batch."""
        self._waiting: Batcher[P, R] = Batcher(batch_size)
        self._running: Sequence[Job[P, R]] = ()
        self._wait_s = wait_s
        self._ran = ran
        self._ended = ended
        self._expected = expected
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._lost: DeviceLost | None = None
        self._thread = threading.Thread(target=self._work, args=(prepare,), name=f"owner-{name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> State:
        """What a newcomer would meet."""
        if self._lost:
            return "failed"
        if self._closed:
            return "closed"
        if not self.ready.done():
            return "loading"
        return "failed" if self.ready.exception() else "ready"

    @property
    def is_lost(self) -> bool:
        """Whether `lose` was called."""
        return self._lost is not None

    @property
    def overdue_s(self) -> float:
        """Seconds since the last of those that it works for was to have its answer; 0 while some still may."""
        running = self._running
        return max(0.0, self._clock() - max(job.deadline for job in running)) if running else 0.0

    def submit(self, key: Hashable, payload: P, *, timeout_s: float, limit: str = "its time") -> Job[P, R]:
        """Accept a payload, or raise `ShuttingDown`, `DeviceLost`, or what `prepare` raised.

        `limit` says, in the error of a job that is too late, what the time was and who set it.
        """
        with self._changed:
            self._raise_failure()
            if self._closed:
                raise _closing(self.name)
            deadline = self._clock() + timeout_s
            job: Job[P, R] = Job(
                key, payload, deadline=deadline, limit=limit, clock=self._clock, withdraw=self._withdraw
            )
            self._waiting.add(job)
            self._changed.notify()
        return job

    def wait_until_ready(self, *, timeout_s: float | None) -> None:
        """Wait for `prepare`; raise what it raised, or `NotReady` where it takes longer than `timeout_s`."""
        if not wait([self.ready], timeout=timeout_s).done:
            msg = f"Model {self.name!r} is being loaded; try again in {_RETRY_LOADING_S} s."
            raise NotReady(msg, retry_after_s=_RETRY_LOADING_S)
        self._raise_failure()

    def stop_accepting(self) -> None:
        """Take no more jobs; those accepted are still answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self, *, grace_s: float) -> None:
        """Take no more jobs, wait `grace_s` seconds at most for those accepted, and then refuse the rest.

        What runs then is told to end at its next report.
        """
        self.stop_accepting()
        self._thread.join(grace_s)
        self._refuse(_closing(self.name))

    def lose(self, error: DeviceLost) -> None:
        """Answer whatever was accepted with the error, now and from now on."""
        self._lost = error
        self.stop_accepting()
        self._refuse(error)

    def _work(self, prepare: Callable[[], Run[P, R]]) -> None:
        try:
            self._prepare_and_run(prepare)
        finally:
            self._ended()

    def _prepare_and_run(self, prepare: Callable[[], Run[P, R]]) -> None:
        try:
            run = prepare()
        except BaseException as raised:  # noqa: BLE001 - whatever it is, all who wait are told
            _log.warning("preparing %s failed: %s", self.name, _in_a_line(raised), exc_info=self._unexpected(raised))
            error = _harmless(raised)
            _forget_work(error)
            error = error.with_traceback(None)  # it would hold this frame, which does not end before the error is told
            with self._changed:
                self.ready.set_exception(error)
            self._refuse(error)
            return
        self.ready.set_result(None)
        while jobs := self._take():
            self._end(jobs, _outcomes(run, jobs, self._clock))
            del jobs  # nothing of them is kept while the thread waits for the next

    def _unexpected(self, raised: BaseException) -> BaseException | None:
        return None if isinstance(raised, self._expected) else raised

    def _take(self) -> Sequence[Job[P, R]]:
        """Wait for the next batch, which runs then; empty when all is done and no more will come."""
        with self._changed:
            self._running = ()
            patience_ends = self._clock() + self._wait_s
            while not (batch := self._waiting.take(self._clock(), patience_ends=patience_ends)):
                if self._waiting:
                    self._changed.wait(patience_ends - self._clock())
                elif self._closed:
                    return ()
                else:
                    self._changed.wait()
                    patience_ends = self._clock()  # nothing ran meanwhile, so what came is not kept waiting
            self._running = batch
            started = self._clock()
            for job in batch:
                job.started = started
        return batch

    def _end(self, jobs: Sequence[Job[P, R]], outcomes: Sequence[R | Exception]) -> None:
        finished = self._clock()
        for job in jobs:
            job.finished = finished
        run_s = jobs[0].run_s
        self.seconds_each += 0.2 * (run_s / len(jobs) - self.seconds_each)
        try:
            self._ran(jobs[0].key, jobs, run_s)
        except Exception:  # noqa: BLE001 - the jobs are to be answered, whatever becomes of their count
            _log.exception("noting a batch of %s failed", self.name)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _forget_work(outcome)
            job.answer(outcome)

    def _withdraw(self, job: Job[P, R]) -> None:
        with self._changed:
            self._waiting.discard(job)

    def _raise_failure(self) -> None:
        """Raise what `prepare` raised; every caller adds its own frames to the one exception, none keeps them."""
        error = self._lost or (self.ready.exception() if self.ready.done() else None)
        if error:
            raise error.with_traceback(None)

    def _refuse(self, error: Exception) -> None:
        with self._changed:
            refused = [*self._running, *self._waiting.clear()]
        for job in refused:
            job.answer(error)


def _outcomes(run: Run[P, R], jobs: Sequence[Job[P, Any]], clock: Callable[[], float]) -> Sequence[R | Exception]:
    """Return an outcome for each job: of all together, or, if that raises, of each alone."""
    together = _attempt(run, jobs, clock)
    if not isinstance(together, Exception):
        return together
    if len(jobs) == 1 or isinstance(together, CancelledError | DeviceLost):
        return [together] * len(jobs)
    _forget_work(together)
    _log.info("a batch of %d failed and is run item by item: %r", len(jobs), together)
    outcomes: list[R | Exception] = []
    for job in jobs:
        alone = CancelledError() if job.is_lost(clock()) else _attempt(run, [job], clock)
        outcomes += [alone] if isinstance(alone, Exception) else alone
    return outcomes


def _attempt(
    run: Run[P, R], jobs: Sequence[Job[P, Any]], clock: Callable[[], float]
) -> Sequence[R | Exception] | Exception:
    """Return the answers or the error; in a frame of its own, which has ended and can be emptied afterwards."""

    def report(done: int, total: int) -> None:
        """Note the progress. Raises `CancelledError` where nobody waits for any of the jobs any more."""
        now = clock()
        for job in jobs:
            job.progress = (done, total)
        lost = [job.is_lost(now) for job in jobs]  # all are asked: each is told there that it is too late
        if all(lost):
            raise CancelledError

    try:
        answers = run(jobs[0].key, [job.payload for job in jobs], report)
        if len(answers) != len(jobs):
            return RuntimeError(f"{len(answers)} answers came for {len(jobs)} payloads")
    except BaseException as raised:  # noqa: BLE001 - the thread outlives any job; the error is the job's answer
        return _harmless(raised)
    return answers


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


def _in_a_line(error: BaseException) -> str:
    """Return an error, what led to it, and where that was raised, which may be in the operator's own code."""
    link = traceback.TracebackException.from_exception(error)  # which gets along with errors that refer to themselves
    said = [_words(link)]
    while link.__cause__ is not None:
        link = link.__cause__
        said.append(_words(link))
    places = [frame for frame in link.stack if not frame.filename.startswith("<")]
    return " <- ".join(said) + (f" ({places[-1].filename}:{places[-1].lineno})" if places else "")


def _words(link: traceback.TracebackException) -> str:
    return " ".join("".join(link.format_exception_only()).split())[:_LINE_CHARACTERS]


def _harmless(raised: BaseException) -> Exception:
    """Return an error that others may raise: `SystemExit` of foreign code would end whoever asks for the answer."""
    return raised if isinstance(raised, Exception) else RuntimeError(f"foreign code raised {raised!r}")


def _closing(name: str) -> ShuttingDown:
    return ShuttingDown(f"Model {name!r} is being shut down; try again in a moment.", retry_after_s=1)
