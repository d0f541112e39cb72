"""Requests of every kind from many threads: one answer each, and nothing left. `benchmarks/soak.py` asks 10,000."""

from pathlib import Path

from tests.app.soaking import ask, hooks_left, soak

REQUESTS = 300
SEEN_BY_ITSELF = {"good", "bad option", "no picture", "damaged picture", "slow", "abandoned", "half sent", "expired"}


def test_every_request_has_one_answer_and_leaves_nothing(models_dir: Path) -> None:
    with soak(models_dir) as soaked:
        soaked.run(range(REQUESTS))
        assert soaked.wrong == []
        assert soaked.counting.requests == soaked.answers.total() == REQUESTS
        assert soaked.unanswered == 0
        assert soaked.inside == 0
        assert hooks_left() == 0
    assert {ask(number).kind for number in range(REQUESTS)} == SEEN_BY_ITSELF
