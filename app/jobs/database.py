"""The jobs' database: a SQLite file in the data folder, or Postgres, which many machines can share."""

import logging
import sqlite3
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
from app.errors import DatabaseTooNew, JobsUnavailable, OutOfSpace, ServiceError
from app.jobs import tables
from app.jobs.database_file import DatabaseFile, FileGone

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
    psycopg.errors.InsufficientPrivilege,
)
"""What Postgres says before its tables and our rights are there, and while another server takes its place."""
_DAMAGED = psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted
_SQLITE_DAMAGED = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB


class Database:
    """One per process; connects when it is first used, so that it may be made before a fork. Safe for threads.

    What fails because the database is away raises `JobsUnavailable`, or `OutOfSpace` where its disk is full.
    """

    def __init__(self, settings: Settings) -> None:
        self._file = DatabaseFile(settings.data_dir / "jobs.db")
        self._renewing = threading.Lock()
        self.url = settings.database_url or f"sqlite:///{self._file.path}"
        self.is_sqlite = not settings.database_url

    @cached_property
    def engine(self) -> sa.Engine:
        """The connections."""
        return self.new_engine()

    def new_engine(self) -> sa.Engine:
        """Return connections apart from all others, for whoever needs theirs to behave otherwise."""
        if not self.is_sqlite:
            url = sa.make_url(self.url).set(drivername="postgresql+psycopg")
            return sa.create_engine(url, pool_pre_ping=True, connect_args=KEEPALIVES, **_POOL)
        engine = sa.create_engine(self.url, connect_args={"timeout": _BUSY_S}, **_POOL)
        self._file.guard(engine)
        sa.event.listen(engine, "connect", _on_connect)
        return engine

    def migrate(self) -> None:
        """Create the tables that are not there yet, or bring older ones up to date, ours and the engine's.

        Several processes may do so at once. Raises `DatabaseTooNew` before anything is changed.
        """
        from app.jobs import engine  # which is built on this module

        self.migrate_own()
        engine.migrate(self)

    def migrate_own(self) -> None:
        """The same without the engine's, which take seconds to import."""
        if self.is_sqlite:
            self._create_file()
        with self.write() as connection:
            if not self.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(tables.SCHEMA_LOCK)))
            tables.migrate(connection)

    @property
    def is_there(self) -> bool:
        """Whether there is anything to look at: to open a SQLite file that is not there would make it."""
        try:
            return not self.is_sqlite or self._file.is_there
        except FileGone as error:
            raise JobsUnavailable(str(error), retry_after_s=_RETRY_AFTER_S) from error
        except OSError as error:
            raise JobsUnavailable(f"{self._file.path}: {error.strerror}.") from error

    def require_known(self) -> None:
        """Raise `DatabaseTooNew` where the tables are of a later HeatLens."""
        if self.is_there:
            with self.read() as connection:
                tables.require_known(tables.version(connection))

    def _create_file(self) -> None:
        """Have a write-ahead log, with which readers and the writer do not wait for each other.

        SQLite fails where several ask for that at once.
        """
        folder = self._file.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._file.locked():
                self._file.create()
                with self.errors(), self.engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except OSError as error:
            raise JobsUnavailable(f"HEATLENS_DATA_DIR={folder}: {error.strerror}.") from error

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Lend a connection to look at things."""
        with self.errors(), self.engine.connect() as connection:
            if self._file.was_replaced:
                self._renew()
            yield connection

    def _renew(self) -> None:
        """Bring another file that came to the path of ours up to date, which may be older, or empty."""
        with self._renewing:
            if not self._file.was_replaced:
                return
            self._file.was_replaced = False  # for the looks that this takes
            try:
                self.migrate()
            except BaseException as error:
                self._file.was_replaced = True
                if isinstance(error, DatabaseTooNew):
                    raise JobsUnavailable(str(error)) from error
                raise

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
        self._file.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what fails inside because the database is away as `JobsUnavailable` or `OutOfSpace`."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise _away(error) from error
        except DBAPIError as error:
            if not (error.connection_invalidated or isinstance(error.orig, _AWAY) or _is_damaged(error.orig)):
                raise
            raise _away(error) from error
        except PoolTimeout as error:
            msg = f"All {_CONNECTIONS} connections to the jobs' database are in use; try again in {_RETRY_AFTER_S} s."
            raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error


def _on_connect(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")  # with WAL, what was committed survives any death of the process


def _is_damaged(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # of the extended ones the lowest byte says of which kind they are
    return isinstance(error, _DAMAGED) or (code is not None and code & 0xFF in _SQLITE_DAMAGED)


def _away(error: DBAPIError) -> ServiceError:
    if isinstance(error.orig, FileGone):  # which was logged
        return JobsUnavailable(str(error.orig), retry_after_s=_RETRY_AFTER_S)
    text = str(error.orig).strip()
    _log.warning("the jobs' database: %s", text)
    if "disk is full" in text or "No space left" in text:
        return OutOfSpace("The disk of the jobs' database is full.")
    msg = f"The jobs' database does not answer; try again in {_RETRY_AFTER_S} s."
    if _is_damaged(error.orig):
        msg = (
            f"The jobs' database is damaged ({text}). Stop all that uses it, and restore a backup; or move it away, "
            "with what lies beside it, to begin with an empty one, which has neither jobs nor API keys."
        )
    elif isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
        reason = text.partition("\n")[0]
        msg = f"The user of HEATLENS_DATABASE_URL lacks rights in the jobs' database ({reason}); grant them."
    return JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S)
