"""The durable queue behind the jobs, which is DBOS; no other module knows it.

A shard is a workflow named `{job_id}/{shard}`. DBOS keeps it in our database, hands it to one worker at a time and
counts how often; what its open-source edition leaves to others is to say which workers are dead (`Engine.rescue`).
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, StepOptions
from dbos._migration import get_migration_versions, get_sqlite_migration_versions
from sqlalchemy import Connection, and_, func, select

from app.errors import DatabaseTooNew
from app.jobs.database import KEEPALIVES, Database
from app.jobs.locks import Locks
from app.jobs.quiet import quietly

_APPLICATION = "heatlens"
_VERSION = "1"
"""Of the workflows' names and arguments. By default DBOS takes a hash of the code, and an upgrade strands old work."""
_SHARDS, _WEBHOOKS = "heatlens-shards", "heatlens-webhooks"
_EXPLAIN, _TELL = "explain_shard", "send_webhook"
_RUNS = 3
"""How often a shard is begun that never ends, since its worker dies of it."""
_POLL_S, _SLOW_POLL_S = 0.1, 1.0
_WEBHOOKS_AT_ONCE = 8
_FIRST_RETRY_S, _DELIVERIES = 2.0, 8
_DEAD_AFTER_S = 10.0
"""How long apart two looks must find a lock free: a worker whose lock went with the database has time to retake it."""
_IDS_AT_ONCE = 500

_PATIENCE: StepOptions = {"name": _EXPLAIN, "retries_allowed": True, "max_attempts": _RUNS, "interval_seconds": 1.0}
_COLUMNS = "workflow_uuid", "status", "name", "executor_id", "queue_name", "owner_xid", "started_at_epoch_ms"
_log = logging.getLogger(__name__)


def migrate(database: Database) -> None:
    """Create DBOS's tables in a database that is there, or bring them up to date; several processes may at once.

    Raises `DatabaseTooNew` for those of a later DBOS, which DBOS itself would work on.
    """
    with quietly("dbos"), database.errors():
        found, known = _versions(database)
        if found > known:
            msg = (
                f"The queue in the jobs' database is of DBOS's version {found}, and the DBOS that is installed knows "
                f"version {known}. Install the later HeatLens again, or restore the backup from before the upgrade."
            )
            raise DatabaseTooNew(msg)
        DBOS.migrate(database.url)


def _versions(database: Database) -> tuple[int, int]:
    """Return the versions of DBOS's tables: of those that are there, and of those that DBOS knows.

    It counts them, and has no public way to ask.
    """
    if database.is_sqlite:
        return get_sqlite_migration_versions(database.engine)
    return get_migration_versions(database.engine, "dbos", use_listen_notify=True)


class ShardQueue:
    """What is to be done, as those see it who give work, in their own transactions. Safe for threads and forks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._workflows = _workflows(database)

    def enqueue(self, connection: Connection, job_id: str, shards: Iterable[tuple[int, int]]) -> None:
        """Queue shards `(shard, priority)`, the lowest priority first, from 1; one that was queued before is not."""
        client = _client(connection)
        for shard, priority in shards:
            options = _options(_SHARDS, _EXPLAIN, f"{job_id}/{shard}")
            client.enqueue_in_transaction(connection, {**options, "priority": priority}, job_id, shard)

    def enqueue_webhook(self, connection: Connection, job_id: str, attempt: int, *, tries: int = 0) -> None:
        """Queue the telling of a job's end; `attempt` counts the job's ends, `tries` what was tried in vain."""
        options = _options(_WEBHOOKS, _TELL, f"{job_id}/webhook/{attempt}/{tries}")
        if tries:
            options["delay_seconds"] = _FIRST_RETRY_S * 2 ** (tries - 1)
        _client(connection).enqueue_in_transaction(connection, options, job_id, attempt, tries)

    def cancel(self, connection: Connection, job_id: str) -> None:
        """Have no shard of a job begin that has not begun; those that run look at the job themselves."""
        workflows = self._workflows
        mine = _of_job(workflows, job_id), workflows.c.name == _EXPLAIN, workflows.c.status == "ENQUEUED"
        connection.execute(sa.update(workflows).where(*mine).values(status="CANCELLED", queue_name=None))

    def forget(self, job_id: str) -> None:
        """Remove all that is known of a job here."""
        with self._database.read() as connection:
            found = connection.scalars(select(self._workflows.c.workflow_uuid).where(_of_job(self._workflows, job_id)))
            self._delete(found.all())

    def given_up(self) -> list[tuple[str, int, dict[str, str]]]:
        """Return the shards `(job_id, shard, error)` that will not be tried any more; see `settle`."""
        workflows = self._workflows
        lost = and_(sa.text(_INDEXED), workflows.c.status.in_(_ERRORS), workflows.c.name == _EXPLAIN)
        with self._database.read() as connection:
            query = select(workflows.c.workflow_uuid, workflows.c.status).where(lost)
            return [(*_shard(workflow_id), _ERRORS[status]) for workflow_id, status in connection.execute(query)]

    def settle(self, job_id: str, shard: int) -> None:
        """Remove a shard from those given up, after what is to be noted was."""
        self._delete([f"{job_id}/{shard}"])

    def _delete(self, workflow_ids: Collection[str]) -> None:
        ids = list(workflow_ids)
        with self._database.errors(), quietly("dbos"):
            client = DBOSClient(system_database_engine=self._database.engine, lazy=True, retry_connection_errors=False)
            for start in range(0, len(ids), _IDS_AT_ONCE):
                client.delete_workflows(ids[start : start + _IDS_AT_ONCE])


class Engine:
    """Does what is queued, one shard at a time; one per process, since DBOS is.

    `run_shard(job_id, shard)` and `deliver(job_id)` are called in threads of the engine. A shard that raises is tried
    twice more, then given up; a webhook, eight times in about four minutes. While `executor` works, its process must
    hold the lock of that name.
    """

    def __init__(
        self,
        database: Database,
        locks: Locks,
        executor: str,
        *,
        run_shard: Callable[[str, int], None],
        deliver: Callable[[str], None],
    ) -> None:
        self._database = database
        self._locks = locks
        self._executor = executor
        self._run_shard = run_shard
        self._deliver = deliver
        self._queue = ShardQueue(database)
        self._workflows = _workflows(database)
        self._connections: sa.Engine | None = None
        """DBOS's own, where they are not its own to make."""
        self._running: set[str] = set()
        self._dead, self._dropped = _Overdue(), _Overdue()
        """Executors that seem to be dead, and own workflows that do not run."""

    def start(self) -> None:
        """Take up what this executor left undone, and begin to work. Raises `JobsUnavailable`; then call it again."""
        try:
            with quietly("dbos"), self._database.errors():
                self._launch()
        except BaseException:
            self._end(grace_s=0)
            raise

    def _launch(self) -> None:
        config = _config(self._database, self._executor)
        if self._database.is_sqlite:
            self._connections = config["system_database_engine"] = _connections(self._database)
        DBOS(config=config)

        @DBOS.workflow(name=_EXPLAIN, max_recovery_attempts=_RUNS - 1)
        def explain(job_id: str, shard: int) -> None:
            self._explain(job_id, shard)

        @DBOS.workflow(name=_TELL, max_recovery_attempts=None)
        def tell(job_id: str, attempt: int, tries: int) -> None:
            self._tell(job_id, attempt, tries)

        DBOS.launch()
        queues = [(_SHARDS, 1, _POLL_S), (_WEBHOOKS, _WEBHOOKS_AT_ONCE, _SLOW_POLL_S)]
        for name, concurrency, polling_s in queues:
            DBOS.register_queue(
                name, worker_concurrency=concurrency, polling_interval_sec=polling_s, on_conflict="always_update"
            )

    def stop(self, grace_s: float) -> None:
        """Begin nothing more, and wait for what runs; what takes longer than `grace_s` is another's later."""
        self._end(grace_s)

    def _end(self, grace_s: float) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=math.ceil(grace_s), destroy_registry=True)
        if self._connections:
            self._connections.dispose()
            self._connections = None

    def rescue(self) -> None:
        """Queue again what dead workers left, and claims of our own whose answer was lost; call it every few seconds.

        A worker is dead when its lock was free on two looks ten seconds apart.
        """
        try:
            dropped, dead = self._lost()
            for workflow_id in self._dropped.of(dropped):
                self._put_back(self._executor, self._workflows.c.workflow_uuid == workflow_id)
            for executor in self._dead.of(dead):
                self._take_over(executor)
        except BaseException:
            self._dropped, self._dead = _Overdue(), _Overdue()  # the database was away, and so were all locks
            raise

    def owns_what_it_runs(self) -> bool:
        """Whether nobody took what runs here, which they may if this executor's lock was free for long."""
        running = set(self._running)  # before the look: what begins meanwhile is our own
        with self._database.read() as connection:
            mine = self._workflows.c.executor_id == self._executor
            query = select(self._workflows.c.workflow_uuid).where(self._workflows.c.status == "PENDING", mine)
            return running <= set(connection.scalars(query))

    def _lost(self) -> tuple[set[str], set[str]]:
        workflows = self._workflows
        with self._database.read() as connection:
            query = select(workflows.c.workflow_uuid, workflows.c.executor_id)
            pending = connection.execute(query.where(*self._pending())).all()
        mine = {workflow_id for workflow_id, executor in pending if executor == self._executor}
        others = {executor for _, executor in pending if executor and executor != self._executor}
        return mine - self._running, self._locks.free(others) if others else set()

    def _pending(self) -> list[sa.ColumnElement[bool]]:
        """What is begun and ours: the database may have workflows of others."""
        columns = self._workflows.c
        return [columns.status == sa.literal_column("'PENDING'"), columns.name.in_([_EXPLAIN, _TELL])]

    def _take_over(self, executor: str) -> None:
        """Its lock is held meanwhile, so that it does not come back and begin anew."""
        if lock := self._locks.take(executor):
            with lock:
                self._put_back(executor)

    def _put_back(self, executor: str, *which: sa.ColumnElement[bool]) -> None:
        """As DBOS does when an executor comes back: the count of runs goes on, which `resume_workflows` resets."""
        workflows = self._workflows
        lost = *self._pending(), workflows.c.executor_id == executor, *which
        queued = {"status": "ENQUEUED", "owner_xid": None, "started_at_epoch_ms": None}
        with self._database.write() as connection:
            found = connection.execute(sa.update(workflows).where(*lost).values(queued))
        if found.rowcount:
            _log.warning("%d shards or webhooks that %s left undone are queued again", found.rowcount, executor)

    # From here on in threads of DBOS.

    def _explain(self, job_id: str, shard: int) -> None:
        with self._runs(f"{job_id}/{shard}"):
            DBOS.run_step(_PATIENCE, self._run_shard, job_id, shard)

    def _tell(self, job_id: str, attempt: int, tries: int) -> None:
        with self._runs(f"{job_id}/webhook/{attempt}/{tries}"):
            try:
                self._deliver(job_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again, and later given up
                self._tell_later(job_id, attempt, tries + 1, error)

    def _tell_later(self, job_id: str, attempt: int, tries: int, error: Exception) -> None:
        if tries == _DELIVERIES:
            _log.error("the webhook of job %s is given up: %s", job_id, error)
            return
        _log.warning("the webhook of job %s failed, and is tried again: %s", job_id, error)

        def enqueue() -> None:
            with self._database.write() as connection:
                self._queue.enqueue_webhook(connection, job_id, attempt, tries=tries)

        self._database.patiently(enqueue)

    @contextmanager
    def _runs(self, workflow_id: str) -> Iterator[None]:
        self._running.add(workflow_id)
        try:
            yield
        finally:
            self._running.discard(workflow_id)


class _Overdue:
    """Which names were among those given for so long that it is no accident."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def of(self, names: Collection[str]) -> list[str]:
        now = time.monotonic()
        self._since = {name: self._since.get(name, now) for name in names}
        return [name for name, since in self._since.items() if now - since >= _DEAD_AFTER_S]


_ERRORS = {
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": {
        "code": "worker_lost",
        "detail": f"The worker died with these pictures {_RUNS} times; one of them may be what kills it.",
    },
    "ERROR": {"code": "shard_failed", "detail": "Explaining these pictures failed; the worker's log says why."},
}

_INDEXED = "status IN ('ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')"
"""Of the workflows that DBOS has an index of: SQLite uses it for a query with these very words."""


def _workflows(database: Database) -> sa.TableClause:
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in _COLUMNS]
    return sa.table("workflow_status", *columns, schema=None if database.is_sqlite else "dbos")


def _of_job(workflows: sa.TableClause, job_id: str) -> sa.ColumnElement[bool]:
    """The bounds are for the index, and hold in every collation: some skip punctuation."""
    name = workflows.c.workflow_uuid
    return and_(name > job_id, name < f"{job_id}zz", func.substr(name, 1, len(job_id) + 1) == f"{job_id}/")


def _shard(workflow_id: str) -> tuple[str, int]:
    job_id, _, shard = workflow_id.partition("/")
    return job_id, int(shard)


def _options(queue: str, workflow: str, workflow_id: str) -> EnqueueOptions:
    return {
        "queue_name": queue,
        "workflow_name": workflow,
        "workflow_id": workflow_id,
        "app_version": _VERSION,
        "application_name": _APPLICATION,
    }


def _client(connection: Connection) -> DBOSClient:
    """One for a transaction: it connects to nothing itself, and so knows no forks and no threads."""
    with quietly("dbos"):
        return DBOSClient(system_database_engine=connection.engine, lazy=True)


def _connections(database: Database) -> sa.Engine:
    """Connections to the SQLite file as DBOS makes them, except that they follow a file that is replaced."""
    engine = database.new_engine()

    @sa.event.listens_for(engine, "connect")
    def take_the_lock_first(connection: Any, _record: object) -> None:
        connection.isolation_level = "IMMEDIATE"

    return engine


def _config(database: Database, executor: str) -> DBOSConfig:
    config: DBOSConfig = {
        "name": _APPLICATION,
        "application_version": _VERSION,
        "executor_id": executor,
        "system_database_url": database.url,
        "run_migrations": False,
        "use_listen_notify": False,  # for messages to workflows, which there are none of
        "log_level": "WARNING",
        "sys_db_pool_size": 8,
    }
    if not database.is_sqlite:
        config["db_engine_kwargs"] = {"connect_args": KEEPALIVES}
    return config
