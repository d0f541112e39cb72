"""Locks by name between processes, which end with the process that holds them, however it dies.

Beside a SQLite file they are locks of files, on Postgres advisory ones of a connection kept for that.
"""

import fcntl
import hashlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from app.errors import JobsUnavailable
from app.jobs.database import Database

KEEPALIVES: dict[str, Any] = {
    "application_name": "heatlens",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 9000,
}
"""Of a connection to Postgres: either side notices within 9 s that the other has gone without a word."""
_SERVER_SIDE = (
    "SELECT set_config('tcp_keepalives_idle', '3', false), set_config('tcp_keepalives_interval', '2', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '9000', false)"
)
_TRIES, _BETWEEN_S = 5, 0.05
_SEATS = 1024


class Lock:
    """A lock that this process holds, until it is released."""

    lasts_s = math.inf
    """For how long after it was seen to be held it surely is."""

    def is_held(self) -> bool:
        """Whether it still is: on Postgres it goes with the connection."""
        raise NotImplementedError

    def release(self) -> None:
        """Let others have it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        self.release()


class Locks:
    """The locks of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, name: str) -> Lock | None:
        """Return the lock of this name if nobody holds it, not even this process. Raises `JobsUnavailable`."""
        if self._database.is_sqlite:
            file = sa.make_url(self._database.url).database
            return _FileLock.take(Path(str(file)).with_name("locks"), name)
        return _PostgresLock.take(self._database.url, name)

    def is_free(self, name: str) -> bool:
        """Whether nobody holds a lock; for a moment it is taken to see that."""
        lock = self.take(name)
        if lock is None:
            return False
        lock.release()
        return True

    @property
    def host(self) -> str:
        """What tells apart the workers of several machines; a SQLite file has those of one, whatever it is called."""
        return "local" if self._database.is_sqlite else socket.gethostname()


class _FileLock(Lock):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str) -> Lock | None:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / f"{name.replace('/', '_')}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        os.close(self._descriptor)


class _PostgresLock(Lock):
    lasts_s = 5.0

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    @classmethod
    def take(cls, url: str, name: str) -> Lock | None:
        key = int.from_bytes(hashlib.sha256(f"heatlens {name}".encode()).digest()[:8], "big", signed=True)
        with _database_errors():
            connection = psycopg.connect(url, autocommit=True, **KEEPALIVES)
            try:
                connection.execute(_SERVER_SIDE)
                row = connection.execute("SELECT pg_try_advisory_lock(%s)", [key]).fetchone()
            except BaseException:
                connection.close()
                raise
        if row and row[0]:
            return cls(connection)
        connection.close()
        return None

    def is_held(self) -> bool:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._connection.close()
            return False
        return True

    def release(self) -> None:
        self._connection.close()


class SeatLost(Exception):
    """Another process sits where this one sat, or took its work."""


class Seat:
    """The name under which a worker works, its own for as long as it holds the lock of that name.

    It has the first free number of its machine, which also says which device is its own. Safe for threads.
    """

    def __init__(self, locks: Locks, slot: int, lock: Lock) -> None:
        self.slot = slot
        self.executor = _name(locks, slot)
        self._locks = locks
        self._lock: Lock | None = lock
        self._is_doubtful = False
        self._confirmed = time.monotonic()

    @classmethod
    def take(cls, locks: Locks) -> "Seat":
        """Return the first free one. Raises `JobsUnavailable`."""
        for slot in range(_SEATS):
            if lock := _take(locks, _name(locks, slot)):
                return cls(locks, slot, lock)
        msg = f"All {_SEATS} places for workers are taken."
        raise JobsUnavailable(msg)

    @property
    def is_sure(self) -> bool:
        """Whether nobody can have taken this worker for dead; otherwise it must not publish anything."""
        lock = self._lock
        return lock is not None and time.monotonic() - self._confirmed < lock.lasts_s

    def confirm(self, owns_what_it_runs: Callable[[], bool]) -> None:
        """See that the lock is held. If it went, take it again, and ask whether anybody took the work meanwhile.

        Call it every second. Raises `JobsUnavailable`, and `SeatLost`, after which this process must not go on.
        """
        now = time.monotonic()
        if not (self._lock and self._lock.is_held()):
            self._lock, self._is_doubtful = None, True
            self._lock = _take(self._locks, self.executor)
        if self._lock is None or (self._is_doubtful and not owns_what_it_runs()):
            raise SeatLost(f"Another worker took the place or the work of {self.executor} while the database was away.")
        self._is_doubtful = False
        self._confirmed = now

    def leave(self) -> None:
        """Let another have it."""
        if self._lock:
            self._lock.release()


def _take(locks: Locks, name: str) -> Lock | None:
    for _ in range(_TRIES):
        if lock := locks.take(name):
            return lock
        time.sleep(_BETWEEN_S)  # perhaps it is only looked at
    return None


def _name(locks: Locks, slot: int) -> str:
    return f"{locks.host}:{slot}"


@contextmanager
def _database_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise JobsUnavailable(f"The jobs' database does not answer: {error}") from error
