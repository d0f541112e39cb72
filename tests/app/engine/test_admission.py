"""Places: bounded for each model and in total, and given back whatever happens."""

from collections import Counter
from contextlib import ExitStack

import pytest

from app.engine import Admission, QueueFull


def test_each_name_has_its_own_bound_and_all_together_another() -> None:
    admission = Admission(each=2, total=3, limits=("EACH", "TOTAL"))
    with ExitStack() as stack:
        for name in ("a", "a"):
            stack.enter_context(admission.place(name, seconds_each=0.0))
        with pytest.raises(QueueFull, match=r"2 requests for 'a' are being .* the limit is 2 \(EACH\); try") as refused:
            stack.enter_context(admission.place("a", seconds_each=0.0))
        assert refused.value.extra == {"limit": 2, "retry_after_s": 1}
        stack.enter_context(admission.place("b", seconds_each=0.0))
        with pytest.raises(QueueFull, match=r"^3 requests are being .* the limit is 3 \(TOTAL\)"):
            stack.enter_context(admission.place("b", seconds_each=0.0))
        assert (admission.inside(), admission.inside("a"), admission.inside("c")) == (3, 2, 0)
    assert (admission.inside(), admission.inside("a")) == (0, 0)
    with admission.place("a", seconds_each=0.0):
        assert admission.inside("a") == 1


@pytest.mark.parametrize(
    ("seconds_each", "retry_after_s"),
    [(0.0, 1), (0.4, 2), (0.5, 2), (0.6, 3), (1000.0, 600)],  # four inside, rounded up, between 1 s and 10 minutes
)
def test_who_is_refused_is_told_when_those_inside_will_be_done(seconds_each: float, retry_after_s: int) -> None:
    admission = Admission(each=4, total=9)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(admission.place("a", seconds_each=seconds_each))
        with pytest.raises(QueueFull) as refused:
            stack.enter_context(admission.place("a", seconds_each=seconds_each))
    assert refused.value.extra["retry_after_s"] == retry_after_s


def test_a_place_is_given_back_after_an_error_and_those_who_count_hear_of_both() -> None:
    entered: Counter[str] = Counter()
    left: Counter[str] = Counter()
    admission = Admission(each=1, total=1, entered=lambda n: entered.update([n]), left=lambda n: left.update([n]))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), admission.place("a", seconds_each=0.0):
            raise ZeroDivisionError
    with admission.place("a", seconds_each=0.0), pytest.raises(QueueFull), admission.place("b", seconds_each=0.0):
        pass
    assert entered == left == {"a": 4}


def test_no_place_is_taken_where_it_cannot_be_counted() -> None:
    def fail(_name: str) -> None:
        raise ZeroDivisionError

    left: list[str] = []
    admission = Admission(each=1, total=1, entered=fail, left=left.append)
    with pytest.raises(ZeroDivisionError), admission.place("a", seconds_each=0.0):
        pass
    assert (admission.inside(), left) == (0, [])
