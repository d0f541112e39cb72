"""Requests of every kind from many threads: one answer each, and nothing left. `benchmarks/soak.py` asks 10,000.

Then a real server, with faults; `make soak` besieges it for longer.
"""

from pathlib import Path

import pytest

from tests.app.siege.run import Plan, besiege
from tests.app.siege.server import WEB_WORKERS
from tests.app.siege.verdict import broken_promises
from tests.app.soaking import ask, hooks_left, soak

REQUESTS = 300
SEEN_BY_ITSELF = {"good", "bad option", "no picture", "damaged picture", "slow", "abandoned", "half sent", "expired"}
FAULTS = {
    "web worker killed",
    "job worker killed",
    "rolling restart",
    "full queue",
    "database locked",
    "clients disconnect",
}


def test_every_request_has_one_answer_and_leaves_nothing(models_dir: Path) -> None:
    with soak(models_dir) as soaked:
        soaked.run(range(REQUESTS))
        assert soaked.wrong == []
        assert soaked.counting.requests == soaked.answers.total() == REQUESTS
        assert soaked.unanswered == 0
        assert soaked.inside == 0
        assert hooks_left() == 0
    assert {ask(number).kind for number in range(REQUESTS)} == SEEN_BY_ITSELF


@pytest.mark.server
def test_a_server_that_is_besieged_for_two_minutes_keeps_its_promises(tmp_path: Path) -> None:
    """Of 30 minutes by `make soak`, two: the load goes on until each fault was done once.

    That answers stay as fast is judged by the long one alone: here is hardly a moment without a fault.
    """
    plan = Plan(minutes=1.25, capacity_s=8, warm_s=20, fault_every_s=6, judges_speed=False)
    story = besiege(plan, tmp_path)
    assert broken_promises(story) == []
    assert {fault.name for fault in story.faults} == FAULTS
    assert story.jobs_finished == story.jobs_accepted > 0
    assert {visit.kind for visit in story.visits if visit.status == 200} >= {"good", "page", "slow client"}
    assert [life.role for life in story.after.values()].count("web worker") == WEB_WORKERS
