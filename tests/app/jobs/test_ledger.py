"""The book of the jobs, on SQLite and on Postgres: counts are those of the rows, and the first outcome stands."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.config import Settings
from app.errors import IdempotencyConflict, JobState, JobsUnavailable, OutOfSpace, UnknownItem, UnknownJob
from app.jobs import tables
from app.jobs.database import _CONNECTIONS as CONNECTIONS
from app.jobs.database import _POOL as POOL
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.ledger import Ledger
from app.jobs.metrics import page
from app.jobs.reading import Reading
from app.jobs.rows import Census, ItemRow, NewItem, Outcome

FAULT = {"code": "corrupt_image", "detail": "It is damaged."}


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database, ShardQueue(database), shard_pictures=3)


def result(label: str = "cat", probability: float = 0.5) -> dict[str, Any]:
    return {"explanations": [{"target": {"index": 7, "label": label, "probability": probability}}]}


def pictures(count: int) -> list[NewItem]:
    return [NewItem(f"picture {number}", f"store:{number}", size_bytes=10) for number in range(count)]


def submitted(ledger: Ledger, count: int, *, webhook: str | None = None) -> str:
    job_id = ledger.open(owner="me")
    ledger.add(job_id, 0, pictures(count))
    return ledger.submit(job_id, name="mine", options={"method": "gradcam"}, webhook=webhook).id


def everything(ledger: Ledger, job_id: str) -> list[ItemRow]:
    return ledger.items(job_id, limit=1000)


def queued_shards(database: Database) -> list[str]:
    with database.read() as connection:
        return sorted(engine_rows(connection, database))


def engine_rows(connection: Any, database: Database) -> list[str]:
    table = "workflow_status" if database.is_sqlite else "dbos.workflow_status"
    return list(connection.exec_driver_sql(f"SELECT workflow_uuid FROM {table} WHERE status = 'ENQUEUED'").scalars())  # noqa: S608


def test_a_job_is_cut_into_shards_and_seen_only_when_it_is_whole(ledger: Ledger, database: Database) -> None:
    job_id = ledger.open(owner="me")
    ledger.add(job_id, 0, pictures(7))
    assert ledger.jobs(limit=10) == []
    with pytest.raises(UnknownJob):
        ledger.job(job_id)
    job = ledger.submit(job_id, options={})
    assert (job.status, job.total, job.done, job.size_bytes) == ("queued", 7, 0, 70)
    assert queued_shards(database) == [f"{job_id}/{shard}" for shard in range(3)]


def test_what_is_discarded_leaves_nothing(ledger: Ledger, database: Database) -> None:
    job_id = ledger.open(owner="me")
    ledger.add(job_id, 0, pictures(7))
    ledger.discard(job_id)
    with database.read() as connection:
        assert connection.scalar(tables.sa.select(tables.sa.func.count()).select_from(tables.items)) == 0
    assert ledger.usage("me").unfinished_jobs == 0


def test_a_job_ends_with_its_last_picture(ledger: Ledger) -> None:
    job_id = submitted(ledger, 4)
    shard = ledger.begin(job_id, 0)
    assert shard is not None
    assert [item.number for item in shard.items] == [0, 1, 2]
    assert ledger.job(job_id).status == "running"
    ledger.record(job_id, [Outcome(number, result=result(), artifact_bytes=5) for number in range(3)])
    assert ledger.begin(job_id, 0) is None
    assert ledger.job(job_id).finished_at is None
    ledger.record(job_id, [Outcome(3, error=FAULT)])
    job = ledger.job(job_id)
    assert (job.status, job.done, job.failed, job.size_bytes) == ("completed_with_errors", 4, 1, 4 * 10 + 3 * 5)
    assert job.finished_at is not None


@pytest.mark.parametrize(("failed", "status"), [(0, "succeeded"), (1, "completed_with_errors"), (2, "failed")])
def test_the_status_says_how_it_went(ledger: Ledger, failed: int, status: str) -> None:
    job_id = submitted(ledger, 2)
    outcomes = [
        Outcome(number, error=FAULT) if number < failed else Outcome(number, result=result()) for number in (0, 1)
    ]
    ledger.record(job_id, outcomes)
    assert ledger.job(job_id).status == status


def test_the_first_outcome_stands(ledger: Ledger) -> None:
    job_id = submitted(ledger, 2)
    ledger.record(job_id, [Outcome(0, result=result("cat"), sha256="a")])
    ledger.record(job_id, [Outcome(0, error=FAULT), Outcome(1, result=result("dog"))])
    assert [(item.status, item.label, item.event) for item in everything(ledger, job_id)] == [
        ("succeeded", "cat", 1),
        ("succeeded", "dog", 2),
    ]
    assert ledger.job(job_id).failed == 0


def test_a_retry_takes_only_what_failed_in_new_shards(ledger: Ledger, database: Database) -> None:
    job_id = submitted(ledger, 9)
    ledger.record(
        job_id,
        [Outcome(number, error=FAULT) if number % 2 else Outcome(number, result=result()) for number in range(9)],
    )
    job = ledger.retry(job_id)
    assert (job.status, job.done, job.failed) == ("queued", 5, 0)
    first, second = ledger.begin(job_id, 3), ledger.begin(job_id, 4)
    assert first is not None
    assert second is not None
    assert [item.number for item in [*first.items, *second.items]] == [1, 3, 5, 7]
    ledger.record(job_id, [Outcome(number, result=result()) for number in (1, 3, 5, 7)])
    assert ledger.job(job_id).status == "succeeded"
    with pytest.raises(JobState):
        ledger.retry(job_id)
    assert {f"{job_id}/3", f"{job_id}/4"} <= set(queued_shards(database))


def test_a_cancelled_job_takes_no_outcome_and_can_go_on(ledger: Ledger, database: Database) -> None:
    job_id = submitted(ledger, 5)
    ledger.begin(job_id, 0)
    ledger.record(job_id, [Outcome(0, result=result()), Outcome(1, error=FAULT)])
    assert ledger.cancel(job_id).status == "cancelled"
    assert not ledger.wanted(job_id, 0)
    assert queued_shards(database) == []
    ledger.record(job_id, [Outcome(2, result=result())])
    assert ledger.begin(job_id, 1) is None
    assert [item.status for item in everything(ledger, job_id)] == ["succeeded", "failed", *["cancelled"] * 3]
    assert len(ledger.items(job_id, limit=9, status="cancelled")) == 3
    assert ledger.items(job_id, limit=9, status="waiting") == []
    assert ledger.cancel(job_id).status == "cancelled"
    ledger.retry(job_id)
    assert [item.status for item in everything(ledger, job_id)] == ["succeeded", *["waiting"] * 4]


def test_what_was_begun_before_a_retry_is_over(ledger: Ledger) -> None:
    job_id = submitted(ledger, 2)
    old = ledger.begin(job_id, 0)
    assert old is not None
    assert ledger.wanted(job_id, old.attempt)
    ledger.cancel(job_id)
    ledger.retry(job_id)
    assert not ledger.wanted(job_id, old.attempt)
    ledger.record(job_id, [Outcome(0, result=result())], attempt=old.attempt)
    assert ledger.job(job_id).done == 0
    new = ledger.begin(job_id, 1)
    assert new is not None
    assert ledger.wanted(job_id, new.attempt)
    ledger.record(job_id, [Outcome(0, result=result())], attempt=new.attempt)
    assert ledger.job(job_id).done == 1


def test_the_rate_is_that_of_this_attempt(ledger: Ledger) -> None:
    job_id = submitted(ledger, 30)
    ledger.begin(job_id, 0)
    ledger.record(
        job_id,
        [Outcome(number, error=FAULT) if number == 0 else Outcome(number, result=result()) for number in range(30)],
    )
    first = ledger.job(job_id)
    assert first.started_at is not None
    assert first.finished_at is not None
    assert ledger.rate_per_s(first) == pytest.approx(30 / (first.finished_at - first.started_at))
    ledger.retry(job_id)
    assert ledger.rate_per_s(ledger.job(job_id)) is None
    ledger.begin(job_id, 10)
    assert ledger.rate_per_s(ledger.job(job_id)) is None


def test_what_a_job_waits_for_is_forgotten_when_it_goes_on_or_ends(ledger: Ledger) -> None:
    job_id = submitted(ledger, 4)
    ledger.wait_for(job_id, "disk_space")
    assert ledger.job(job_id).waiting_for == "disk_space"
    ledger.begin(job_id, 0)
    assert ledger.job(job_id).waiting_for is None
    ledger.cancel(job_id)
    ledger.wait_for(job_id, "disk_space")
    assert ledger.job(job_id).waiting_for is None


def test_only_a_job_that_is_still_over_is_cleared_away(ledger: Ledger) -> None:
    job_id = submitted(ledger, 1)
    ledger.record(job_id, [Outcome(0, error=FAULT)])
    finished = ledger.job(job_id).finished_at
    assert finished is not None
    ledger.delete(job_id, finished_before=finished)
    ledger.retry(job_id)
    ledger.delete(job_id, finished_before=finished + 60)
    assert ledger.job(job_id).status == "queued"
    ledger.record(job_id, [Outcome(0, error=FAULT)])
    ledger.delete(job_id, finished_before=finished + 60)
    assert ledger.deleted() == [job_id]


def test_a_database_that_takes_no_changes_is_waited_for(postgres_url: str, tmp_path: Path) -> None:
    database = Database(Settings(data_dir=tmp_path, database_url=postgres_url))
    database.migrate()
    name = tables.sa.make_url(postgres_url).database
    with database.read() as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        connection.commit()
    database.close()
    waits = iter(range(3))

    def waiting() -> None:
        if next(waits) == 1:
            with database.read() as connection:
                connection.exec_driver_sql("SET TRANSACTION READ WRITE")
                connection.exec_driver_sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
                connection.commit()
            database.close()

    book = Ledger(database, ShardQueue(database), shard_pictures=3)
    assert database.patiently(lambda: book.open(owner="me"), waiting)
    database.close()


def test_no_free_connection_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POOL, "pool_timeout", 0.01)
    database = Database(Settings(data_dir=tmp_path))
    database.migrate()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(database.read())
        with pytest.raises(JobsUnavailable, match=f"All {CONNECTIONS} connections"), database.read():
            pass
    database.close()


def test_a_finished_job_cannot_be_cancelled_nor_a_running_one_retried(ledger: Ledger) -> None:
    job_id = submitted(ledger, 1)
    with pytest.raises(JobState, match="queued"):
        ledger.retry(job_id)
    ledger.record(job_id, [Outcome(0, result=result())])
    with pytest.raises(JobState, match="succeeded"):
        ledger.cancel(job_id)


def test_what_is_handed_back_waits_in_a_new_shard(ledger: Ledger, database: Database) -> None:
    job_id = submitted(ledger, 6)
    ledger.begin(job_id, 1)
    ledger.record(job_id, [Outcome(3, result=result())])
    ledger.hand_back(job_id, 1)
    assert ledger.begin(job_id, 1) is None
    rest = ledger.begin(job_id, 2)
    assert rest is not None
    assert [item.number for item in rest.items] == [4, 5]
    assert [item.attempts for item in rest.items] == [2, 2]  # begun in both shards
    assert f"{job_id}/2" in queued_shards(database)


def test_a_shard_that_is_given_up_fails_what_it_left(ledger: Ledger) -> None:
    job_id = submitted(ledger, 6)
    ledger.record(job_id, [Outcome(number, result=result()) for number in (0, 3, 4, 5)])
    ledger.give_up(job_id, 0, {"code": "worker_lost", "detail": "It ended its worker."})
    failed = ledger.items(job_id, limit=9, status="failed")
    assert [(item.number, item.error) for item in failed] == [
        (number, {"code": "worker_lost", "detail": "It ended its worker."}) for number in (1, 2)
    ]
    assert ledger.job(job_id).status == "completed_with_errors"


def test_a_repeated_key_is_one_job(ledger: Ledger, database: Database) -> None:
    ids = [ledger.open(owner="me") for _ in range(8)]
    for job_id in ids:
        ledger.add(job_id, 0, pictures(2))
    submit = partial(ledger.submit, options={}, idempotency_key="k", payload_sha256="p")
    with ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(submit, ids))
    assert len({job.id for job in jobs}) == 1
    assert queued_shards(database) == [f"{jobs[0].id}/0"]
    other = ledger.open(owner="me")
    with pytest.raises(IdempotencyConflict):
        ledger.submit(other, options={}, idempotency_key="k", payload_sha256="another")
    hers = ledger.open(owner="her")
    assert ledger.submit(hers, options={}, idempotency_key="k", payload_sha256="another").id == hers
    ledger.delete(jobs[0].id)
    assert ledger.submit(other, options={}, idempotency_key="k", payload_sha256="another").id == other


def test_two_workers_that_record_at_once_lose_no_count(ledger: Ledger) -> None:
    job_id = submitted(ledger, 60)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(
            lambda number: ledger.record(job_id, [Outcome(number, result=result())]), [*range(60)] * 2
        ):
            pass
    job = ledger.job(job_id)
    assert (job.done, job.failed, job.events, job.status) == (60, 0, 60, "succeeded")
    assert [item.event for item in ledger.events(job_id, after=0, limit=100)] == list(range(1, 61))


def test_pictures_are_filtered_and_paged(ledger: Ledger) -> None:
    job_id = submitted(ledger, 6)
    ledger.record(job_id, [Outcome(n, result=result("cat" if n < 3 else "dog", n / 10)) for n in range(5)])
    find = ledger.items
    assert [item.number for item in find(job_id, limit=2)] == [0, 1]
    assert [item.number for item in find(job_id, limit=2, after=1)] == [2, 3]
    assert [item.number for item in find(job_id, limit=9, label="dog")] == [3, 4]
    assert [item.number for item in find(job_id, limit=9, min_confidence=0.1, max_confidence=0.3)] == [1, 2, 3]
    assert [item.number for item in find(job_id, limit=9, status="waiting")] == [5]
    assert [item.number for item in find(job_id, limit=2, start=4)] == [4, 5]
    assert [item.number for item in find(job_id, limit=9, start=2, after=2, label="dog")] == [3, 4]
    assert ledger.item(job_id, 4).confidence == 0.4
    with pytest.raises(UnknownItem, match="6"):
        ledger.item(job_id, 6)


def test_jobs_are_listed_the_newest_first(ledger: Ledger) -> None:
    ids = [submitted(ledger, 1) for _ in range(5)]
    first = ledger.jobs(limit=2)
    rest = ledger.jobs(limit=9, before=(first[-1].created_at, first[-1].id))
    assert [job.id for job in [*first, *rest]] == ids[::-1]
    ledger.cancel(ids[0])
    assert [job.id for job in ledger.jobs(limit=9, status="cancelled")] == ids[:1]
    assert ledger.jobs(limit=9, owner="her") == []


def test_the_metrics_count_jobs_by_status_and_what_waits(ledger: Ledger) -> None:
    done, running, cancelled = (submitted(ledger, 4) for _ in range(3))
    ledger.record(done, [Outcome(number, result=result()) for number in range(4)])
    ledger.begin(running, 0)
    ledger.record(running, [Outcome(0, result=result(), artifact_bytes=7)])
    ledger.cancel(cancelled)
    lines = page(ledger).decode().splitlines()
    for status, count in {"succeeded": 1, "running": 1, "cancelled": 1, "queued": 0, "failed": 0}.items():
        assert f'heatlens_jobs{{status="{status}"}} {count:.1f}' in lines
    assert "heatlens_job_pictures_waiting 3.0" in lines
    assert f"heatlens_job_bytes {3 * 40 + 7:.1f}" in lines


def test_the_metrics_are_without_jobs_while_the_database_is_away(tmp_path: Path) -> None:
    assert page(Reading(Database(Settings(data_dir=tmp_path, database_url="postgresql://a@127.0.0.1:1/b")))) == b""


def test_the_metrics_are_without_jobs_while_the_disk_of_the_database_is_full(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Census:
        raise OutOfSpace("The disk of the jobs' database is full.")

    monkeypatch.setattr(ledger, "census", full)
    assert page(ledger) == b""


def test_a_deleted_job_is_gone_at_once_and_its_rows_later(ledger: Ledger, database: Database) -> None:
    job_id = submitted(ledger, 4)
    ledger.delete(job_id)
    assert ledger.jobs(limit=9) == []
    assert ledger.deleted() == [job_id]
    assert ledger.begin(job_id, 0) is None
    assert ledger.total_bytes() == 0
    ledger.forget(job_id)
    assert ledger.deleted() == []
    assert queued_shards(database) == []


def test_a_database_that_is_away_is_said_so(tmp_path: Path) -> None:
    gone = Database(Settings(data_dir=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none"))
    with pytest.raises(JobsUnavailable) as error, gone.read():
        pass
    assert error.value.extra["retry_after_s"] == 5


class Book(RuleBasedStateMachine):
    """Anything that workers and people may do to a job, in any order."""

    ledger: Ledger

    @initialize(count=st.integers(1, 8))
    def submit(self, count: int) -> None:
        self.job_id = submitted(self.ledger, count)
        self.shards = -(-count // 3)

    @rule(shard=st.integers(0, 12))
    def begin(self, shard: int) -> None:
        self.ledger.begin(self.job_id, shard)

    @rule(numbers=st.lists(st.integers(0, 8), unique=True), bad=st.booleans())
    def record(self, numbers: list[int], bad: bool) -> None:
        before = {item.number: item for item in everything(self.ledger, self.job_id)}
        outcomes = [Outcome(number, **({"error": FAULT} if bad else {"result": result()})) for number in numbers]
        self.ledger.record(self.job_id, outcomes)
        for item in everything(self.ledger, self.job_id):
            if before[item.number].status in ("succeeded", "failed", "cancelled"):
                assert item == before[item.number]

    @rule(shard=st.integers(0, 12))
    def hand_back(self, shard: int) -> None:
        self.ledger.hand_back(self.job_id, shard)

    @rule(shard=st.integers(0, 12))
    def give_up(self, shard: int) -> None:
        self.ledger.give_up(self.job_id, shard, FAULT)

    @precondition(lambda self: not self.ledger.job(self.job_id).is_finished)
    @rule()
    def cancel(self) -> None:
        self.ledger.cancel(self.job_id)

    @precondition(lambda self: self.ledger.job(self.job_id).status in ("failed", "cancelled", "completed_with_errors"))
    @rule()
    def retry(self) -> None:
        self.ledger.retry(self.job_id)

    @invariant()
    def counts_are_those_of_the_rows(self) -> None:
        if not hasattr(self, "job_id"):
            return
        job, items = self.ledger.job(self.job_id), everything(self.ledger, self.job_id)
        found = Counter(item.status for item in items)
        assert job.total == len(items)
        assert job.failed == found["failed"]
        assert job.done == found["failed"] + found["succeeded"]
        assert (job.finished_at is not None) == job.is_finished
        assert job.done < job.total or job.is_finished
        events = [item.event for item in items if item.event is not None]
        assert len(set(events)) == len(events) == job.done
        assert all(event <= job.events for event in events)


def test_whatever_happens_the_counts_hold(tmp_path: Path) -> None:
    database = Database(Settings(data_dir=tmp_path))
    database.migrate()
    Book.ledger = Ledger(database, ShardQueue(database), shard_pictures=3)
    few = settings(max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Book, settings=few)
    database.close()
