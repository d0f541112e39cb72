"""Locks by name between processes, which end with the process that holds them, however it dies.

Beside a SQLite file they are locks of files, on Postgres advisory ones of a connection kept for that.
"""

import fcntl
import hashlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from app.errors import JobsUnavailable
from app.jobs.database import KEEPALIVES, Database

_SERVER_SIDE = (
    "SELECT set_config('tcp_keepalives_idle', '3', false), set_config('tcp_keepalives_interval', '2', false), "
    "set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '9000', false)"
)
"""What the server is told of the lock's connection: that a worker's machine is gone it notices within 9 s, too."""
_LOCKS = (
    "SELECT classid::bigint << 32 | objid::bigint AS key, pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""The advisory locks of this database that have one number for a key, not two."""
_UNNOTICED_S = 12.0
"""How long the server may take our own old connection for alive, and some more."""
_SEATS = 1024
_log = logging.getLogger(__name__)


class Lock:
    """A lock that this process holds, until it is released."""

    lasts_s = math.inf
    """For how long after it was seen to be held it surely is."""
    is_pooled = False
    """Whether something between this process and the database may give its connection to others."""

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
            return _FileLock.take(self._folder, name)
        return _PostgresLock.take(self._database.url, name)

    def free(self, names: Collection[str]) -> set[str]:
        """Return those that nobody holds; who looks takes none, and hinders no other who looks."""
        if self._database.is_sqlite:
            return {name for name in names if _FileLock.is_free(self._folder, name)}
        with self._database.read() as connection:
            held = {key for key, _ in connection.execute(sa.text(_LOCKS))}
        return {name for name in names if _key(name) not in held}

    @property
    def _folder(self) -> Path:
        return Path(str(sa.make_url(self._database.url).database)).with_name("locks")

    @property
    def host(self) -> str:
        """What tells apart the workers of several machines; a SQLite file has those of one, whatever it is called."""
        return "local" if self._database.is_sqlite else socket.gethostname()


class _FileLock(Lock):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str) -> Lock | None:
        return cls._locked(folder, name, fcntl.LOCK_EX)

    @classmethod
    def is_free(cls, folder: Path, name: str) -> bool:
        if lock := cls._locked(folder, name, fcntl.LOCK_SH):
            lock.release()
        return lock is not None

    @classmethod
    def _locked(cls, folder: Path, name: str, how: int) -> Lock | None:
        file = folder / f"{name.replace('/', '_')}.lock"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise JobsUnavailable(f"{file}: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
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

    def __init__(self, connection: psycopg.Connection[Any], key: int, pid: int) -> None:
        self._connection = connection
        self._key = key
        self.is_pooled = pid != connection.info.backend_pid

    @classmethod
    def take(cls, url: str, name: str) -> Lock | None:
        key = _key(name)
        with _database_errors():
            connection = psycopg.connect(url, autocommit=True, **KEEPALIVES)
            try:
                connection.execute(_SERVER_SIDE)
                row = connection.execute("SELECT pg_try_advisory_lock(%s), pg_backend_pid()", [key]).fetchone()
            except BaseException:
                connection.close()
                raise
        if row and row[0]:
            return cls(connection, key, row[1])
        connection.close()
        return None

    def is_held(self) -> bool:
        mine = f"SELECT FROM ({_LOCKS}) AS locks WHERE key = %s AND pid = pg_backend_pid()"
        try:
            is_held = self._connection.execute(mine, [self._key]).fetchone() is not None
        except psycopg.Error:
            is_held = False
        if not is_held:
            self._connection.close()
        return is_held

    def release(self) -> None:
        self._connection.close()


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"heatlens {name}".encode()).digest()[:8], "big", signed=True)


_POOLED = (
    "HEATLENS_DATABASE_URL leads through a pooler of connections. It must pool sessions, not transactions or "
    "statements: otherwise workers lose their places, and end, again and again."
)


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
        self._refused = math.inf
        """Since when the lock that went has been refused."""
        self._confirmed = time.monotonic()

    @classmethod
    def take(cls, locks: Locks) -> "Seat":
        """Return the first free one. Raises `JobsUnavailable`."""
        for slot in range(_SEATS):
            if lock := locks.take(_name(locks, slot)):
                if lock.is_pooled:
                    _log.warning(_POOLED)
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
            self._retake(now)
        if self._is_doubtful and not owns_what_it_runs():
            raise SeatLost(f"Another worker took the work of {self.executor} while the database was away.")
        self._is_doubtful = False
        self._confirmed = now

    def _retake(self, now: float) -> None:
        if self._lock:
            self._lock, self._is_doubtful, self._refused = None, True, math.inf
        self._lock = self._locks.take(self.executor)
        if self._lock:
            return
        self._refused = min(self._refused, now)
        if now - self._refused >= _UNNOTICED_S:
            raise SeatLost(f"Another worker took the place of {self.executor} while the database was away.")
        raise JobsUnavailable(f"The place of {self.executor} is taken, perhaps by its own connection that is dead.")

    def leave(self) -> None:
        """Let another have it."""
        lock, self._lock = self._lock, None
        if lock:
            lock.release()


def _name(locks: Locks, slot: int) -> str:
    return f"{locks.host}:{slot}"


@contextmanager
def _database_errors() -> Iterator[None]:
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise JobsUnavailable(f"The jobs' database does not answer: {error}") from error
