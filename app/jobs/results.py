"""All results of a job in one piece, as streams of bytes: of the results, no more is held than the page in hand."""

import os
import re
import unicodedata
from collections.abc import Generator, Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from zipstream import ZIP_STORED, ZipStream

from app.jobs.artifacts import result_key
from app.jobs.rows import ItemRow, JobRow
from app.schemas.jobs import item_facts

if TYPE_CHECKING:
    from app.jobs.artifacts import Store
    from app.jobs.reading import Reading

_PAGE = 500
"""Pictures that are read from the database at once."""
_CHUNK_BYTES = 2**16
_STEM_CHARACTERS = 60
_LISTING = "results.ndjson"


def ndjson(ledger: "Reading", job: JobRow) -> Generator[bytes]:
    """Yield one line of JSON for each picture that was finished when `job` was read, by number."""
    for page in _pages(ledger, job):
        yield b"".join(item_facts(row).model_dump_json().encode() + b"\n" for row in page)


def archive(ledger: "Reading", store: "Store", job: JobRow) -> Generator[bytes]:
    """Yield a zip of `results.ndjson` and of all files of the pictures that were finished when `job` was read.

    They are pictures or compressed already, so they are stored as they are. What grows with the job is the zip's
    directory, which comes last: about 500 bytes of memory for each file. A job that is deleted meanwhile ends it with
    `UnknownJob`, before the directory that would make it look complete.
    """
    files = ZipStream(compress_type=ZIP_STORED)
    files.add(ndjson(ledger, job), _LISTING)
    yield from files.all_files()
    for page in _pages(ledger, job):
        for row in page:
            for name in names_of(row):
                yield from _file(files, store, result_key(job.id, name, row.number), entry_name(row, name))
    ledger.job(job.id)
    yield from files.footer()


def names_of(row: ItemRow) -> list[str]:
    """Return the names of a picture's files, those of the first target first."""
    if row.result is None:
        return []
    of_targets = [name for explanation in row.result["explanations"] for name in explanation["artifacts"].values()]
    return [*of_targets, *row.result.get("artifacts", {}).values()]


def entry_name(row: ItemRow, artifact: str) -> str:
    """Return what a file is called in the zip: with what the picture is called, for people to find it.

    No two are the same, since the number begins it.
    """
    number, _, kind = artifact.partition(".")
    stem = safe_stem(row.name)
    return f"{number}-{stem}.{kind}" if stem else artifact


def safe_stem(name: str) -> str:
    """Return what is harmless in a picture's name, without folders and without its extension; it may be nothing."""
    plain = unicodedata.normalize("NFC", name.replace("\\", "/"))
    stem = re.sub(r"[^\w.-]+", "_", PurePosixPath(plain).stem)
    return stem[:_STEM_CHARACTERS].strip("._-")


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the contents of a file, and close it."""
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def size_of(file: IO[bytes]) -> int:
    """Return the size of a file that has just been opened."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size_bytes


def _file(files: ZipStream, store: "Store", key: str, name: str) -> Iterator[bytes]:
    """Yield one file as an entry; one that is gone is left out, as `results.ndjson` names what there has to be."""
    try:
        file = store.open(key)
    except FileNotFoundError:
        return
    with file:
        files.add(read_chunks(file), name, size=size_of(file))
        yield from files.all_files()


def _pages(ledger: "Reading", job: JobRow) -> Iterator[list[ItemRow]]:
    """Yield what was finished when `job` was read, so that everything made of it tells of the same pictures."""
    after: int | None = None
    while page := ledger.items(job.id, after=after, limit=_PAGE):
        after = page[-1].number
        yield [row for row in page if row.event is not None and row.event <= job.events]
