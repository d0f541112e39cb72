"""A failed job leaves the memory once its error is answered, and the error still says where it happened."""

import gc
import logging
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from app.engine import Job, Owner, Report

Raise = Callable[[], object]


class Work:
    """Stands for the tensors of a method, and for a payload."""


def _fail() -> object:
    raise ValueError("failed")


def _fail_and_say_so() -> object:
    work = Work()
    try:
        _helper(work)
    except ZeroDivisionError as error:
        raise ValueError("failed") from error
    return work


def _fail_while_failing() -> object:
    work = Work()
    try:
        _helper(work)
    except ZeroDivisionError:
        raise ValueError("failed") from None
    return work


def _give_the_error_back() -> object:
    try:
        _helper(Work())
    except ZeroDivisionError as error:
        return error
    return None


def _remember_the_error() -> object:
    try:
        _helper(Work())
    except ZeroDivisionError as raised:
        error = raised  # a cycle of the frame's own
        raise error from None
    return None


def _exit() -> object:
    _helper(Work())
    raise SystemExit(3)


def _helper(work: Work) -> float:
    local = work
    _helper.seen.append(weakref.ref(local))  # type: ignore[attr-defined]
    return 1 / 0


_helper.seen = []  # type: ignore[attr-defined]


@contextmanager
def no_collector() -> Iterator[None]:
    """What is freed is freed because nothing refers to it, and not because the collector found a cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def failing(how: Raise, alive: list[weakref.ref[Work]]) -> Callable[..., Sequence[object]]:
    def run(_key: Hashable, payloads: Sequence[Work], _report: Report) -> Sequence[object]:
        work = Work()
        alive.extend(map(weakref.ref, [work, *payloads]))
        return [how()]

    return run


@pytest.mark.parametrize(
    "how",
    [_fail, _fail_and_say_so, _fail_while_failing, _give_the_error_back, _remember_the_error, _exit],
    ids=lambda how: how.__name__.strip("_"),
)
def test_a_failed_job_leaves_the_memory(how: Raise) -> None:
    alive: list[weakref.ref[Work]] = []
    _helper.seen = alive  # type: ignore[attr-defined]
    owner: Owner[Work, object] = Owner("m", lambda: failing(how, alive))  # type: ignore[arg-type,return-value]
    with no_collector():
        job = owner.submit("k", Work(), timeout_s=10)
        error = job.future.exception(timeout=10)
        assert error is not None
        work = alive[:1] + alive[2:]
        assert work
        assert [made() for made in work] == [None] * len(work)  # while the error is still there
        held: weakref.ref[Job[Work, object]] = weakref.ref(job)
        del job, error
        deadline = time.monotonic() + 60  # the owner is told last that the waiter has its answer
        while held() is not None or any(made() is not None for made in alive):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    owner.close(grace_s=10)


def test_a_failed_prepare_leaves_the_memory() -> None:
    alive: list[weakref.ref[Work]] = []
    _helper.seen = alive  # type: ignore[attr-defined]

    def prepare() -> Callable[..., Sequence[object]]:
        half_prepared = Work()
        alive.append(weakref.ref(half_prepared))
        _fail_and_say_so()
        return lambda *_: []

    with no_collector():
        owner: Owner[Work, object] = Owner("m", prepare)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="failed"):
            owner.wait_until_ready(timeout_s=10)
        assert owner.state == "failed"
        assert [made() for made in alive] == [None] * 2
    owner.close(grace_s=10)


def test_the_log_still_says_where_it_happened(caplog: pytest.LogCaptureFixture) -> None:
    owner: Owner[Work, object] = Owner("m", lambda: failing(_fail_and_say_so, []))  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="failed") as raised:
        owner.submit("k", Work(), timeout_s=10).result()
    owner.close(grace_s=10)
    logging.getLogger("test").error("unexpected", exc_info=raised.value)
    for function, line in (("run", "return [how()]"), ("_fail_and_say_so", "raise ValueError"), ("_helper", "1 / 0")):
        assert f"in {function}\n    {line}" in caplog.text.replace("return 1 / 0", "1 / 0")
    (cause,) = traceback.extract_tb(raised.value.__cause__.__traceback__)[-1:]  # type: ignore[union-attr]
    assert (cause.name, cause.filename) == ("_helper", __file__)
