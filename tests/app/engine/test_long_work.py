"""Long work reports its progress, and ends between two steps once nobody waits for it any more."""

import gc
import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import CancelledError

import pytest

from app.engine import DeadlineExceeded, Job, Owner, Report
from tests.app.engine.test_owner import Clock

STEPS = 4


class Stepwise:
    """A run function of four steps, before each of which it reports and then waits for the test.

    It answers with the payload doubled. `steps` holds (payload, step) of what was run; `last` refers to the last work.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)
        self.last: weakref.ref[set[int]] | None = None

    def __call__(self, _key: Hashable, payloads: Sequence[int], report: Report) -> list[int | Exception]:
        (payload,) = payloads
        work = {payload}  # stands for the tensors of a method
        self.last = weakref.ref(work)
        for step in range(STEPS):
            report(step, STEPS)
            self.entered.release()
            self.may_go.acquire()
            self.steps.append((payload, step))
        report(STEPS, STEPS)
        return [2 * payload]

    def let(self, steps: int) -> None:
        self.may_go.release(steps)
        for _ in range(steps):
            self.entered.acquire()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def work() -> Stepwise:
    return Stepwise()


@pytest.fixture
def owner(clock: Clock, work: Stepwise) -> Iterator[Owner[int, int]]:
    owner: Owner[int, int] = Owner("m", lambda: work, clock=clock)
    yield owner
    work.may_go.release(100)
    owner.close(grace_s=10)


def begun(owner: Owner[int, int], work: Stepwise) -> Job[int, int]:
    job = owner.submit("k", 1, timeout_s=5)
    work.entered.acquire()
    return job


def answered_next(owner: Owner[int, int], work: Stepwise) -> bool:
    """Whether the next job is run from its first step to its last, and answered."""
    job = owner.submit("k", 7, timeout_s=1000)
    work.may_go.release(STEPS)
    return job.result() == 14 and [step for payload, step in work.steps if payload == 7] == list(range(STEPS))


def test_progress_is_none_first_and_then_the_steps_done_and_all(owner: Owner[int, int], work: Stepwise) -> None:
    job = begun(owner, work)
    waiting = owner.submit("k", 2, timeout_s=5)
    assert (job.progress, waiting.progress) == ((0, STEPS), None)
    work.let(2)
    assert job.progress == (2, STEPS)
    work.may_go.release(2 + STEPS)
    assert (job.result(), waiting.result()) == (2, 4)
    assert job.progress == (STEPS, STEPS)


def test_work_past_its_deadline_ends_before_the_next_step(owner: Owner[int, int], work: Stepwise, clock: Clock) -> None:
    job = begun(owner, work)
    work.let(1)
    clock.now += 6
    work.may_go.release()  # the step that runs is finished, and no other begun
    with pytest.raises(DeadlineExceeded, match=r"2 of 4 steps were done: ask for fewer samples") as late:
        job.future.result(timeout=10)
    assert late.value.extra == {"done": 2, "total": 4}
    assert answered_next(owner, work)
    assert [step for payload, step in work.steps if payload == 1] == [0, 1]


def test_who_gives_up_waiting_ends_the_work(owner: Owner[int, int], work: Stepwise, clock: Clock) -> None:
    job = begun(owner, work)
    work.let(1)
    clock.now += 5  # the very deadline: the one who waits gives up, the work alone would go on
    with pytest.raises(DeadlineExceeded, match="1 of 4 steps were done"):
        job.result()
    work.may_go.release()
    with pytest.raises(CancelledError):
        job.future.result(timeout=10)
    assert answered_next(owner, work)
    assert [step for payload, step in work.steps if payload == 1] == [0, 1]


def test_what_the_watch_raises_ends_the_wait_and_the_work(owner: Owner[int, int], work: Stepwise) -> None:
    def watch(job: Job[int, int]) -> None:
        raise ConnectionError(f"{job.progress}")

    job = begun(owner, work)
    with pytest.raises(ConnectionError, match=r"\(0, 4\)"):
        job.result(watch)
    work.may_go.release()
    assert answered_next(owner, work)
    assert [step for payload, step in work.steps if payload == 1] == [0]


def test_an_abandoned_job_that_waits_is_dropped(owner: Owner[int, int], work: Stepwise) -> None:
    job = begun(owner, work)
    waiting = owner.submit("k", 2, timeout_s=5)
    waiting.abandon()
    work.may_go.release(STEPS)
    assert job.result() == 2
    assert answered_next(owner, work)
    assert 2 not in {payload for payload, _ in work.steps}


def test_work_that_was_ended_leaves_the_memory(owner: Owner[int, int], work: Stepwise, clock: Clock) -> None:
    gc.disable()  # freed because nothing refers to it, and not because the collector found a cycle
    try:
        job = begun(owner, work)
        clock.now += 6
        work.may_go.release()
        with pytest.raises(DeadlineExceeded):
            job.future.result(timeout=10)
        assert work.last is not None
        assert work.last() is None
    finally:
        gc.enable()
