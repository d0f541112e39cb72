"""The SQLite file of the jobs' database, which somebody may remove or replace while it is in use.

An open file that was removed goes on working for whoever has it open, and what is written there is lost. So each
connection that is lent is compared with what is at the path: that takes a few microseconds.
"""

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import InvalidatePoolError

_Identity = tuple[int, int]
_INFO = "heatlens_file"
_GONE = (
    "The file of the jobs' database, jobs.db in HEATLENS_DATA_DIR, was removed. Restore a backup in its place, or "
    "restart the server to begin with an empty one, which has neither jobs nor API keys."
)
_log = logging.getLogger(__name__)


class FileGone(sqlite3.OperationalError):
    """The file was removed while it was in use."""

    def __init__(self) -> None:
        super().__init__(_GONE)


class DatabaseFile:
    """Opens the file that is at the path, never one that was there before, and makes none by opening. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.was_replaced = False
        """Whether another file came to the path, whose tables nobody has looked at yet."""
        self._known: _Identity | None = None
        self._beside: dict[str, _Identity | None] = {}
        """The write-ahead log of the known file and its index, as they were seen last."""
        self._is_gone = False
        self._opening = threading.RLock()
        self._is_locked = False

    @property
    def is_there(self) -> bool:
        """Whether there is a file. Raises `FileGone` where there was one, and `OSError`."""
        is_there = self.path.exists()
        if not is_there and self._known:
            self._say_gone()
            raise FileGone
        return is_there

    def create(self) -> None:
        """Make an empty file that is nobody else's to read; what SQLite puts beside it gets the same rights."""
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one, of all threads and processes, that makes the file or takes over another one."""
        with self._opening:
            if self._is_locked:  # by this very thread, and a second lock would wait for the first
                yield
                return
            lock = os.open(self._sibling(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._is_locked = True
                yield
            finally:
                self._is_locked = False
                os.close(lock)

    def guard(self, engine: sa.Engine) -> None:
        """Have an engine's connections be to the file that is at the path."""
        sa.event.listen(engine, "do_connect", self._connect)
        sa.event.listen(engine, "checkout", self._check)

    def close(self) -> None:
        """Know nothing any more of the log, which may go with the last connection."""
        self._beside = {}

    def _connect(self, _dialect: object, record: Any, _arguments: object, options: dict[str, Any]) -> object:
        with self._opening:
            now = _identity(self.path)
            if now is None and self._known:
                self._say_gone()
                raise FileGone
            if self._known not in (None, now):
                self._take_over()
            # SQLite would make a file that is not there, though nobody means to
            connection = sqlite3.connect(f"file:{quote(str(self.path.absolute()))}?mode=rw", uri=True, **options)
            if now != _identity(self.path):
                connection.close()
                raise sqlite3.OperationalError("the file was replaced while it was opened")
            self._known, self._is_gone = now, False
        record.info[_INFO] = now
        return connection

    def _check(self, _connection: object, record: Any, _proxy: object) -> None:
        if record.info[_INFO] != _identity(self.path):
            raise InvalidatePoolError  # SQLAlchemy connects anew, and lends none any more that was open before
        if record.info[_INFO] == self._known:
            self._beside = {suffix: _identity(self._sibling(suffix)) for suffix in ("-wal", "-shm")}

    def _take_over(self) -> None:
        """Use another file from now on, without the log of the one before: SQLite would write that into this one."""
        with self.locked():
            for suffix, known in self._beside.items():
                if known and known == _identity(self._sibling(suffix)):
                    self._sibling(suffix).unlink()
        self._beside, self.was_replaced = {}, True
        _log.critical(
            "the file of the jobs' database was replaced by another: its jobs and API keys hold from now on; "
            "what was written to the one before since then is lost"
        )

    def _say_gone(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            _log.critical("%s", _GONE)

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _identity(path: Path) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
