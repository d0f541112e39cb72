"""The files of sources: those of this machine, and those that fsspec reaches."""

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from app.errors import ServiceError, SourceUnreadable
from app.jobs.names import shown
from app.jobs.places import LOCAL, Allowed, Place

_NO_REDIRECTS: Mapping[str, Any] = {"allow_redirects": False}
"""They could lead to where the operator lets nobody read."""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "http": _NO_REDIRECTS,
    "https": _NO_REDIRECTS,
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}}},
}
"""How fsspec opens a file system, beside what its library finds in the environment, such as credentials."""
_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """What is in a folder."""

    name: str
    is_folder: bool
    is_link: bool = False


class Files(Protocol):
    """The files of one scheme. What cannot be done raises `SourceUnreadable` or `SourceNotAllowed`."""

    def is_file(self, place: Place) -> bool:
        """Whether a file is there, and no folder; raises where there is neither."""

    def entries(self, place: Place) -> list[Entry]:
        """Return what is in a folder."""

    def identity(self, place: Place) -> str:
        """Return what is the same for the same file or folder, by whatever way; raises where that is not allowed."""

    def read(self, place: Place, size: int) -> bytes:
        """Return the first bytes of a file."""


def files_of(place: Place, allowed: Allowed) -> Files:
    """Return the files among which a place is."""
    return _Local(allowed) if place.scheme == LOCAL else _Remote(place.scheme)


class _Local:
    """Files of this machine. A link counts as what it leads to, and must not lead out of what is allowed."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._roots = [os.path.realpath(place.path) for place in allowed.places if place.scheme == LOCAL]

    def is_file(self, place: Place) -> bool:
        with _readable(place, "found"):
            return not stat.S_ISDIR(os.stat(self.identity(place)).st_mode)

    def entries(self, place: Place) -> list[Entry]:
        with _readable(place, "listed"), os.scandir(self.identity(place)) as found:
            return [Entry(entry.name, entry.is_dir(), entry.is_symlink()) for entry in found]

    def identity(self, place: Place) -> str:
        real = os.path.realpath(place.path)
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in self._roots):
            self._allowed.refuse(f"{shown(place.url)[:200]!r} is a link to where nothing may be read.")
        return real

    def read(self, place: Place, size: int) -> bytes:
        with _readable(place, "read"):
            # What was looked at is what is opened; and a pipe, which may never end, is not waited for.
            handle = os.open(self.identity(place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise SourceUnreadable(f"{shown(place.url)[:200]!r} is no file.")
                return file.read(size)


class _Remote:
    """Files that fsspec reaches. Nothing is kept of what was listed: a bucket fills while the server runs."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def is_file(self, place: Place) -> bool:
        with _readable(place, "found"):
            files = self._files()
            return not files.isdir(f"{place.url}/") and (not place.parts or files.info(place.url)["type"] == "file")

    def entries(self, place: Place) -> list[Entry]:
        with _readable(place, "listed"):
            files = self._files()
            itself = files._strip_protocol(place.url).rstrip("/")  # noqa: SLF001 - as fsspec's own listings write it
            found = ((info["name"].rstrip("/"), info["type"]) for info in files.ls(f"{place.url}/", detail=True))
            # A bucket's folder can be an object itself, and a web page may link to anywhere.
            below = ((name.removeprefix(f"{itself}/"), kind) for name, kind in found if name.startswith(f"{itself}/"))
            return [Entry(name, kind == "directory") for name, kind in below if name and "/" not in name]

    def identity(self, place: Place) -> str:
        return place.url

    def read(self, place: Place, size: int) -> bytes:
        with _readable(place, "read"), self._files().open(place.url, "rb", cache_type="none") as file:
            return bytes(file.read(size))

    def _files(self) -> Any:
        return _file_system(self._scheme, os.getpid())


@lru_cache(maxsize=32)
def _file_system(scheme: str, _pid: int) -> Any:
    """Return fsspec's file system of this process: its own thread does not survive a fork."""
    import fsspec  # takes its time, which most processes do not need

    try:
        files = fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # which say what to install, or that nobody knows the scheme
        raise SourceUnreadable(f"{scheme}:// cannot be read: {error}.") from error
    return files(use_listings_cache=False, skip_instance_cache=True, **_OPTIONS.get(scheme, {}))


@contextmanager
def _readable(place: Place, what: str) -> Iterator[None]:
    """Say of whatever goes wrong that the source cannot be read: in the log why, to the client which kind it is."""
    try:
        yield
    except ServiceError:
        raise
    except Exception as error:
        _log.info("%s cannot be %s: %s", place.url, what, error)
        reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        reason = "nothing is there" if isinstance(error, FileNotFoundError) else reason
        raise SourceUnreadable(f"{shown(place.url)[:200]!r} cannot be {what}: {reason}.") from error
