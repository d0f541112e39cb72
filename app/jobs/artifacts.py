"""Where the pictures and the results of jobs lie: a folder, or a bucket behind fsspec.

What is written is there whole or not at all. A key is a path of plain names joined by slashes.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import unquote, urlsplit

from app.config import Settings
from app.errors import OutOfSpace
from app.jobs.room import Room, room_in

STORED = "store:"
"""How an item's `input` begins that is a key; else it is a URL."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_IN_A_FOLDER = 1000
_ONE_PUT_BYTES = 32 * 2**20
_NOT_IN_NAMES = frozenset("\\\0")


def input_key(job_id: str, number: int) -> str:
    """Return where an uploaded picture lies."""
    return f"{job_id}/inputs/{number // _IN_A_FOLDER:03d}/{number:06d}"


def result_key(job_id: str, name: str, number: int) -> str:
    """Return where an artifact of a picture lies."""
    return f"{job_id}/results/{number // _IN_A_FOLDER:03d}/{name}"


class Store:
    """Files by key. Safe for threads, and across a fork.

    What is not there raises `FileNotFoundError`, and so does a key that cannot be one; another `OSError` says that
    the store does not work. Writing raises `OutOfSpace` where there is no room.
    """

    def __init__(self, settings: Settings) -> None:
        url = urlsplit(settings.artifacts_url)
        self._place: _Place
        if url.scheme in ("", "file"):
            self._place = _Folder(Path(unquote(url.path)) if url.path else settings.data_dir / "jobs")
        else:
            self._place = _Bucket(settings.artifacts_url)

    def write(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Put bytes, or pieces as they come, in the place of whatever is there; return how many bytes there were."""
        with _room():
            if isinstance(data, bytes):
                self._place.put(_checked(key), data)
                return len(data)
            return self._place.stream(_checked(key), data)

    def read(self, key: str) -> bytes:
        """Return all of a file."""
        return self._place.get(_checked(key))

    def open(self, key: str) -> BinaryIO:
        """Return a file for reading, which can seek; the caller closes it."""
        return self._place.open(_checked(key))

    def exists(self, key: str) -> bool:
        """Say whether a file is there."""
        try:
            self.size(key)
        except FileNotFoundError:
            return False
        return True

    def size(self, key: str) -> int:
        """Return how many bytes a file has."""
        return self._place.size(_checked(key))

    def delete_tree(self, prefix: str) -> None:
        """Delete all files whose keys begin with `prefix` and a slash, if there are any."""
        self._place.delete_tree(_checked(prefix))

    def room(self) -> Room | None:
        """Return how much room is left; None for a bucket, which does not say."""
        return self._place.room()


class _Place(Protocol):
    """What a store is made of; keys are checked before."""

    def put(self, key: str, data: bytes) -> None: ...
    def stream(self, key: str, pieces: Iterable[bytes]) -> int: ...
    def get(self, key: str) -> bytes: ...
    def open(self, key: str) -> BinaryIO: ...
    def size(self, key: str) -> int: ...
    def delete_tree(self, prefix: str) -> None: ...
    def room(self) -> Room | None: ...


class _Folder:
    """Files of this machine, without fsspec, whose own way of writing one takes several times as long."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        self.stream(key, (data,))

    def stream(self, key: str, pieces: Iterable[bytes]) -> int:
        path = self._path(key)
        folder, name = os.path.split(path)
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}"
        written = 0
        try:
            with self._create(temporary) as file:
                for piece in pieces:
                    file.write(piece)
                    written += len(piece)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return written

    def get(self, key: str) -> bytes:
        with self.open(key) as file:
            return file.read()

    def open(self, key: str) -> BinaryIO:
        return open(self._path(key), "rb")

    def size(self, key: str) -> int:
        return os.stat(self._path(key)).st_size

    def delete_tree(self, prefix: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(prefix))

    def room(self) -> Room:
        try:
            return room_in(self._root)
        except FileNotFoundError:
            self._make_root()
            return room_in(self._root)

    def _create(self, path: str) -> BinaryIO:
        try:
            return open(path, "xb")
        except FileNotFoundError:
            self._make_root()
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "xb")

    def _make_root(self) -> None:
        os.makedirs(self._root, mode=0o700, exist_ok=True)  # what lies in it is for nobody else's eyes

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


class _Bucket:
    """Whatever fsspec reaches. A file is one PUT; only what comes in pieces and is large is uploaded in parts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: tuple[int, Any, str] = (0, None, "")

    def put(self, key: str, data: bytes) -> None:
        files, path = self._files(key)
        with _as_os_errors():
            files.pipe_file(path, data)

    def stream(self, key: str, pieces: Iterable[bytes]) -> int:
        pieces, head = iter(pieces), bytearray()
        for piece in pieces:
            head += piece
            if len(head) > _ONE_PUT_BYTES:
                return self._in_parts(key, chain((bytes(head),), pieces))
        self.put(key, bytes(head))
        return len(head)

    def _in_parts(self, key: str, pieces: Iterable[bytes]) -> int:
        files, path = self._files(key)
        with _as_os_errors():
            file = files.open(path, "wb", autocommit=False)
        try:
            written = 0
            for piece in pieces:
                with _as_os_errors():
                    written += file.write(piece)
            with _as_os_errors():
                file.close()
                file.commit()
        except BaseException:
            file.forced = True  # else closing, or being collected, writes what there is
            with suppress(Exception):  # what counts is why it came to this
                file.discard()
                file.close()
            raise
        return written

    def get(self, key: str) -> bytes:
        files, path = self._files(key)
        with _as_os_errors():
            return cast("bytes", files.cat_file(path))

    def open(self, key: str) -> BinaryIO:
        files, path = self._files(key)
        with _as_os_errors():
            return cast("BinaryIO", files.open(path, "rb"))

    def size(self, key: str) -> int:
        files, path = self._files(key)
        with _as_os_errors():
            return int(files.info(path)["size"])

    def delete_tree(self, prefix: str) -> None:
        files, path = self._files(prefix)
        with _as_os_errors(), suppress(FileNotFoundError):
            files.rm(path, recursive=True)

    def room(self) -> None:
        return None

    def _files(self, key: str) -> tuple[Any, str]:
        """Return the file system and the key's path in it."""
        pid, files, root = self._opened
        if pid != os.getpid():  # fsspec's own thread does not survive a fork
            with _as_os_errors():
                files, root = _file_system(self._url)
            self._opened = os.getpid(), files, root
        return files, f"{root}/{key}"


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each library has errors of its own
        raise OSError(f"the store of the jobs does not work: {error!r}") from error


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec  # takes its time, which who keeps files in a folder does not need

    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return files, str(root).rstrip("/")


def _checked(key: str) -> str:
    if any(part in ("", ".", "..") or not _NOT_IN_NAMES.isdisjoint(part) for part in key.split("/")):
        raise FileNotFoundError(errno.ENOENT, "that is no key", key)
    return key


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OutOfSpace("The disk of the jobs' pictures and results is full.") from error
        raise
