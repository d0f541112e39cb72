import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from explainers import Work
from explainers.errors import TooManySamples


def ranges(work: Work, total: int, run: Callable[[range], None] = lambda part: None) -> list[range]:
    def note(part: range) -> range:
        run(part)
        return part

    return list(work.steps(total, note))


def breaks_above(most: int, error: Callable[[], Exception]) -> Callable[[range], None]:
    def run(part: range) -> None:
        if len(part) > most:
            raise error()

    return run


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


# Chunks


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, []),
        (1, [range(1)]),
        (4, [range(4)]),
        (5, [range(4), range(4, 5)]),
        (9, [range(4), range(4, 8), range(8, 9)]),
    ],
)
def test_parts_cover_everything_once_in_order(total: int, expected: list[range]) -> None:
    assert ranges(Work(chunk=4), total) == expected


def test_nothing_is_done_before_it_is_asked_for() -> None:
    """So a method may hold one part at a time."""
    done: list[range] = []
    steps = Work(chunk=1).steps(3, done.append)
    assert done == []
    next(steps)
    assert done == [range(1)]


# Memory


@pytest.mark.parametrize(("most", "chunk"), [(16, 16), (15, 8), (8, 8), (7, 4), (5, 4), (3, 2), (1, 1)])
def test_without_memory_the_part_is_halved_until_it_fits(most: int, chunk: int) -> None:
    work = Work(chunk=16)
    parts = ranges(work, 40, breaks_above(most, out_of_memory))
    assert [number for part in parts for number in part] == list(range(40))
    assert {len(part) for part in parts[:-1]} == {chunk}
    assert work.chunk == chunk


def test_the_next_work_begins_with_what_fitted() -> None:
    work, tried = Work(chunk=16), []
    run = breaks_above(4, out_of_memory)
    for _ in range(2):
        tried.append([])
        ranges(work, 12, lambda part: (tried[-1].append(len(part)), run(part))[1])
    assert tried == [[12, 6, 3, 3, 3, 3], [3, 3, 3, 3]]


def test_one_that_does_not_fit_alone_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        ranges(Work(chunk=16), 40, breaks_above(0, out_of_memory))


def test_the_cpu_s_allocator_counts_too() -> None:
    def ask_for_an_exabyte(part: range) -> None:
        if len(part) > 2:
            torch.empty(2**60, dtype=torch.uint8)

    work = Work(chunk=8)
    assert [len(part) for part in ranges(work, 4, ask_for_an_exabyte)] == [2, 2]


@pytest.mark.parametrize("error", [RuntimeError("device-side assert"), ValueError("wrong"), KeyError("x")])
def test_other_errors_are_not_tried_again(error: Exception) -> None:
    calls: list[range] = []

    def run(part: range) -> None:
        calls.append(part)
        raise error

    with pytest.raises(type(error)):
        ranges(Work(chunk=4), 8, run)
    assert calls == [range(4)]


def test_what_a_failed_part_held_is_free_before_the_next_try() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def run(part: range) -> None:
        assert all(tensor() is None for tensor in held)
        large = torch.zeros(4)
        held.append(weakref.ref(large))
        if len(part) > 1:
            raise out_of_memory()

    ranges(Work(chunk=4), 4, run)
    assert len(held) == 2 + 4


# Progress and its end


def test_progress_is_told_before_each_part_and_at_the_end() -> None:
    heard: list[tuple[int, int] | range] = []
    work = Work(chunk=4, on_step=lambda done, total: heard.append((done, total)))
    ranges(work, 6, heard.append)
    assert heard == [(0, 6), range(4), (4, 6), range(4, 6), (6, 6)]


def test_progress_never_goes_back_when_memory_runs_out() -> None:
    heard: list[int] = []
    ranges(Work(chunk=4, on_step=lambda done, _: heard.append(done)), 6, breaks_above(1, out_of_memory))
    assert heard == sorted(heard)
    assert heard[-1] == 6


class Left(Exception):
    pass


@pytest.mark.parametrize("after", [0, 4, 8])
def test_whoever_leaves_ends_the_work_before_the_next_part(after: int) -> None:
    done: list[range] = []

    def leave(count: int, _total: int) -> None:
        if count >= after:
            raise Left

    def all_of_it() -> Iterator[None]:
        yield from Work(chunk=4, on_step=leave).steps(8, done.append)

    with pytest.raises(Left):
        list(all_of_it())
    assert sum(map(len, done)) == after


# The limit


def test_the_limit_is_named_with_what_broke_it() -> None:
    work = Work(limit=100, limit_name="HEATLENS_MAX_RUNS")
    work.allow(100, field="samples", because="just enough")
    with pytest.raises(TooManySamples) as caught:
        work.allow(101, field="samples", because="rise with 101 samples")
    assert str(caught.value) == "rise with 101 samples takes 101 runs of the model, HEATLENS_MAX_RUNS is 100."
    assert (caught.value.field, caught.value.extra) == ("samples", {"limit": 100})


def test_a_part_has_the_limits_of_the_whole_and_tells_between_its_own_passes() -> None:
    told: list[int] = []
    part = Work(chunk=2, limit=5, limit_name="HEATLENS_LIMIT").within(lambda: told.append(len(told)))
    assert ranges(part, 3) == [range(2), range(2, 3)]
    assert told == [0, 1, 2]  # before each pass and at the end
    with pytest.raises(TooManySamples, match="HEATLENS_LIMIT is 5"):
        part.allow(6, field="samples", because="it")
