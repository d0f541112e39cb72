"""Room on a disk: bytes, and files, of which many file systems have a number that was fixed when they were made."""

import os
from dataclasses import dataclass
from pathlib import Path

from app.config import Settings
from app.errors import OutOfSpace


@dataclass(frozen=True)
class Room:
    """What may still be written; None: as many files as there are bytes for."""

    bytes: int
    files: int | None


def room_in(folder: Path | str) -> Room:
    """Return the room of the file system of a folder."""
    found = os.statvfs(folder)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def shortage(room: Room | None, settings: Settings) -> OutOfSpace | None:
    """Return what to say where less is free than has to stay free; None for `room`: nobody knows."""
    if room is None:
        return None
    if room.bytes < settings.min_free_bytes:
        return _less_than(settings.min_free_bytes, "bytes", "HEATLENS_MIN_FREE_BYTES")
    if room.files is not None and room.files < settings.min_free_files:
        return _less_than(settings.min_free_files, "files (inodes)", "HEATLENS_MIN_FREE_FILES")
    return None


def require_room(room: Room | None, settings: Settings) -> None:
    """Raise `OutOfSpace` where less is free than has to stay free."""
    if short := shortage(room, settings):
        raise short


def _less_than(limit: int, what: str, setting: str) -> OutOfSpace:
    msg = f"The disk has less than {limit} {what} free, which are to stay free ({setting})."
    return OutOfSpace(msg, limit=limit, setting=setting)
