"""Everything at once, from seeds: every accepted job gets exactly one answer, and it is its own."""

import random
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import CancelledError

import pytest

from app.engine import Admission, DeadlineExceeded, Job, Owner, QueueFull, Report, ShuttingDown

CLIENTS = 12
EACH = 60


class Poison(Exception):
    """What a bad payload raises for its whole batch."""


class Bad(Exception):
    """What a bad payload gets alone."""


class Network:
    """Answers (key, payload); some payloads raise, some fail alone, and no call overlaps another."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self._inside = threading.Lock()

    def __call__(self, key: Hashable, payloads: Sequence[int], report: Report) -> list[object]:
        assert self._inside.acquire(blocking=False), "two runs at once"
        try:
            self.sizes[len(payloads)] += 1
            for step in range(3):
                report(step, 3)
            if any(payload % 17 == 3 for payload in payloads):
                raise Poison
            return [Bad() if payload % 13 == 5 else (key, payload) for payload in payloads]
        finally:
            self._inside.release()


class Client(threading.Thread):
    """Submits, and waits, gives up, or lets go; notes what came of each payload. Of odd seeds, the first closes."""

    def __init__(self, number: int, seed: int, owner: "Owner[int, object]", admission: Admission) -> None:
        super().__init__()
        self.outcomes: list[tuple[Hashable, int, object]] = []
        self._first = number * EACH
        self._closes = number == 0 and seed % 2 == 1
        self._random = random.Random(seed * 1000 + number)  # noqa: S311 - seeded chaos
        self._owner = owner
        self._admission = admission

    def run(self) -> None:
        for payload in range(self._first, self._first + EACH):
            if self._closes and payload == self._first + EACH // 2:  # in the middle of it the owner closes
                self._owner.close(grace_s=10)
            key = self._random.choice("abc")
            self.outcomes.append((key, payload, self._one(key, payload)))

    def _one(self, key: str, payload: int) -> object:
        timeout_s = self._random.choice([0.0, 30.0, 30.0, 30.0])
        try:
            with self._admission.place("m", seconds_each=self._owner.seconds_each):
                job = self._owner.submit(key, payload, timeout_s=timeout_s)
                if self._random.random() < 0.1:
                    job.abandon()
                return job.result()
        except (Poison, Bad, DeadlineExceeded, CancelledError, QueueFull, ShuttingDown) as error:
            return error


def is_right(key: Hashable, payload: int, outcome: object) -> bool:
    """Whether this may be the answer: a good payload's is its own, a bad one's its own error, unless it never ran."""
    if isinstance(outcome, DeadlineExceeded | CancelledError | QueueFull | ShuttingDown):
        return True
    if payload % 17 == 3:
        return isinstance(outcome, Poison)
    return isinstance(outcome, Bad) if payload % 13 == 5 else outcome == (key, payload)


@pytest.mark.parametrize("seed", range(6))
def test_every_accepted_job_gets_exactly_one_answer_and_it_is_its_own(seed: int) -> None:
    network = Network()
    owner: Owner[int, object] = Owner("m", lambda: network, batch_size=lambda key: 4)
    admission = Admission(each=10, total=10)
    clients = [Client(number, seed, owner, admission) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
        assert not client.is_alive()
    owner.close(grace_s=10)
    outcomes = [outcome for client in clients for outcome in client.outcomes]
    assert len(outcomes) == CLIENTS * EACH
    assert [entry for entry in outcomes if not is_right(*entry)] == []
    assert admission.inside() == 0
    assert len(owner._waiting) == 0
    kinds = Counter(type(outcome).__name__ for _, _, outcome in outcomes)
    assert {"tuple", "DeadlineExceeded", "CancelledError"} <= set(kinds), kinds
    assert ("ShuttingDown" in kinds) == bool(seed % 2), kinds
    assert max(network.sizes) <= 4


def test_an_answer_is_given_once_however_many_compete_for_it() -> None:
    for round_ in range(200):
        job: Job[int, int] = Job("k", 0, deadline=0.0, limit="its time", clock=lambda: 0.0)
        start = threading.Barrier(4)

        def compete(n: int, job: Job[int, int] = job, start: threading.Barrier = start) -> None:
            start.wait()
            if n == 0:
                job.abandon()
            else:
                job.answer(n)

        threads = [threading.Thread(target=compete, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = job.future.exception() or job.future.result()
        job.answer(99)
        assert (job.future.exception() or job.future.result()) is first, round_
