"""A job's upload: a form of any size, read once, from which pictures go straight to the store. No Flask."""

import errno
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, cast

from app.config import Settings
from app.errors import BadOption, BadRequestBody, JobsUnavailable, JobTooLarge, OutOfSpace
from app.jobs.archives import ArchiveLimits, members
from app.jobs.drafts import Draft
from app.jobs.multipart import Part, parts
from app.jobs.names import MAX_CHARACTERS
from app.jobs.options import REPEATABLE
from app.jobs.room import require_room, room_in
from app.schemas.checking import from_text

SOURCE = "source"
_FILES = ("image", "archive")
_LOOK_BYTES = 2**20
"""How often it is looked, while an archive comes, whether the disk has room for more."""
_RETRY_AFTER_S = 5
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_WAYS = "Send pictures as parts `image`, or one `archive` (zip or tar), or a `source` to read them from."


@dataclass
class Form:
    """What a form has beside pictures. The archive, a file without a name, is gone when it is closed."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    archive: IO[bytes] | None = None
    pictures: int = 0

    def close(self) -> None:
        """Let go of the archive."""
        if self.archive is not None:
            self.archive.close()


def read_form(chunks: Iterable[bytes], boundary: str, draft: Draft, form: Form, settings: Settings) -> None:
    """Read a multipart body to its end: pictures go into the draft, all else into `form`.

    Raises `BadRequestBody`, `JobTooLarge`, `TooManyItems`, `TooManyBytes`, `EmptyImage`, `QuotaExceeded`,
    `OutOfSpace` and `JobsUnavailable`.
    """
    purse = _FieldPurse(settings)
    for part in parts(_limited(chunks, settings.max_job_bytes), boundary):
        if part.filename is None:
            _read_field(part, form, purse)
        elif part.name == "image":
            _read_image(part, form, draft, purse)
        elif part.name == "archive":
            _read_archive(part, form, settings, purse)
        else:
            msg = f"The form has a file {part.name[:100]!r}. {_WAYS}"
            raise BadRequestBody(msg, field="image", choices=list(_FILES))


def unpack(archive: IO[bytes], draft: Draft, settings: Settings) -> None:
    """Put the pictures of an archive into the draft; for what is raised see `archives.members`."""
    limits = ArchiveLimits(
        items=settings.max_job_items,
        bytes=settings.max_archive_bytes,
        ratio=settings.max_archive_ratio,
        picture_bytes=settings.max_body_bytes,
    )
    for member in members(cast("BinaryIO", archive), limits):
        draft.add_picture(member.name, member.data)


def options_of(fields: Iterable[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """Return options that came as text, with all values of a name together."""
    options: dict[str, Any] = {}
    for name, values in fields:
        if not name:
            raise BadRequestBody("A field of the request has no name.")
        given = [from_text(name, value) for value in values if value]  # an empty field of a form was left out
        if name in REPEATABLE and given:
            options[name] = given
        elif len(given) > 1:
            msg = f"{name[:100]} is given {len(given)} times; give it once."
            raise BadOption(msg, field=name[:100])
        elif given:
            options[name] = given[0]
    return options


def together(query: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the query and of the body; raise `BadOption` for one that is in both."""
    twice = sorted(query.keys() & body.keys())
    if twice:
        msg = f"{twice[0][:100]} is given in the query and in the body; give it once."
        raise BadOption(msg, field=twice[0][:100])
    return {**query, **body}


def job_too_large(limit: int) -> JobTooLarge:
    """Return the error of an upload beyond HEATLENS_MAX_JOB_BYTES."""
    msg = f"The upload is larger than {limit} bytes (HEATLENS_MAX_JOB_BYTES)."
    return JobTooLarge(msg, limit=limit, setting="HEATLENS_MAX_JOB_BYTES")


def _limited(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > limit:
            raise job_too_large(limit)
        yield chunk


class _FieldPurse:
    """What a form may still have beside pictures: fields, which are kept in memory, and parts that are nothing."""

    def __init__(self, settings: Settings) -> None:
        self._fields, self._bytes = settings.max_form_fields, settings.max_form_bytes
        self.limits = {"fields": self._fields, "bytes": self._bytes}

    def spend(self, *, fields: int = 0, size: int = 0) -> None:
        self._fields -= fields
        self._bytes -= size
        if self._fields < 0 or self._bytes < 0:
            msg = (
                f"A form may have at most {self.limits['fields']} fields (HEATLENS_MAX_FORM_FIELDS) of together "
                f"{self.limits['bytes']} bytes (HEATLENS_MAX_FORM_BYTES) beside the pictures, which have file names; "
                "empty parts count as fields."
            )
            raise JobTooLarge(msg, limits=self.limits)


def _read_field(part: Part, form: Form, purse: _FieldPurse) -> None:
    if part.name in _FILES:
        raise BadRequestBody(f"The part {part.name!r} has no file name, so it is a field and no file.", field=part.name)
    purse.spend(fields=1, size=len(part.name))
    value = bytearray()
    for chunk in part.data:
        purse.spend(size=len(chunk))
        value += chunk
    try:
        form.fields.setdefault(part.name, []).append(value.decode())
    except UnicodeDecodeError as error:
        msg = f"The field {part.name[:100]!r} is not UTF-8."
        raise BadRequestBody(msg, field=part.name[:100]) from error


def _read_image(part: Part, form: Form, draft: Draft, purse: _FieldPurse) -> None:
    name = part.filename or ""
    data = iter(part.data)
    first = next(data, b"")
    if not name and not first:  # a form's file field in which nothing was chosen
        purse.spend(fields=1)
        return
    if form.archive is not None:
        raise BadRequestBody(f"The form has both pictures and an archive. {_WAYS}", field="archive")
    if len(name) > MAX_CHARACTERS:
        msg = f"A picture's name has {len(name)} characters; at most {MAX_CHARACTERS} are taken."
        raise BadRequestBody(msg, field="image", limit=MAX_CHARACTERS)
    form.pictures += 1
    draft.add_picture(name or f"picture-{draft.count}", _again(first, data))


def _again(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _read_archive(part: Part, form: Form, settings: Settings, purse: _FieldPurse) -> None:
    """Put an archive aside: what is to be done with its pictures may come after it, and a zip is read from its end."""
    data = iter(part.data)
    first = next(data, b"")
    if not part.filename and not first:
        purse.spend(fields=1)
        return
    if form.archive is not None or form.pictures:
        what = "both pictures and an archive" if form.pictures else "more than one archive"
        raise BadRequestBody(f"The form has {what}. {_WAYS}", field="archive")
    with _working_folder():
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        form.archive = tempfile.TemporaryFile(dir=settings.data_dir)  # noqa: SIM115 - the form closes it
    unseen = _LOOK_BYTES
    for chunk in _again(first, data):
        unseen += len(chunk)
        with _working_folder():
            if unseen >= _LOOK_BYTES:
                require_room(room_in(settings.data_dir), settings)
                unseen = 0
            form.archive.write(chunk)


@contextmanager
def _working_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OutOfSpace("The disk is full, so the archive cannot be put aside.") from error
        msg = f"HEATLENS_DATA_DIR does not work ({error.strerror}); try again in {_RETRY_AFTER_S} s."
        raise JobsUnavailable(msg, retry_after_s=_RETRY_AFTER_S) from error
