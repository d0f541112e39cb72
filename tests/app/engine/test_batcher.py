"""Which jobs run together: told the time, without threads."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine import DeadlineExceeded, Job
from app.engine.batcher import Batcher
from tests.app.engine.test_owner import Clock

NOW = 100.0
"""What a new `Clock` reads."""


def job(key: str, payload: int = 0, *, timeout_s: float = 1000.0, clock: Clock | None = None) -> Job[int, int]:
    return Job(key, payload, deadline=NOW + timeout_s, limit="its time", clock=clock or Clock())


def waiting(*jobs: Job[int, int], size: Callable[[object], int] = lambda key: 3) -> Batcher[int, int]:
    batcher: Batcher[int, int] = Batcher(size)
    for one in jobs:
        batcher.add(one)
    return batcher


def taken(batcher: Batcher[int, int], now: float = NOW, patience_ends: float = NOW) -> list[int]:
    return [one.payload for one in batcher.take(now, patience_ends=patience_ends)]


def test_a_batch_is_the_oldest_job_and_the_next_of_its_key() -> None:
    batcher = waiting(job("a", 1), job("b", 2), job("a", 3), job("b", 4), job("a", 5), job("a", 6))
    assert taken(batcher) == [1, 3, 5]
    assert taken(batcher) == [2, 4]
    assert taken(batcher) == [6]
    assert taken(batcher) == []
    assert len(batcher) == 0


def test_a_batch_that_is_not_full_waits_until_patience_ends() -> None:
    batcher = waiting(job("a", 1), job("b", 2))
    assert taken(batcher, NOW, NOW + 2) == []
    assert taken(batcher, NOW + 1.9, NOW + 2) == []
    batcher.add(job("a", 3))
    assert taken(batcher, NOW + 2, NOW + 2) == [1, 3]


def test_a_full_batch_waits_for_nothing() -> None:
    assert taken(waiting(job("a", 1), job("b", 2), job("a", 3), job("a", 4)), NOW, NOW + 2) == [1, 3, 4]


def test_sizes_are_asked_for_when_the_batch_forms_and_are_at_least_one() -> None:
    sizes = {"a": 2, "b": 0}
    batcher = waiting(*[job("a", n) for n in range(5)], job("b", 9), job("b", 10), size=lambda key: sizes[str(key)])
    assert taken(batcher) == [0, 1]
    sizes["a"] = 1  # memory ran out
    assert taken(batcher) == [2]
    sizes["a"] = 9
    assert taken(batcher) == [3, 4]
    assert taken(batcher) == [9]


def test_expired_abandoned_and_answered_jobs_are_dropped_before_the_batch_forms() -> None:
    expired, abandoned, answered, good = job("a", 1, timeout_s=5), job("a", 2), job("a", 3), job("b", 4)
    batcher = waiting(expired, abandoned, answered, good)
    abandoned.abandon()
    answered.answer(7)
    assert taken(batcher, NOW + 6) == [4]
    assert len(batcher) == 0
    with pytest.raises(DeadlineExceeded, match="not answered within its time"):
        expired.future.result(timeout=0)
    assert answered.future.result(timeout=0) == 7


def test_a_job_that_is_taken_away_is_not_run_and_none_is_taken_twice() -> None:
    one, other = job("a", 1), job("a", 2)
    batcher = waiting(one, other)
    batcher.discard(one)
    batcher.discard(one)
    assert taken(batcher) == [2]
    batcher.discard(other)
    assert [kept.payload for kept in waiting(one, other).clear()] == [1, 2]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=40),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=3),
    st.integers(0, 20),
)
def test_every_job_is_taken_once_or_dropped_keys_never_mix_and_order_holds(
    jobs: list[tuple[str, int]], sizes: dict[str, int], now: int
) -> None:
    """Each job is (key, seconds until its deadline); its payload is its place in the row."""
    batcher = waiting(
        *[job(key, n, timeout_s=left) for n, (key, left) in enumerate(jobs)], size=lambda key: sizes[str(key)]
    )
    batches = []
    while batch := batcher.take(NOW + now, patience_ends=NOW):
        batches.append(batch)
    seen = [one.payload for batch in batches for one in batch]
    assert sorted(seen) == [n for n, (_, left) in enumerate(jobs) if left >= now]
    for batch in batches:
        (key,) = {str(one.key) for one in batch}
        assert len(batch) <= sizes[key]
    for key in "abc":
        own = [n for n in seen if jobs[n][0] == key]
        assert own == sorted(own)
    assert [batch[0].payload for batch in batches] == sorted(batch[0].payload for batch in batches)
