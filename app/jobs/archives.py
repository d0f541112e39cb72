"""Archives of pictures from somebody who may mean harm: every limit is checked while reading.

An archive is taken as it is or not at all: what is strange in it (a link, a name that leads elsewhere, an archive
within) refuses the whole, and nothing of it is left out in silence but folders, hidden files and what systems leave.
"""

import io
from collections.abc import Iterator
from tarfile import BLOCKSIZE
from typing import BinaryIO

from app.errors import BadArchive
from app.jobs.tars import UNPACKERS, tar_members
from app.jobs.unpacking import ArchiveLimits, Member, Purse, kind_of
from app.jobs.zips import zip_members

__all__ = ["ArchiveLimits", "Member", "members"]

_KINDS = "Send a zip, or a tar as it is or packed with gzip, bzip2 or xz."


def members(file: BinaryIO, limits: ArchiveLimits) -> Iterator[Member]:
    """Return the files of an archive in its order, recognised by its content; `file` can seek.

    Raises `BadArchive`, `ArchiveTooLarge`, `TooManyItems` and `TooManyBytes`, at any time.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(BLOCKSIZE)
    file.seek(0)
    purse = Purse(size, limits)
    kind = kind_of(head)
    if kind == "zip":
        return zip_members(file, limits, purse)
    if len(head) == BLOCKSIZE and not any(head):  # an empty tar begins with its end
        kind = "tar"
    if kind in UNPACKERS:
        return tar_members(file, kind, limits, purse)
    what = f"is of the kind {kind}, which is not read" if kind else "is none that is known"
    raise BadArchive(f"The archive {what}. {_KINDS}", choices=["zip", *UNPACKERS])
