"""Several jobs in one run: each has its own answer, and a bad one fails alone."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest

from app.engine import DeadlineExceeded, DeviceLost, Job, Owner, Report
from tests.app.engine.test_owner import Clock

Answer = Callable[[Sequence[int], Report], Sequence[int | Exception]]


class Batches:
    """A run function that notes what comes together; the first run waits until `go`, so that others gather."""

    def __init__(self, answer: Answer) -> None:
        self.seen: list[list[int]] = []
        self.entered = threading.Event()
        self.go = threading.Event()
        self._answer = answer

    def __call__(self, _key: Hashable, payloads: Sequence[int], report: Report) -> Sequence[int | Exception]:
        self.seen.append(list(payloads))
        if len(self.seen) == 1:
            self.entered.set()
            assert self.go.wait(10)
            return list(payloads)
        return self._answer(payloads, report)


def double(payloads: Sequence[int], _report: Report) -> list[int | Exception]:
    return [2 * payload for payload in payloads]


@contextmanager
def gathering(
    answer: Answer, *, clock: Clock | None = None, size: int = 8
) -> Iterator[tuple[Owner[int, int], Batches]]:
    """An owner that is busy with payload 0."""
    run = Batches(answer)
    owner: Owner[int, int] = Owner("m", lambda: run, batch_size=lambda key: size, clock=clock or Clock())
    owner.submit("first", 0, timeout_s=1000)
    assert run.entered.wait(10)
    yield owner, run
    run.go.set()
    owner.close(grace_s=10)


def test_what_gathers_meanwhile_runs_together_up_to_the_size() -> None:
    with gathering(double, size=3) as (owner, run):
        jobs = [owner.submit("k", n, timeout_s=10) for n in range(1, 6)]
        run.go.set()
        assert [job.result() for job in jobs] == [2, 4, 6, 8, 10]
    assert run.seen == [[0], [1, 2, 3], [4, 5]]


def test_a_job_that_comes_while_the_thread_idles_runs_at_once() -> None:
    """The clock stands still: with any patience left, the job would wait for ever."""
    seen: list[int] = []

    def run(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        seen.append(len(payloads))
        return list(payloads)

    owner: Owner[int, int] = Owner("m", lambda: run, batch_size=lambda key: 8, wait_s=1e9, clock=Clock())
    owner.wait_until_ready(timeout_s=10)
    while not owner._changed._waiters:  # type: ignore[attr-defined]  # it has begun to idle
        pass
    assert owner.submit("k", 5, timeout_s=10).future.result(timeout=10) == 5
    owner.close(grace_s=10)
    assert seen == [1]


def test_a_batch_that_raises_is_run_once_more_item_by_item() -> None:
    def poisoned(payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        if 3 in payloads:
            raise ValueError(f"poison in {list(payloads)}")
        return [2 * payload for payload in payloads]

    with gathering(poisoned) as (owner, run):
        jobs = {n: owner.submit("k", n, timeout_s=10) for n in range(1, 9)}
        run.go.set()
        assert {n: job.result() for n, job in jobs.items() if n != 3} == {n: 2 * n for n in jobs if n != 3}
        with pytest.raises(ValueError, match=r"poison in \[3\]"):
            jobs[3].result()
    assert run.seen == [[0], [1, 2, 3, 4, 5, 6, 7, 8], *[[n] for n in range(1, 9)]]


def test_items_that_fail_on_their_own_account_cost_no_second_run() -> None:
    def picky(payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        return [ValueError("odd") if payload % 2 else payload for payload in payloads]

    with gathering(picky) as (owner, run):
        jobs = [owner.submit("k", n, timeout_s=10) for n in (1, 2, 3)]
        run.go.set()
        assert jobs[1].result() == 2
        for job in (jobs[0], jobs[2]):
            with pytest.raises(ValueError, match="odd"):
                job.result()
    assert run.seen == [[0], [1, 2, 3]]


def test_a_wrong_number_of_answers_is_an_error_and_nobodys_answer_moves() -> None:
    def short(payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        return list(payloads)[:-1]

    with gathering(short) as (owner, run):
        jobs = [owner.submit("k", n, timeout_s=10) for n in (1, 2)]
        run.go.set()
        for job in jobs:
            with pytest.raises(RuntimeError, match="0 answers came for 1 payloads"):
                job.result()


def test_a_batch_goes_on_for_those_who_wait_and_ends_when_none_is_left() -> None:
    clock = Clock()
    steps: list[int] = []
    at_step, may_go = threading.Semaphore(0), threading.Semaphore(0)

    def stepwise(payloads: Sequence[int], report: Report) -> list[int | Exception]:
        for step in range(4):
            report(step, 4)
            steps.append(step)
            at_step.release()
            assert may_go.acquire(timeout=10)
        return list(payloads)

    with gathering(stepwise, clock=clock) as (owner, run):
        leaving, late, patient = (owner.submit("k", n, timeout_s=t) for n, t in ((1, 10), (2, 5), (3, 10)))
        run.go.set()
        at_step.acquire(timeout=10)
        leaving.abandon()
        clock.now += 6
        may_go.release()
        at_step.acquire(timeout=10)
        with pytest.raises(CancelledError):
            leaving.future.result(timeout=0)
        with pytest.raises(DeadlineExceeded, match="1 of 4 steps were done"):
            late.future.result(timeout=0)
        assert patient.progress == (1, 4)
        patient.abandon()
        may_go.release()
        assert owner.submit("other", 9, timeout_s=1000) is not None
        while len(run.seen) < 3:
            may_go.release()
        may_go.release(4)
    assert steps[:2] == [0, 1]
    assert run.seen == [[0], [1, 2, 3], [9]]
    assert steps[2:] == [0, 1, 2, 3]  # of the last job alone


def test_a_lost_device_is_the_answer_of_all_and_nothing_is_tried_again() -> None:
    def lost(payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        error = DeviceLost("gone", retry_after_s=10)
        owner.lose(error)
        raise error

    with gathering(lost) as (owner, run):
        jobs = [owner.submit(key, n, timeout_s=10) for key, n in (("k", 1), ("k", 2), ("other", 3))]
        run.go.set()
        for job in jobs:
            with pytest.raises(DeviceLost, match="gone"):
                job.result()
        with pytest.raises(DeviceLost, match="gone"):
            owner.submit("k", 4, timeout_s=10)
        with pytest.raises(DeviceLost, match="gone"):
            owner.wait_until_ready(timeout_s=0)
        assert owner.state == "failed"
    assert run.seen == [[0], [1, 2]]


def test_what_a_job_takes_is_measured_as_its_share_of_the_batch() -> None:
    clock = Clock()
    heard: list[tuple[Hashable, int, float]] = []

    def run(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        clock.now += 10
        return list(payloads)

    def ran(key: Hashable, jobs: Sequence[Job[int, int]], seconds: float) -> None:
        heard.append((key, len(jobs), seconds))

    owner: Owner[int, int] = Owner("m", lambda: run, ran=ran, clock=clock)
    owner.submit("k", 1, timeout_s=1000).result()
    owner.close(grace_s=10)
    assert heard == [("k", 1, 10.0)]
    assert owner.seconds_each == pytest.approx(2.0)  # a fifth of the way from 0 to 10
