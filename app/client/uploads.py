"""Files as a multipart form that is read while it is sent: one file is open at a time, and none is held."""

import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

_PIECE_BYTES = 2**18


class Form:
    """A form of files, each with the name of its part. Raises `OSError` for what is no file that can be read."""

    def __init__(self, files: Sequence[tuple[str, Path]]) -> None:
        boundary = uuid.uuid4().hex
        self._end = f"--{boundary}--\r\n".encode()
        self._parts = [(_head(boundary, part, path), path, _size(path)) for part, path in files]
        length = sum(len(head) + size + 2 for head, _, size in self._parts) + len(self._end)
        self.headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(length),
        }

    def pieces(self) -> Iterator[bytes]:
        """Yield the body."""
        for head, path, size in self._parts:
            yield head
            yield from _read(path, size)
            yield b"\r\n"
        yield self._end


def _head(boundary: str, part: str, path: Path) -> bytes:
    name = path.name
    for plain, escaped in (("\\", "\\\\"), ('"', "%22"), ("\r", "%0D"), ("\n", "%0A")):
        name = name.replace(plain, escaped)
    return (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="{part}"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode(errors="replace")


def _size(path: Path) -> int:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no file")
    return found.st_size


def _read(path: Path, size: int) -> Iterator[bytes]:
    """Yield a file, of the length that was promised."""
    with open(path, "rb") as file:
        left = size
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            left -= len(piece)
            yield piece
    if left:
        raise OSError(f"{path} became shorter while it was sent")
