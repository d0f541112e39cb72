"""A job's upload, read in pieces of any size, with a real database and a real store behind it."""

import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.config import Settings
from app.errors import (
    BadArchive,
    BadOption,
    BadRequestBody,
    IdempotencyConflict,
    JobsUnavailable,
    JobTooLarge,
    OutOfSpace,
    QuotaExceeded,
    ServiceError,
    TooManyItems,
)
from app.imaging.errors import EmptyImage, TooManyBytes
from app.jobs.artifacts import Store, input_key
from app.jobs.database import Database
from app.jobs.drafts import Draft
from app.jobs.engine import ShardQueue
from app.jobs.intake import Form, options_of, read_form, together, unpack
from app.jobs.ledger import Ledger
from app.jobs.multipart import parts
from app.jobs.options import Asked, JobOptions
from app.jobs.room import Room
from app.jobs.rows import JobRow, NewItem
from app.jobs.tables import items, jobs
from tests.app.disks import disk

BOUNDARY = "----WebKitFormBoundaryA1"
PICTURES = {
    "cat.jpg": b"\xff\xd8cat",
    "Hund Größe.png": bytes(range(256)) * 900,
    "one.gif": b"G",
    "a/b.jpg": b"--x\r\n",
}


class Desk:
    """Takes uploads, and looks at what is left of them."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.settings = Settings(
            data_dir=database_folder(database), database_url="" if database.is_sqlite else database.url, **settings
        )
        self.database = database
        self.ledger = Ledger(database, ShardQueue(database), shard_pictures=128)
        self.store = Store(self.settings)

    def draft(self, owner: str = "me") -> Draft:
        return Draft(self.ledger, self.store, self.settings, owner=owner)

    def take(
        self, body: bytes | Iterable[bytes], *, key: str | None = None, owner: str = "me", **options: Any
    ) -> JobRow:
        chunks = [body] if isinstance(body, bytes) else body
        with self.draft(owner) as draft, closing(Form()) as form:
            draft.check_room()
            draft.check_quota()
            read_form(chunks, BOUNDARY, draft, form, self.settings)
            if form.archive:
                unpack(form.archive, draft, self.settings)
            return draft.submit(Asked(JobOptions(**options), {}), key=key)

    def pictures(self, job: JobRow) -> list[tuple[str, bytes]]:
        """The names and bytes of a job's pictures, after a look at all that is said of them."""
        found = []
        for number, item in enumerate(self.ledger.items(job.id, limit=1000)):
            assert item.input == f"store:{input_key(job.id, number)}"
            data = self.store.read(item.input.removeprefix("store:"))
            assert (item.number, item.size_bytes) == (number, len(data))
            assert item.sha256 == hashlib.sha256(data).hexdigest()
            found.append((item.name, data))
        assert job.size_bytes == sum(len(data) for _, data in found)
        return found

    def leftovers(self) -> list[str]:
        """Rows of jobs and pictures, and all files but the database's own."""
        with self.database.read() as connection:
            rows = [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (jobs, items)]
        files = [str(path) for path in self.settings.data_dir.rglob("*") if path.is_file()]
        return [f"{count} rows" for count in rows if count] + [name for name in files if "jobs.db" not in name]


def database_folder(database: Database) -> Path:
    return database._file.path.parent


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Makes desks with settings of their own, on SQLite."""
    database = Database(Settings(data_dir=tmp_path))
    database.migrate()
    yield lambda **settings: Desk(database, **settings)
    database.close()


def part(name: str, data: bytes, filename: str | None = None, boundary: str = BOUNDARY) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"


def form_of(*given: bytes) -> bytes:
    return b"".join(given) + f"--{BOUNDARY}--\r\n".encode()


def images(files: dict[str, bytes]) -> list[bytes]:
    return [part("image", data, name) for name, data in files.items()]


def in_pieces(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """Cut at these sizes, over and over."""
    start, turn = 0, 0
    while start < len(body):
        yield body[start : start + sizes[turn % len(sizes)]]
        start += sizes[turn % len(sizes)]
        turn += 1


def a_zip(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def a_tar(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


# Forms.


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["image", "archive", "name"]),
            st.none() | st.text(st.characters(exclude_characters='"\\', exclude_categories=["C"]), max_size=20),
            st.lists(st.sampled_from([b"--", BOUNDARY.encode(), b"\r", b"\n", b"\0", b"x" * 999]), max_size=9).map(
                b"".join
            ),
        ),
        max_size=5,
    ),
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
)
def test_a_form_is_the_same_whichever_way_it_is_cut(
    given: list[tuple[str, str | None, bytes]], sizes: list[int]
) -> None:
    given = [each for each in given if b"\n--" + BOUNDARY.encode() not in b"\n" + each[2]]  # that would be a boundary
    given = [each for each in given if b"\r--" + BOUNDARY.encode() not in each[2]]
    body = form_of(*(part(name, data, filename) for name, filename, data in given))
    found = [(each.name, each.filename, b"".join(each.data)) for each in parts(in_pieces(body, sizes), BOUNDARY)]
    assert found == given


def test_a_part_that_is_not_read_is_passed_over() -> None:
    body = form_of(part("a", b"x" * 200_000), part("b", b"y"))
    assert [each.name for each in parts([body], BOUNDARY)] == ["a", "b"]


BROKEN = {
    "nothing": b"",
    "no boundary": b"hello" * 10,
    "another boundary": form_of(*images(PICTURES)).replace(BOUNDARY.encode(), b"other"),
    "no end": b"".join(images(PICTURES)),
    "an end in the headers": images(PICTURES)[0][:40],
    "an end in the data": images(PICTURES)[1][:9000],
    "no Content-Disposition": f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
    "headers that are no text": form_of(part("image", b"x", "\xe9").replace(b"\xc3\xa9", b"\xe9")),
    "headers without end": f"--{BOUNDARY}\r\n".encode() + b"X: y\r\n" * 100_000,
    "a preamble without end": b"x" * 10**6,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("size", [1000, 10**7])
def test_a_body_that_is_no_form_is_refused(body: bytes, size: int) -> None:
    with pytest.raises(BadRequestBody):
        list(chain.from_iterable(each.data for each in parts(in_pieces(body, [size]), BOUNDARY)))


# Pictures.


@pytest.mark.parametrize("size", [7, 1000, 10**7])
def test_pictures_become_items_in_their_order_with_their_hashes(desk: Desk, size: int) -> None:
    job = desk.take(in_pieces(form_of(*images(PICTURES)), [size]), name="mine", alpha=0.5)
    assert desk.pictures(job) == list(PICTURES.items())
    assert (job.status, job.total, job.name, job.options) == ("queued", 4, "mine", {"alpha": 0.5})


@pytest.mark.parametrize("pack", [a_zip, a_tar])
def test_an_archive_becomes_the_same_job_as_its_pictures(desk: Desk, pack: Callable[[dict[str, bytes]], bytes]) -> None:
    job = desk.take(in_pieces(form_of(part("archive", pack(PICTURES), "p.zip")), [5000]), key="k")
    assert desk.pictures(job) == list(PICTURES.items())
    assert desk.take(form_of(*images(PICTURES)), key="k").id == job.id  # by names and hashes, whatever they came in


def test_more_pictures_than_are_written_at_once_are_numbered_on(desk: Desk) -> None:
    job = desk.take(form_of(*images({f"{number}.jpg": b"%d" % number for number in range(2345)})))
    assert job.total == 2345
    for number in (0, 999, 1000, 1999, 2344):
        assert desk.ledger.item(job.id, number).name == f"{number}.jpg"
        assert desk.store.read(input_key(job.id, number)) == b"%d" % number


def test_fields_may_stand_before_and_behind_pictures(small: Callable[..., Desk]) -> None:
    desk, form = small(), Form()
    body = form_of(part("alpha", b"0.5"), *images(PICTURES), part("target", b"cat"), part("target", "Größe".encode()))
    with desk.draft() as draft:
        read_form([body], BOUNDARY, draft, form, desk.settings)
    assert form.fields == {"alpha": ["0.5"], "target": ["cat", "Größe"]}
    assert options_of(form.fields.items()) == {"alpha": "0.5", "target": ["cat", "Größe"]}


def test_a_file_field_in_which_nothing_was_chosen_is_none(small: Callable[..., Desk]) -> None:
    desk = small()
    job = desk.take(form_of(part("archive", b"", ""), *images(PICTURES), part("image", b"", "")))
    assert desk.pictures(job) == list(PICTURES.items())


def test_names_that_a_database_cannot_hold_are_replaced(desk: Desk) -> None:
    header = b"Content-Disposition: form-data; name=\"image\"; filename*=UTF-8''a%00b%1B%ED%A0%80.jpg"
    body = form_of(f"--{BOUNDARY}\r\n".encode() + header + b"\r\n\r\nx\r\n", part("image", b"y", "../../etc/passwd"))
    names = [name for name, _ in desk.pictures(desk.take(body))]
    assert names[0].startswith("a\ufffdb\ufffd")
    assert names[1] == "../../etc/passwd"  # only a name: where it lies is ours


THIRTEEN = {f"{number}.jpg": b"x" for number in range(13)}
EMPTY = {"cat.jpg": b"\xff\xd8cat", "void.jpg": b""}
LARGE = {"large.jpg": bytes(300_001)}
WRONG: dict[str, tuple[type[Exception], bytes]] = {
    "a file of another name": (BadRequestBody, form_of(part("picture", b"x", "a.jpg"))),
    "a picture without a file name": (BadRequestBody, form_of(part("image", b"x"))),
    "an archive without a file name": (BadRequestBody, form_of(part("archive", b"x"))),
    "pictures and an archive": (BadRequestBody, form_of(*images(PICTURES), part("archive", b"x", "a.zip"))),
    "an archive and pictures": (BadRequestBody, form_of(part("archive", b"x", "a.zip"), *images(PICTURES))),
    "two archives": (BadRequestBody, form_of(part("archive", b"x", "a.zip"), part("archive", b"x", "a.zip"))),
    "a field that is no text": (BadRequestBody, form_of(part("name", b"\xff"))),
    "a long name": (BadRequestBody, form_of(part("image", b"x", "x" * 1025))),
    "no archive": (BadArchive, form_of(part("archive", b"x" * 1000, "a.zip"))),
    "a bad archive behind good pictures": (BadArchive, form_of(part("archive", a_zip({**PICTURES, "../x": b""}), "a"))),
    "too many fields": (JobTooLarge, form_of(*images(PICTURES), *[part(f"f{i}", b"") for i in range(101)])),
    "too much in fields": (JobTooLarge, form_of(*images(PICTURES), part("name", b"x" * 600_000))),
    "too many pictures": (TooManyItems, form_of(*images(THIRTEEN))),
    "too many pictures in an archive": (TooManyItems, form_of(part("archive", a_zip(THIRTEEN), "a"))),
    "a large picture": (TooManyBytes, form_of(*images(PICTURES), *images(LARGE))),
    "a large picture in an archive": (TooManyBytes, form_of(part("archive", a_tar(LARGE), "a"))),
    "an empty picture": (EmptyImage, form_of(*images(EMPTY))),
    "an empty picture in an archive": (EmptyImage, form_of(part("archive", a_tar(EMPTY), "a"))),
    "a large body": (JobTooLarge, form_of(*images({f"{i}": bytes(300_000) for i in range(4)}))),
    **{f"broken: {name}": (BadRequestBody, body) for name, body in BROKEN.items() if name != "a preamble without end"},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_refused_leaves_nothing_behind(small: Callable[..., Desk], what: str) -> None:
    desk = small(max_job_items=12, max_body_bytes=300_000, max_job_bytes=1_000_000)
    error, body = WRONG[what]
    with pytest.raises(error) as raised:
        desk.take(in_pieces(body, [50_000]))
    assert desk.leftovers() == []
    if error in (TooManyItems, TooManyBytes, JobTooLarge):
        assert "HEATLENS_MAX_" in str(raised.value)
    if error is EmptyImage:
        assert "'void.jpg' is empty" in str(raised.value)


@pytest.mark.parametrize(
    "nothing",
    [part("image", b"", ""), part("archive", b"", ""), part("", b""), part("x", b"")],
    ids=["image", "archive", "no name", "field"],
)
def test_parts_that_are_nothing_are_counted_too(small: Callable[..., Desk], nothing: bytes) -> None:
    """Each costs time, and 60,000 of them are a small body: what follows the first that is too many is not read."""
    desk, read = small(), 0
    parts_at_once = 10

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(60_000 // parts_at_once):
            read += parts_at_once
            yield nothing * parts_at_once

    with pytest.raises(JobTooLarge, match="HEATLENS_MAX_FORM_FIELDS"):
        desk.take(chunks())
    assert read <= desk.settings.max_form_fields + 2 * parts_at_once
    assert desk.leftovers() == []


def test_what_is_just_within_the_limits_is_taken(small: Callable[..., Desk]) -> None:
    files = {f"{number}": bytes(80_000) for number in range(11)} | {"largest": bytes(100_000)}
    body = form_of(*images(files), *[part(f"f{number}", b"") for number in range(100)])
    desk = small(max_job_items=12, max_body_bytes=100_000, max_job_bytes=len(body))
    assert desk.take(body).total == 12


class Hangup(Exception):
    pass


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize(
    "body",
    [form_of(*images(PICTURES)), form_of(part("archive", os.urandom(250_000), "a"))],
    ids=["images", "archive"],
)
@pytest.mark.parametrize("error", [Hangup, SystemExit, KeyboardInterrupt])
def test_a_client_that_goes_away_leaves_nothing_behind(
    small: Callable[..., Desk], body: bytes, after: int, error: type[BaseException]
) -> None:
    desk = small()

    def chunks() -> Iterator[bytes]:
        for number, chunk in enumerate(in_pieces(body, [60_000])):
            if number == after:
                raise error
            yield chunk

    with pytest.raises(error):
        desk.take(chunks())
    assert desk.leftovers() == []


def test_nothing_is_seen_of_a_job_before_it_is_whole(small: Callable[..., Desk]) -> None:
    desk = small()
    body = form_of(*images({f"{number}": b"x" for number in range(3000)}))
    seen: list[int] = []

    def chunks() -> Iterator[bytes]:
        for chunk in in_pieces(body, [60_000]):
            seen.append(len(desk.ledger.jobs(limit=10)))
            yield chunk

    job = desk.take(chunks())
    assert set(seen) == {0}
    assert [each.id for each in desk.ledger.jobs(limit=10)] == [job.id]


# Room and quotas.


def test_a_disk_with_less_than_what_is_to_stay_free_takes_nothing(small: Callable[..., Desk], tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    desk = small(min_free_bytes=2 * free)
    with pytest.raises(OutOfSpace, match="HEATLENS_MIN_FREE_BYTES"):
        desk.take(form_of(*images(PICTURES)))
    assert desk.leftovers() == []


def test_a_disk_on_which_few_files_may_still_be_made_takes_nothing(tmp_path: Path) -> None:
    """A real one, of 1 MiB and 40 files: it has bytes left when it has no files left."""
    with disk(tmp_path / "disk", 2**20, files=40) as small_disk, artifacts_on(small_disk.folder, tmp_path) as desk:
        with pytest.raises(OutOfSpace, match="HEATLENS_MIN_FREE_FILES") as refused:
            desk.take(form_of(*images({f"{number}.jpg": b"x" for number in range(40)})))
        assert refused.value.extra["limit"] == 10
        assert [path for path in small_disk.folder.rglob("*") if path.is_file()] == []
        assert desk.take(form_of(*images({f"{number}.jpg": b"x" for number in range(20)}))).total == 20


@contextmanager
def artifacts_on(folder: Path, tmp_path: Path) -> Iterator[Desk]:
    database = Database(Settings(data_dir=tmp_path))
    database.migrate()
    yield Desk(database, artifacts_url=f"file://{folder}", min_free_bytes=0, min_free_files=10)
    database.close()


@pytest.mark.parametrize("body", [form_of(*images(PICTURES)), form_of(part("archive", a_zip(PICTURES), "a.zip"))])
def test_room_that_ends_while_it_comes_ends_the_upload(
    small: Callable[..., Desk], body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = small()
    looks = iter([*[Room(2**40, None)] * 3, Room(0, None)])
    monkeypatch.setattr(desk.store, "room", lambda: next(looks))
    with pytest.raises(OutOfSpace):
        desk.take(body)
    assert desk.leftovers() == []


def test_a_disk_that_is_full_before_anybody_looked_is_said_so(small: Callable[..., Desk]) -> None:
    """`/dev/full` is always full: writing there fails as a full disk does."""
    desk, form = small(), Form()
    with desk.draft() as draft, open("/dev/full", "wb", buffering=0) as full:
        from app.jobs import intake

        with pytest.raises(OutOfSpace), intake._working_folder():
            full.write(b"x")
        form.close()
        assert draft.count == 0


def test_a_data_folder_that_does_not_work_is_a_503_to_come(small: Callable[..., Desk], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    desk = small()
    away = desk.settings.model_copy(update={"data_dir": tmp_path / "file" / "data"})
    body = form_of(part("archive", a_zip(PICTURES), "a.zip"))
    with desk.draft() as draft, closing(Form()) as form, pytest.raises(JobsUnavailable, match="HEATLENS_DATA_DIR"):
        read_form([body], BOUNDARY, draft, form, away)


def test_a_store_that_does_not_work_is_a_503_to_come(small: Callable[..., Desk], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    desk = small(artifacts_url=f"file://{tmp_path}/file/store")
    with pytest.raises(JobsUnavailable, match="store"):
        desk.take(form_of(*images(PICTURES)))


def test_a_caller_has_a_quota_of_unfinished_jobs(small: Callable[..., Desk]) -> None:
    desk = small(max_caller_jobs=2)
    body = form_of(*images(PICTURES))
    first = desk.take(body)
    desk.take(body)
    with pytest.raises(QuotaExceeded, match="HEATLENS_MAX_CALLER_JOBS") as refused:
        desk.take(body)
    assert (refused.value.extra["limit"], refused.value.field) == (2, "jobs")
    desk.take(body, owner="somebody else")
    desk.ledger.cancel(first.id)
    assert desk.take(body).total == 4


def test_a_caller_has_a_quota_of_bytes(small: Callable[..., Desk]) -> None:
    """Each time 3000 bytes; in the end 9000 are too many for 8999, and not for 9000."""
    body = form_of(*images({"a": bytes(1000), "b": bytes(2000)}))
    desk = small(max_caller_bytes=8999)
    first = desk.take(body)
    desk.take(body)
    with pytest.raises(QuotaExceeded, match="HEATLENS_MAX_CALLER_BYTES"):
        desk.take(body)
    desk.take(body, owner="somebody else")
    assert small(max_caller_bytes=9000).take(body).total == 2
    desk.ledger.delete(first.id)
    with pytest.raises(QuotaExceeded):
        small(max_caller_bytes=8999).take(form_of(*images({"c": bytes(3000)})))


# The same again.


def test_the_same_again_with_a_key_is_the_same_job_and_nothing_is_kept_twice(desk: Desk) -> None:
    body = form_of(*images(PICTURES))
    job = desk.take(body, key="k", alpha=0.5)
    files = len(desk.leftovers())
    assert desk.take(body, key="k", alpha=0.5).id == job.id
    assert len(desk.leftovers()) == files
    assert desk.take(body, key="k", alpha=0.5, owner="somebody else").id != job.id
    assert desk.take(body, key="l", alpha=0.5).id != job.id
    assert desk.take(body, alpha=0.5).id != job.id
    assert desk.pictures(job) == list(PICTURES.items())


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (PICTURES, {"alpha": 0.6}),
        (PICTURES, {"alpha": 0.5, "name": "another"}),
        (PICTURES, {"alpha": 0.5, "webhook": "https://example.org/"}),
        (dict(reversed(PICTURES.items())), {"alpha": 0.5}),
        ({**PICTURES, "cat.jpg": b"another"}, {"alpha": 0.5}),
        ({**PICTURES, "more.jpg": b"x"}, {"alpha": 0.5}),
    ],
)
def test_another_payload_with_the_key_is_a_conflict(
    small: Callable[..., Desk], files: dict[str, bytes], options: dict[str, Any]
) -> None:
    desk = small()
    desk.take(form_of(*images(PICTURES)), key="k", alpha=0.5)
    left = desk.leftovers()
    with pytest.raises(IdempotencyConflict):
        desk.take(form_of(*images(files)), key="k", **options)
    assert desk.leftovers() == left


def test_a_submission_that_was_not_accepted_leaves_nothing(
    small: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = small()

    def go_away(*_args: Any, **_options: Any) -> JobRow:
        raise JobsUnavailable("It went away.")

    monkeypatch.setattr(desk.ledger, "submit", go_away)
    with pytest.raises(JobsUnavailable):
        desk.take(form_of(*images(PICTURES)), key="k")
    assert desk.leftovers() == []


def test_a_submission_of_which_nobody_knows_whether_it_was_accepted_is_left_alone(
    small: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away with its answer: if it had taken the job, its pictures must not be gone."""
    desk = small()
    accept = desk.ledger.submit

    def lose_the_answer(*args: Any, **options: Any) -> JobRow:
        accept(*args, **options)
        raise JobsUnavailable("It went away.")

    monkeypatch.setattr(desk.ledger, "submit", lose_the_answer)
    with pytest.raises(JobsUnavailable):
        desk.take(form_of(*images(PICTURES)), key="k")
    monkeypatch.undo()
    job = desk.take(form_of(*images(PICTURES)), key="k")
    assert desk.pictures(job) == list(PICTURES.items())
    assert len(desk.ledger.jobs(limit=10)) == 1


def test_items_of_a_source_are_kept_as_urls(small: Callable[..., Desk]) -> None:
    desk = small(max_job_items=2)
    with desk.draft() as draft:
        draft.add_found(NewItem("a.jpg", "s3://bucket/a.jpg"))
        draft.add_found(NewItem("b.jpg", "s3://bucket/b.jpg"))
        with pytest.raises(TooManyItems):
            draft.add_found(NewItem("c.jpg", "s3://bucket/c.jpg"))
        job = draft.submit(Asked(JobOptions(), {}), key=None)
    assert [item.input for item in desk.ledger.items(job.id, limit=9)] == ["s3://bucket/a.jpg", "s3://bucket/b.jpg"]


# Options.


def test_options_of_text_are_put_together_by_name() -> None:
    fields = [
        ("target", ["281", "cat"]),
        ("artifacts", ["map", "overlay"]),
        ("method", ["gradcam  "]),
        ("alpha", ["1"]),
    ]
    assert options_of([*fields, ("layer", [""]), ("versus", ["7"])]) == {
        "target": [281, "cat"],
        "artifacts": ["map", "overlay"],
        "method": "gradcam++",
        "alpha": "1",
        "versus": 7,
    }
    with pytest.raises(BadOption, match="2 times"):
        options_of([("alpha", ["1", "1"])])
    with pytest.raises(ServiceError):
        options_of([("", ["1"])])


def test_an_option_is_given_in_the_query_or_in_the_body() -> None:
    assert together({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(BadOption, match="a is given in the query and in the body"):
        together({"a": 1}, {"a": 1})
