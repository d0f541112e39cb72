"""The jobs' database: a SQLite file in the data folder, or Postgres, which many machines can share."""

import fcntl
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.config import Settings
from app.errors import JobsUnavailable, OutOfSpace, ServiceError
from app.jobs import tables

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_RETRY_AFTER_S = 5
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_BUSY_S = 30
KEEPALIVES: dict[str, Any] = {
    "application_name": "heatlens",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 9000,
}
"""Of a connection to Postgres: within 9 s it is noticed that the server has gone without a word."""
_CONNECTIONS = 20
_POOL_WAIT_S = 10
_POOL: dict[str, Any] = {"pool_size": 5, "max_overflow": _CONNECTIONS - 5, "pool_timeout": _POOL_WAIT_S}
_AWAY = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""What Postgres says before its tables are there, and while another server takes its place."""


class Database:
    """One per process; connects when it is first used, so that it may be made before a fork. Safe for threads.

    What fails because the database is away raises `JobsUnavailable`, or `OutOfSpace` where its disk is full.
    """

    def __init__(self, settings: Settings) -> None:
        self._file = settings.data_dir / "jobs.db"
        self.url = settings.database_url or f"sqlite:///{self._file}"
        self.is_sqlite = not settings.database_url

    @cached_property
    def engine(self) -> sa.Engine:
        """The connections."""
        if not self.is_sqlite:
            url = sa.make_url(self.url).set(drivername="postgresql+psycopg")
            return sa.create_engine(url, pool_pre_ping=True, connect_args=KEEPALIVES, **_POOL)
        engine = sa.create_engine(self.url, connect_args={"timeout": _BUSY_S}, **_POOL)
        sa.event.listen(engine, "connect", _on_connect)
        return engine

    def migrate(self) -> None:
        """Create the tables that are not there yet, ours and the engine's; several processes may do so at once."""
        from app.jobs import engine  # which is built on this module

        if self.is_sqlite:
            self._create_file()
        with self.write() as connection:
            if not self.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(tables.SCHEMA_LOCK)))
            tables.create(connection)
        engine.migrate(self)

    def _create_file(self) -> None:
        """Have a write-ahead log, with which readers and the writer do not wait for each other.

        SQLite fails where several ask for that at once.
        """
        folder = self._file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(folder / f"{self._file.name}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with self.read() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except OSError as error:
            raise JobsUnavailable(f"HEATLENS_DATA_DIR={folder}: {error.strerror}.") from error

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Lend a connection to look at things."""
        with self.errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Lend a connection in a transaction, which is committed unless something raises."""
        with self.read() as connection, connection.begin():
            if self.is_sqlite:  # a lock that is taken only at the first change can come too late to be had
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def patiently(self, call: Callable[[], Result], waiting: Callable[[], None] = lambda: None) -> Result:
        """Return what `call` does, tried again for as long as the database is away, or its disk full.

        `waiting` is called before each wait; what it raises ends the patience.
        """
        wait_s = _FIRST_WAIT_S
        pause = threading.Event()
        while True:
            try:
                return call()
            except (JobsUnavailable, OutOfSpace) as error:
                if wait_s == _FIRST_WAIT_S:
                    _log.warning("%s It is tried again until that works.", error)
                waiting()
            pause.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def close(self) -> None:
        """Close the connections that nobody uses now."""
        self.engine.dispose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what fails inside because the database is away as `JobsUnavailable` or `OutOfSpace`."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise _away(error) from error
        except DBAPIError as error:
            if not error.connection_invalidated and not isinstance(error.orig, _AWAY):
                raise
            raise _away(error) from error
        except PoolTimeout as error:
            msg = f"All {_CONNECTIONS} connections to the jobs' database are in use; try again in {_RETRY_AFTER_S} s."
            raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error


def _on_connect(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")  # with WAL, what was committed survives any death of the process


def _away(error: DBAPIError) -> ServiceError:
    text = str(error.orig)
    _log.warning("the jobs' database: %s", text.strip())
    if "disk is full" in text or "No space left" in text:
        return OutOfSpace("The disk of the jobs' database is full.")
    msg = f"The jobs' database does not answer; try again in {_RETRY_AFTER_S} s."
    return JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S)
