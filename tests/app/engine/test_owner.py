"""The owner thread: every accepted job gets exactly one answer."""

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from app.engine import DeadlineExceeded, NotReady, Owner, Report, ShuttingDown

Run = Callable[[Hashable, Sequence[int], Report], Sequence[int | Exception]]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """A run function that waits for the test at each payload; it answers with the payload doubled."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)
        self.seen: list[tuple[Hashable, int]] = []

    def __call__(self, key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        self.seen += [(key, payload) for payload in payloads]
        self.entered.release()
        self.may_go.acquire()
        return [2 * payload for payload in payloads]


@contextmanager
def owning(
    prepare: Callable[[], Run],
    *,
    clock: Clock | None = None,
) -> Iterator[Owner[int, int]]:
    owner: Owner[int, int] = Owner("m", prepare, clock=clock or Clock())
    yield owner
    owner.close(grace_s=10)


def double(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
    return [2 * payload for payload in payloads]


def test_prepare_and_run_share_one_thread_that_is_not_the_callers() -> None:
    threads: list[threading.Thread] = []

    def prepare() -> Run:
        threads.append(threading.current_thread())

        def run(key: Hashable, payloads: Sequence[int], report: Report) -> list[int | Exception]:
            threads.append(threading.current_thread())
            return double(key, payloads, report)

        return run

    with owning(prepare) as owner:
        assert [owner.submit("k", n, timeout_s=10).result() for n in (1, 2)] == [2, 4]
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()


def test_an_error_is_the_answer_of_its_own_job_only() -> None:
    def run(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        (payload,) = payloads
        if payload == 1:
            raise ZeroDivisionError("raised")
        return [ValueError("returned")] if payload == 2 else [payload]

    with owning(lambda: run) as owner:
        jobs = [owner.submit("k", n, timeout_s=10) for n in range(4)]
        assert jobs[0].result() == 0
        with pytest.raises(ZeroDivisionError, match="raised"):
            jobs[1].result()
        with pytest.raises(ValueError, match="returned"):
            jobs[2].result()
        assert jobs[3].result() == 3


def test_sys_exit_in_foreign_code_is_an_answer_too() -> None:
    def run(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        if payloads[0] == 1:
            sys.exit(3)
        return list(payloads)

    with owning(lambda: run) as owner:
        jobs = [owner.submit("k", n, timeout_s=10) for n in (1, 2)]
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
            jobs[0].result()
        assert jobs[1].result() == 2
    with owning(sys.exit) as owner:
        with pytest.raises(RuntimeError, match="SystemExit"):  # itself it would end the thread that asks
            owner.wait_until_ready(timeout_s=10)
        assert owner.state == "failed"


def test_an_expired_job_is_not_run() -> None:
    gate, clock = Gate(), Clock()
    with owning(lambda: gate, clock=clock) as owner:
        first, second = (owner.submit("k", n, timeout_s=5, limit="5 s (the limit)") for n in (1, 2))
        gate.entered.acquire()
        clock.now += 6  # both deadlines pass while the first runs
        gate.may_go.release(2)
        with pytest.raises(DeadlineExceeded, match=r"not answered within 5 s \(the limit\)\."):
            second.future.result(timeout=10)
        assert first.future.result(timeout=10) == 2
    assert gate.seen == [("k", 1)]


def test_who_gives_up_waiting_gets_the_deadline_and_the_job_is_dropped() -> None:
    gate, clock = Gate(), Clock()
    with owning(lambda: gate, clock=clock) as owner:
        owner.submit("k", 1, timeout_s=5)
        gate.entered.acquire()
        waiting = owner.submit("k", 2, timeout_s=0)
        with pytest.raises(DeadlineExceeded):
            waiting.result()
        gate.may_go.release(2)
    assert gate.seen == [("k", 1)]


def test_a_failed_prepare_is_the_answer_of_all_who_wait_and_of_all_who_come() -> None:
    may_fail = threading.Event()

    def prepare() -> Run:
        may_fail.wait()
        raise LookupError("no weights")

    with owning(prepare) as owner:
        assert owner.state == "loading"
        early = owner.submit("k", 1, timeout_s=10)
        may_fail.set()
        with pytest.raises(LookupError, match="no weights"):
            early.result()
        with pytest.raises(LookupError, match="no weights"):
            owner.wait_until_ready(timeout_s=10)
        assert owner.state == "failed"
        with pytest.raises(LookupError, match="no weights"):
            owner.submit("k", 2, timeout_s=10)


def test_closing_answers_what_was_accepted_and_refuses_the_rest() -> None:
    gate = Gate()
    owner: Owner[int, int] = Owner("m", lambda: gate, clock=Clock())
    jobs = [owner.submit("k", n, timeout_s=10) for n in (1, 2)]
    gate.entered.acquire()
    owner.stop_accepting()
    assert owner.state == "closed"
    with pytest.raises(ShuttingDown) as refused:
        owner.submit("k", 3, timeout_s=10)
    assert refused.value.extra == {"retry_after_s": 1}
    gate.may_go.release(2)
    owner.close(grace_s=10)
    assert [job.result() for job in jobs] == [2, 4]


def test_when_the_grace_is_over_whoever_still_waits_is_told_so() -> None:
    gate = Gate()
    owner: Owner[int, int] = Owner("m", lambda: gate, clock=Clock())
    running, waiting = (owner.submit("k", n, timeout_s=10) for n in (1, 2))
    gate.entered.acquire()
    owner.close(grace_s=0)
    for job in (running, waiting):
        with pytest.raises(ShuttingDown):
            job.result()
    gate.may_go.release(2)
    owner.close(grace_s=10)
    assert gate.seen == [("k", 1)]


def test_a_model_that_still_loads_says_when_to_come_again_and_is_loaded_once() -> None:
    may_load, loads = threading.Event(), []

    def prepare() -> Run:
        loads.append(1)
        may_load.wait()
        return double

    with owning(prepare) as owner:
        for _ in range(3):
            with pytest.raises(NotReady, match="'m' is being loaded; try again in 5 s") as refused:
                owner.wait_until_ready(timeout_s=0)
            assert refused.value.extra == {"retry_after_s": 5}
        may_load.set()
        owner.wait_until_ready(timeout_s=10)
        assert owner.submit("k", 1, timeout_s=10).result() == 2
    assert loads == [1]


def test_times_are_read_off_the_owners_clock() -> None:
    clock = Clock()

    def run(_key: Hashable, payloads: Sequence[int], _report: Report) -> list[int | Exception]:
        clock.now += 3
        return list(payloads)

    with owning(lambda: run, clock=clock) as owner:
        job = owner.submit("k", 1, timeout_s=10)
        job.result()
        assert (job.queue_s, job.run_s) == (0, 3)
        later = owner.submit("k", 1, timeout_s=10)
        later.result()
        assert later.accepted == 103


def test_work_is_overdue_when_all_for_whom_it_is_done_were_told_that_it_is_too_late() -> None:
    gate, clock = Gate(), Clock()
    with owning(lambda: gate, clock=clock) as owner:
        assert owner.overdue_s == 0
        job = owner.submit("key", 1, timeout_s=5)
        gate.entered.acquire()
        clock.now += 5
        assert owner.overdue_s == 0
        clock.now += 7
        assert owner.overdue_s == 7
        gate.may_go.release()
        later = owner.submit("key", 2, timeout_s=5)
        gate.entered.acquire()
        assert owner.overdue_s == 0
        gate.may_go.release()
        assert (job.result(), later.result()) == (2, 4)


@pytest.mark.parametrize("is_expected", [True, False])
def test_why_nothing_could_be_prepared_is_said_in_one_line_and_at_length_only_where_nobody_expects_it(
    is_expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    error = NotReady("It is not there.") if is_expected else LookupError("It is not there.")

    def prepare() -> Run:
        try:
            int("two\nlines")
        except ValueError as cause:
            raise error from cause

    with owning(prepare) as owner, pytest.raises(type(error)):
        owner.wait_until_ready(timeout_s=10)
    [record] = caplog.records
    message = record.getMessage()
    assert message.startswith("preparing m failed: ")
    assert f"{type(error).__name__}: It is not there. <- ValueError: invalid literal" in message
    assert f"({__file__}:" in message
    assert "\n" not in message
    assert (record.exc_info is None) == is_expected
