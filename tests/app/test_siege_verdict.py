"""What the verdict over a siege finds, in stories that are made up: each promise can be broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.siege.faults import KILLS, Fault
from tests.app.siege.record import write
from tests.app.siege.run import Plan, Story
from tests.app.siege.verdict import LEAK_BYTES, REFUSED, SLACK_BYTES, SLACK_FILES, SLACK_THREADS, broken_promises
from tests.app.siege.visits import BROKEN, Visit
from tests.app.siege.watching import Held, Life, growth, slope

MINUTES = 10
REQUESTS = 600
MIB = 2**20


def held(second: float, grown_bytes: float = 0.0, files: int = 20, threads: int = 12) -> Held:
    """A process that grows evenly, and for a moment in every minute needs much more."""
    spike = 500 * MIB if second % 60 == 30 else 0
    return Held(second, int(800 * MIB + grown_bytes * second / (60 * MINUTES)) + spike, files, threads)


def visit(number: int, took_s: float = 0.1, status: int = 200, **facts: object) -> Visit:
    known = {"name": f"v{number}", "id": f"v{number}", "kind": "good", "due": number, "ended": number + took_s}
    return Visit(**{**known, "status": status, "right": status == 200, **facts})  # type: ignore[arg-type]


@pytest.fixture
def story() -> Story:
    """One request a second, one process, and a worker that is killed at 100 s."""
    story = Story(Plan(minutes=MINUTES, warm_s=60), capacity=1.4, ended=60.0 * MINUTES, exit_code=0)
    story.visits = [visit(number) for number in range(REQUESTS)]
    story.logged.update(visit.id for visit in story.visits)
    story.faults = [Fault(KILLS, 100, 105, 2)]
    story.lives = {7: Life("web worker", [held(second) for second in range(0, 60 * MINUTES, 2)])}
    story.before, story.after = ({7: Life("web worker", [held(0)])} for _ in range(2))
    return story


def test_a_story_without_harm_keeps_all_promises(story: Story, tmp_path: Path) -> None:
    assert broken_promises(story) == []
    found = write(story, tmp_path / "soak.json", tmp_path / "soak.png")
    assert found["requests"] == REQUESTS
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("at", "promises"), [(102, 0), (300, 1)])
def test_a_connection_may_break_while_its_worker_is_killed(story: Story, at: int, promises: int) -> None:
    story.visits[at] = visit(at, status=BROKEN)
    assert len(broken_promises(story)) == promises


@pytest.mark.parametrize(("at", "told_when", "promises"), [(102, True, 0), (102, False, 1), (300, True, 1)])
def test_a_refusal_is_clean_and_during_a_fault(story: Story, at: int, told_when: bool, promises: int) -> None:
    story.visits[at] = visit(at, status=503, told_when=told_when)
    assert len(broken_promises(story)) == promises


@pytest.mark.parametrize(("code", "many", "promises"), [("queue_full", 1, 0), ("queue_full", 2, 2), ("other", 1, 1)])
def test_few_may_find_a_full_queue_at_any_time(story: Story, code: str, many: int, promises: int) -> None:
    story.visits += [visit(REQUESTS + number, due=500, ended=500.1) for number in range(int(1 / REFUSED) - REQUESTS)]
    story.logged.update(visit.id for visit in story.visits[REQUESTS:])
    for at in range(300, 300 + many):
        story.visits[at] = visit(at, status=503, told_when=True, why=f'{{"code": "{code}", ...')
    assert len(broken_promises(story)) == promises


@pytest.mark.parametrize("times", [0, 2])
def test_each_request_is_answered_once(story: Story, times: int) -> None:
    story.logged["v300"] = times
    assert any("v300" in promise for promise in broken_promises(story))


def test_a_leak_of_twice_what_is_allowed_is_seen_among_spikes(story: Story) -> None:
    leak = 2 * (LEAK_BYTES * REQUESTS + SLACK_BYTES)
    life = Life("web worker", [held(second, leak) for second in range(0, 60 * MINUTES, 2)])
    story.lives = {7: life}
    assert growth(life.held, "bytes") == pytest.approx(leak, rel=0.02)
    (promise,) = broken_promises(story)
    assert "web worker 7 grew" in promise


def test_files_that_stay_open_are_seen(story: Story) -> None:
    story.after = {7: Life("web worker", [held(0, files=20 + SLACK_FILES + 1)])}
    (promise,) = broken_promises(story)
    assert "files open" in promise


def test_threads_that_stay_are_seen(story: Story) -> None:
    story.after = {7: Life("web worker", [held(0, threads=12 + SLACK_THREADS + 1)])}
    (promise,) = broken_promises(story)
    assert "threads" in promise


def test_a_worker_that_replaced_another_is_measured_by_the_one_before(story: Story) -> None:
    story.after = {8: Life("web worker", [held(0, threads=12 + SLACK_THREADS)])}
    assert broken_promises(story) == []
    story.after = {8: Life("web worker", [held(0, threads=12 + SLACK_THREADS + 1)])}
    assert len(broken_promises(story)) == 1


@pytest.mark.parametrize("left", [slice(None, -150), slice(150, None)])
def test_too_few_answers_to_judge_are_no_silent_pass(story: Story, left: slice, tmp_path: Path) -> None:
    """Of 200 requests in a third, 50 are less than a percentile is made of."""
    story.visits = story.visits[left]
    (promise,) = broken_promises(story)
    assert "too few" in promise
    story.plan = replace(story.plan, judges_speed=False)
    assert broken_promises(story) == []
    found = write(story, tmp_path / "soak.json", None)
    assert found["plan"]["judges_speed"] is False
    assert None in (found["p99_first_third_s"], found["p99_last_third_s"])


def test_answers_that_become_slow_are_seen(story: Story) -> None:
    story.visits[400:] = [visit(number, took_s=2.0) for number in range(400, REQUESTS)]
    (promise,) = broken_promises(story)
    assert "slowest percent" in promise


def test_what_is_left_behind_is_seen(story: Story) -> None:
    story.half_written, story.busy_gauges = ["data/jobs/.x"], ["heatlens_pending 1.0"]
    story.jobs_accepted, story.exit_code, story.tracebacks = 1, 1, ["KeyError"]
    assert len(broken_promises(story)) == 5


def test_the_slope_is_that_of_most_pairs() -> None:
    """Of 0, 1, 2, 3, 100 at 0..4, six of ten pairs have the slope 1, which is the median."""
    assert slope([(0, 0), (1, 1), (2, 2), (3, 3), (4, 100)]) == 1
