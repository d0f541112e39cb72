"""The durable queue: what DBOS does for us, and what we do for it."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.errors import JobsUnavailable
from app.jobs import engine as engine_module
from app.jobs.database import Database
from app.jobs.engine import Engine, ShardQueue
from app.jobs.locks import Locks
from tests.app.jobs.postgres import Postgres

JOB, OTHER = "5f" * 16, "60" * 16
ME, GONE = "here:0", "gone:0"


def eventually(condition: Callable[[], object], within_s: float = 60) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        time.sleep(0.02)


@dataclass
class Crew:
    """An engine, and what it was given to do."""

    database: Database
    shards: list[tuple[str, int]] = field(default_factory=list)
    webhooks: list[str] = field(default_factory=list)
    run_shard: Callable[[str, int], None] = lambda job_id, shard: None
    deliver: Callable[[str], None] = lambda job_id: None

    def __post_init__(self) -> None:
        self.queue = ShardQueue(self.database)
        self.locks = Locks(self.database)
        self.engine = Engine(self.database, self.locks, ME, run_shard=self._run, deliver=self._deliver)
        self.workflows = engine_module._workflows(self.database)

    def _run(self, job_id: str, shard: int) -> None:
        self.shards.append((job_id, shard))
        self.run_shard(job_id, shard)

    def _deliver(self, job_id: str) -> None:
        self.webhooks.append(job_id)
        self.deliver(job_id)

    def enqueue(self, *shards: int, job_id: str = JOB) -> None:
        with self.database.write() as connection:
            self.queue.enqueue(connection, job_id, [(shard, 1 + shard) for shard in shards])

    def statuses(self, job_id: str = JOB) -> dict[str, str]:
        query = sa.select(self.workflows.c.workflow_uuid, self.workflows.c.status)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        return {name.partition("/")[2]: status for name, status in rows if name.startswith(job_id)}

    def claim(self, shard: int, executor: str, *, runs: int = 1) -> None:
        """Do as if a worker had begun a queued shard, and had ended without a word since."""
        claimed = {"status": "PENDING", "executor_id": executor}
        columns = self.workflows.c
        statement = sa.update(self.workflows).where(columns.workflow_uuid == f"{JOB}/{shard}").values(claimed)
        with self.database.write() as connection:
            connection.execute(statement)
            table = "workflow_status" if self.database.is_sqlite else "dbos.workflow_status"
            connection.execute(
                sa.text(f"UPDATE {table} SET recovery_attempts = :runs WHERE workflow_uuid = :name"),  # noqa: S608
                {"runs": runs, "name": f"{JOB}/{shard}"},
            )


@pytest.fixture
def crew(database: Database) -> Iterator[Crew]:
    """On each kind of database, for what our own statements do."""
    crew = Crew(database)
    yield crew
    crew.engine.stop(0)


@pytest.fixture
def file_crew(tmp_path: Path) -> Iterator[Crew]:
    """On a SQLite file, for what is the same on all."""
    crew = Crew(Database(Settings(data_dir=tmp_path)))
    crew.database.migrate()
    yield crew
    crew.engine.stop(0)
    crew.database.close()


def test_the_tables_can_be_made_by_several_at_once(settings: Settings) -> None:
    """In threads with connections of their own, since a process takes seconds to begin: the database knows no more."""
    databases = [Database(settings) for _ in range(6)]
    with ThreadPoolExecutor(len(databases)) as pool:
        list(pool.map(Database.migrate, databases))
    crew = Crew(databases[0])
    crew.enqueue(0)
    assert crew.statuses() == {"0": "ENQUEUED"}
    for database in databases:
        database.close()


def test_shards_run_once_each_in_order_however_often_they_are_queued(crew: Crew) -> None:
    crew.enqueue(2, 0, 1)
    crew.enqueue(0, 1, 2, 3)
    crew.engine.start()
    eventually(lambda: list(crew.statuses().values()) == ["SUCCESS"] * 4)
    crew.enqueue(1, 4)
    eventually(lambda: crew.statuses()["4"] == "SUCCESS")
    assert crew.shards == [(JOB, shard) for shard in range(5)]


def test_what_is_queued_in_a_transaction_that_fails_is_not_there(file_crew: Crew) -> None:
    def fails() -> None:
        with file_crew.database.write() as connection:
            file_crew.queue.enqueue(connection, JOB, [(0, 1)])
            file_crew.queue.enqueue_webhook(connection, JOB, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert file_crew.statuses() == {}


def test_shards_that_wait_are_cancelled_with_their_job_and_those_that_run_are_not(crew: Crew) -> None:
    crew.enqueue(0, 1, 2)
    crew.enqueue(0, job_id=OTHER)
    with crew.database.write() as connection:
        crew.queue.enqueue_webhook(connection, JOB, 1)
    crew.claim(0, ME)
    with crew.database.write() as connection:
        crew.queue.cancel(connection, JOB)
    assert crew.statuses() == {"0": "PENDING", "1": "CANCELLED", "2": "CANCELLED", "webhook/1/0": "ENQUEUED"}
    assert crew.statuses(OTHER) == {"0": "ENQUEUED"}
    crew.engine.start()
    eventually(lambda: crew.statuses()["0"] == "SUCCESS" and crew.webhooks)
    assert set(crew.shards) == {(JOB, 0), (OTHER, 0)}


def test_all_of_a_job_is_forgotten_and_nothing_of_others(crew: Crew) -> None:
    crew.enqueue(0, 1)
    crew.enqueue(0, job_id=OTHER)
    with crew.database.write() as connection:
        crew.queue.enqueue_webhook(connection, JOB, 1)
    crew.engine.start()
    eventually(lambda: len(crew.shards) == 3 and crew.statuses()["webhook/1/0"] == "SUCCESS")
    eventually(lambda: {*crew.statuses().values(), *crew.statuses(OTHER).values()} == {"SUCCESS"})
    crew.queue.forget(JOB)
    assert crew.statuses() == {}
    schema = "" if crew.database.is_sqlite else "dbos."
    with crew.database.read() as connection:
        for table in ("workflow_status", "workflow_input", "workflow_output", "operation_outputs"):
            names = connection.scalars(sa.text(f"SELECT workflow_uuid FROM {schema}{table}")).all()  # noqa: S608
            assert names == [f"{OTHER}/0"], table


def test_a_shard_that_raises_is_tried_three_times_then_given_up_and_the_rest_goes_on(file_crew: Crew) -> None:
    def run(_job_id: str, shard: int) -> None:
        if shard == 0:
            msg = "as it must be"
            raise RuntimeError(msg)

    file_crew.run_shard = run
    file_crew.enqueue(0, 1)
    file_crew.engine.start()
    eventually(lambda: file_crew.statuses() == {"0": "ERROR", "1": "SUCCESS"})
    assert Counter(file_crew.shards) == {(JOB, 0): 3, (JOB, 1): 1}
    [(job_id, shard, error)] = file_crew.queue.given_up()
    assert (job_id, shard, error["code"]) == (JOB, 0, "shard_failed")
    file_crew.queue.settle(JOB, 0)
    assert file_crew.queue.given_up() == []
    assert file_crew.statuses() == {"1": "SUCCESS"}


@pytest.mark.parametrize(("runs", "again"), [(2, True), (3, False)])
def test_a_shard_is_begun_three_times_and_not_a_fourth(file_crew: Crew, runs: int, again: bool) -> None:
    file_crew.enqueue(0, 1)
    file_crew.claim(0, ME, runs=runs)
    file_crew.engine.start()
    eventually(
        lambda: file_crew.statuses() == {"0": "SUCCESS" if again else "MAX_RECOVERY_ATTEMPTS_EXCEEDED", "1": "SUCCESS"}
    )
    assert ((JOB, 0) in file_crew.shards) == again
    assert [error["code"] for _, _, error in file_crew.queue.given_up()] == ([] if again else ["worker_lost"])


def test_what_a_dead_worker_left_is_taken_up_when_its_lock_was_free_twice(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DEAD_AFTER_S", 0.3)
    crew.enqueue(0)
    crew.claim(0, GONE, runs=2)
    crew.engine.start()
    alive = crew.locks.take(GONE)
    assert alive
    for _ in range(3):
        crew.engine.rescue()
        time.sleep(0.2)
    assert crew.shards == [], "its worker lives"
    alive.release()
    crew.engine.rescue()
    assert crew.statuses() == {"0": "PENDING"}, "one look is not enough"
    time.sleep(0.35)
    crew.engine.rescue()
    eventually(lambda: crew.statuses() == {"0": "SUCCESS"})
    assert crew.shards == [(JOB, 0)]
    assert crew.locks.free([GONE]) == {GONE}


def test_what_others_keep_in_the_same_database_is_left_alone(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_DEAD_AFTER_S", 0.0)
    crew.enqueue(0, 1)
    for shard, executor in enumerate([ME, GONE]):
        crew.claim(shard, executor)
    with crew.database.write() as connection:
        connection.execute(sa.update(crew.workflows).values(name="another's"))
    for _ in range(2):
        crew.engine.rescue()
    assert crew.statuses() == {"0": "PENDING", "1": "PENDING"}
    with crew.database.write() as connection:
        connection.execute(
            sa.update(crew.workflows).where(crew.workflows.c.executor_id == GONE).values(name="send_webhook")
        )
    crew.engine.rescue()
    assert crew.statuses() == {"0": "PENDING", "1": "ENQUEUED"}, "an executor's other work was taken with ours, or none"


def test_a_dead_worker_s_place_that_is_taken_at_that_moment_is_left_until_the_next_look(
    file_crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DEAD_AFTER_S", 0.0)
    file_crew.enqueue(0)
    file_crew.claim(0, GONE)
    take = file_crew.locks.take
    monkeypatch.setattr(file_crew.locks, "take", lambda _name: None)
    file_crew.engine.rescue()
    assert file_crew.statuses() == {"0": "PENDING"}
    monkeypatch.setattr(file_crew.locks, "take", take)
    file_crew.engine.rescue()
    assert file_crew.statuses() == {"0": "ENQUEUED"}


def test_shards_that_are_given_up_are_found_without_looking_at_all_others(crew: Crew) -> None:
    plans: list[str] = []

    def explain(connection: sa.Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if "explain_shard" in str(parameters) and not statement.startswith("EXPLAIN"):
            how = "EXPLAIN QUERY PLAN " if crew.database.is_sqlite else "EXPLAIN "
            plans.extend(str(row) for row in connection.exec_driver_sql(how + statement, parameters))

    with crew.database.read() as connection:
        if not crew.database.is_sqlite:  # of few rows Postgres looks at all, unless it is told not to
            connection.exec_driver_sql("SET enable_seqscan = off")
            connection.commit()
    sa.event.listen(crew.database.engine, "before_cursor_execute", explain)
    assert crew.queue.given_up() == []
    assert "idx_workflow_status_failed" in " ".join(plans), plans


def test_a_worker_that_is_back_at_the_second_look_is_left_alone(
    file_crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DEAD_AFTER_S", 0.3)
    file_crew.enqueue(0)
    file_crew.claim(0, GONE)
    file_crew.engine.rescue()
    alive = file_crew.locks.take(GONE)
    assert alive
    time.sleep(0.2)
    file_crew.engine.rescue()
    alive.release()
    time.sleep(0.2)
    file_crew.engine.rescue()  # 0.4 s after the first look, but the count began anew
    assert file_crew.statuses() == {"0": "PENDING"}


def test_a_claim_of_its_own_whose_answer_was_lost_is_taken_up_and_what_runs_is_not(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DEAD_AFTER_S", 0.3)
    goes_on = threading.Event()
    crew.run_shard = lambda _job_id, shard: None if shard else goes_on.wait(60) and None
    crew.engine.start()
    crew.enqueue(0)
    eventually(lambda: crew.shards == [(JOB, 0)])
    crew.enqueue(1)
    crew.claim(1, ME)
    for _ in range(3):
        crew.engine.rescue()
        time.sleep(0.2)
    assert crew.statuses() == {"0": "PENDING", "1": "ENQUEUED"}
    assert crew.engine.owns_what_it_runs()
    goes_on.set()
    eventually(lambda: set(crew.statuses().values()) == {"SUCCESS"})
    assert crew.shards == [(JOB, 0), (JOB, 1)]


def test_an_engine_sees_that_another_has_what_it_runs(crew: Crew) -> None:
    goes_on = threading.Event()
    crew.run_shard = lambda _job_id, _shard: goes_on.wait(60) and None
    crew.enqueue(0)
    crew.engine.start()
    eventually(lambda: crew.shards)
    assert crew.engine.owns_what_it_runs()
    crew.claim(0, GONE)
    assert not crew.engine.owns_what_it_runs()
    goes_on.set()


def test_stopping_waits_for_what_runs_and_begins_no_more(file_crew: Crew) -> None:
    ended: list[int] = []

    def run(_job_id: str, shard: int) -> None:
        time.sleep(1.5)
        ended.append(shard)

    file_crew.run_shard = run
    file_crew.enqueue(0, 1)
    file_crew.engine.start()
    eventually(lambda: file_crew.shards)
    file_crew.engine.stop(20)
    assert ended == [0]
    assert file_crew.statuses() == {"0": "SUCCESS", "1": "ENQUEUED"}


def test_a_webhook_is_tried_again_later_and_given_up_while_shards_run(
    file_crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_FIRST_RETRY_S", 0.1)
    monkeypatch.setattr(engine_module, "_DELIVERIES", 3)

    def deliver(job_id: str) -> None:
        if job_id == JOB or len(file_crew.webhooks) == 1:
            msg = "no answer"
            raise RuntimeError(msg)

    file_crew.deliver = deliver
    with file_crew.database.write() as connection:
        file_crew.queue.enqueue_webhook(connection, JOB, 1)
        file_crew.queue.enqueue_webhook(connection, OTHER, 1)
    file_crew.enqueue(0)
    file_crew.engine.start()
    eventually(lambda: "is given up: no answer" in caplog.text)
    eventually(lambda: set(file_crew.statuses().values()) == {"SUCCESS"})
    assert file_crew.webhooks.count(JOB) == 3
    assert file_crew.webhooks.count(OTHER) in (1, 2)
    assert file_crew.shards == [(JOB, 0)]


def test_eight_deliveries_take_some_minutes(file_crew: Crew) -> None:
    """That is what the README says."""
    before_ms = time.time() * 1000
    for tries in range(1, 9):
        file_crew.engine._tell_later(JOB, 1, tries, RuntimeError("no answer"))
    after_ms = time.time() * 1000
    with file_crew.database.read() as connection:
        query = sa.text("SELECT delay_until_epoch_ms FROM workflow_status WHERE name = 'send_webhook' ORDER BY 1")
        waits_ms = [until - before_ms for until in connection.scalars(query)]
    assert len(waits_ms) == 7, "the first one is not delayed, and the eighth the last"
    assert 2 * 60 < sum(waits_ms) / 1000 < 10 * 60
    assert all(later > 1.5 * earlier - (after_ms - before_ms) for earlier, later in pairwise(waits_ms))


def test_a_database_that_is_away_is_said_to_be_and_a_later_start_works(postgres_url: str, postgres: Postgres) -> None:
    crew = Crew(Database(Settings(database_url=postgres_url)))
    crew.database.migrate()
    crew.database.close()
    postgres.stop()
    try:
        with pytest.raises(JobsUnavailable):
            crew.engine.start()
        with pytest.raises(JobsUnavailable):
            crew.engine.rescue()
        with pytest.raises(JobsUnavailable):
            crew.queue.forget(JOB)
    finally:
        postgres.start()
    crew.engine.start()
    crew.enqueue(0)
    eventually(lambda: crew.statuses() == {"0": "SUCCESS"})
    crew.engine.stop(0)
    crew.database.close()


def test_its_log_lines_are_ours_and_few(file_crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        file_crew.engine.start()
        for number in range(3):
            logging.getLogger("dbos").warning("the same about a queue, again and again, %d", number)
        logging.getLogger("dbos").info("chatter")
    lines = [record for record in caplog.records if record.name == "dbos"]
    assert [record.getMessage() for record in lines] == ["the same about a queue, again and again, 0"]
    assert not {"applicationID", "executorID"} & vars(lines[0]).keys()
    assert all(type(handler) is logging.NullHandler for handler in logging.getLogger("dbos").handlers)
