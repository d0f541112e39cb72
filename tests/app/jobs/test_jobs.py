"""The use cases of jobs, on both databases: what becomes a job, and that one asked for twice is one."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import Settings
from app.errors import (
    BadOption,
    BadRequestBody,
    IdempotencyConflict,
    JobState,
    JobsUnavailable,
    NoPictures,
    QuotaExceeded,
    ServiceError,
    SourceNotAllowed,
    SourceUnreadable,
    TooManyItems,
    UnknownJob,
    UnknownOption,
)
from app.jobs.database import Database
from app.jobs.jobs import Jobs, Made
from app.jobs.rows import JobRow, NewItem
from app.service import Service
from tests.app.jobs.test_intake import BOUNDARY, PICTURES, a_zip, form_of, images, part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    for name in ("10.jpg", "9.jpg", "sub/1.png", "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def made(settings: Settings, database: Database, folder: Path) -> Iterator[Jobs]:
    changes = {"job_sources": (f"file://{folder}",), "max_caller_jobs": 4}
    settings = settings.model_copy(update=changes)
    service = Service(settings)
    jobs = Jobs(settings, service)
    yield jobs
    jobs.database.close()
    service.close()


def receive(jobs: Jobs, body: bytes, query: dict[str, str] | None = None, *, key: str | None = None) -> Made:
    return jobs.receive([body], BOUNDARY, query or {}, owner="me", key=key)


def listed(jobs: Jobs) -> list[str]:
    return [job.id for job in jobs.ledger.jobs(limit=100)]


def test_options_of_query_and_form_are_those_of_the_job(made: Jobs) -> None:
    body = form_of(part("alpha", b"0.25"), *images(PICTURES), part("target", b"3"), part("samples", b"4"))
    job = receive(made, body, {"method": "smoothgrad", "name": "mine", "artifacts": "map"}).job
    assert (job.name, job.total, job.status) == ("mine", 4, "queued")
    assert job.options == {
        "method": "smoothgrad",
        "artifacts": ["map"],
        "alpha": 0.25,
        "target": [3],
        "samples": "4",  # a method's own parameter is kept as it was given
    }


def test_a_name_is_kept_without_what_no_database_or_terminal_takes(made: Jobs) -> None:
    job = receive(made, form_of(*images(PICTURES), part("name", b"a\0b\x1b[2J"))).job
    assert made.ledger.job(job.id).name == "a\ufffdb\ufffd[2J"


def test_a_source_becomes_a_job_of_what_is_there_now(made: Jobs, folder: Path) -> None:
    job = made.create({"source": f"file://{folder}", "method": "saliency"}, owner="me").job
    (folder / "11.jpg").write_bytes(b"too late")
    items = made.ledger.items(job.id, limit=10)
    assert [item.name for item in items] == ["9.jpg", "10.jpg", "sub/1.png"]
    assert [item.input for item in items] == [f"file://{folder}/{item.name}" for item in items]
    assert (job.size_bytes, job.options) == (0, {"method": "saliency"})


def test_a_source_may_be_a_field_of_a_form(made: Jobs, folder: Path) -> None:
    assert receive(made, form_of(part("source", f"file://{folder}/*.jpg".encode()))).job.total == 2


def test_pictures_that_somebody_found_become_a_job(made: Jobs) -> None:
    items = (NewItem(f"{number}.jpg", f"file:///somewhere/{number}.jpg") for number in range(1500))
    job = made.create_of(items, {"method": "saliency"}, owner="me").job
    assert job.total == 1500
    assert made.ledger.item(job.id, 1499).input == "file:///somewhere/1499.jpg"


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (NoPictures, {}),
        (UnknownOption, {"source": "file://{folder}", "colour": "red"}),
        (BadOption, {"source": "file://{folder}", "alpha": 7}),
        (BadOption, {"source": 7}),
        (SourceNotAllowed, {"source": "file:///etc"}),
        (SourceUnreadable, {"source": "file://{folder}/none"}),
        (NoPictures, {"source": "file://{folder}/*.gif"}),
    ],
)
def test_a_source_that_gives_no_job_leaves_nothing(
    made: Jobs, folder: Path, error: type[Exception], given: dict[str, object]
) -> None:
    given = {
        name: str(value).replace("{folder}", str(folder)) if name == "source" and value != 7 else value
        for name, value in given.items()
    }
    with pytest.raises(error):
        made.create(given, owner="me")
    assert made.ledger.usage("me").unfinished_jobs == 0  # not even one that is being received


@pytest.mark.parametrize(
    ("error", "body", "query"),
    [
        (NoPictures, form_of(), {}),
        (NoPictures, form_of(part("archive", a_zip({}), "empty.zip")), {}),
        (NoPictures, form_of(part("archive", a_zip({"folder/": b"", ".DS_Store": b"x"}), "empty.zip")), {}),
        (UnknownOption, form_of(*images(PICTURES), part("colour", b"red")), {}),
        (BadOption, form_of(*images(PICTURES), part("alpha", b"7")), {}),
        (BadOption, form_of(*images(PICTURES), part("alpha", b"0.5")), {"alpha": "0.5"}),
        (BadRequestBody, form_of(*images(PICTURES), part("source", b"file:///etc")), {}),
        (BadRequestBody, form_of(part("archive", a_zip(PICTURES), "a.zip")), {"source": "file:///etc"}),
        (SourceNotAllowed, form_of(part("source", b"file:///etc")), {}),
    ],
)  # fmt: skip
def test_a_form_that_gives_no_job_leaves_nothing(
    made: Jobs, error: type[Exception], body: bytes, query: dict[str, str]
) -> None:
    with pytest.raises(error):
        receive(made, body, query)
    assert made.ledger.usage("me").unfinished_jobs == 0
    stored = made.settings.data_dir / "jobs"
    assert not stored.exists() or not [path for path in stored.rglob("*") if path.is_file()]


def test_a_source_of_more_pictures_than_the_limit_is_refused(made: Jobs, folder: Path) -> None:
    made.settings = made.settings.model_copy(update={"max_job_items": 2})
    with pytest.raises(TooManyItems):
        made.create({"source": f"file://{folder}"}, owner="me")
    made.settings = made.settings.model_copy(update={"max_job_items": 3})
    assert made.create({"source": f"file://{folder}"}, owner="me").job.total == 3


def test_what_a_query_says_wrong_is_known_before_the_body(made: Jobs) -> None:
    made.check_early({"method": "rise", "samples": "10", "source": "file:///etc"})
    for query, error in (
        ({"colour": "red"}, UnknownOption),
        ({"alpha": "x"}, BadOption),
        ({"format": "npz"}, BadOption),
    ):
        with pytest.raises(error):
            made.check_early(query)


def test_the_same_again_is_a_replay_also_where_no_more_jobs_may_be(made: Jobs, folder: Path) -> None:
    source = {"source": f"file://{folder}"}
    first = made.create(source, owner="me", key="k")
    assert not first.replayed
    (folder / "11.jpg").write_bytes(b"new, but the pattern is the same")
    again = made.create(source, owner="me", key="k")
    assert (again.replayed, again.job.id) == (True, first.job.id)
    for _ in range(3):
        made.create(source, owner="me")
    with pytest.raises(QuotaExceeded):
        made.create(source, owner="me")
    with pytest.raises(QuotaExceeded):
        made.create(source, owner="me", key="another")
    assert made.create(source, owner="me", key="k").job.id == first.job.id
    for other in ({"source": f"file://{folder}/*"}, source | {"alpha": 0.5}, source | {"name": "x"}):
        with pytest.raises(IdempotencyConflict):
            made.create(other, owner="me", key="k")
    assert made.ledger.usage("me").unfinished_jobs == 4


def test_of_many_at_once_with_one_key_one_becomes_the_job(made: Jobs) -> None:
    """The end of each body comes when all of the rest of all has come."""
    bodies = [form_of(*images(PICTURES))] * 4 + [form_of(*images({"other.jpg": b"x"}))] * 2
    made.settings = made.settings.model_copy(update={"max_caller_jobs": 10})
    together = threading.Barrier(len(bodies))
    outcomes: list[Made | ServiceError] = []

    def post(body: bytes) -> None:
        def chunks() -> Iterator[bytes]:
            yield body[:-10]
            together.wait(30)
            yield body[-10:]

        try:
            outcomes.append(made.receive(chunks(), BOUNDARY, {}, owner="me", key="k"))
        except IdempotencyConflict as conflict:
            outcomes.append(conflict)

    threads = [threading.Thread(target=post, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    jobs = [each for each in outcomes if isinstance(each, Made)]
    conflicts = [each for each in outcomes if isinstance(each, IdempotencyConflict)]
    assert len(jobs) + len(conflicts) == len(bodies)
    assert len({each.job.id for each in jobs}) == 1
    assert sum(not each.replayed for each in jobs) == 1
    assert len(conflicts) in (2, 4)  # those of the other payload
    assert len(listed(made)) == 1
    assert made.ledger.usage("me").unfinished_jobs == 1
    folders = [path.name for path in (made.settings.data_dir / "jobs").iterdir() if any(path.rglob("0*"))]
    assert folders == [jobs[0].job.id]


@pytest.mark.parametrize("error", [JobsUnavailable("away"), RuntimeError("a bug")])
def test_what_was_accepted_keeps_its_pictures_whatever_fails_then(
    made: Jobs, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job_id: str) -> JobRow:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(made.ledger, "job", fail)  # which is asked once the job was committed
        with pytest.raises(type(error)):
            receive(made, form_of(*images(PICTURES)))
    (job_id,) = listed(made)
    inputs = [item.input.removeprefix("store:") for item in made.ledger.items(job_id, limit=10)]
    assert [made.store.read(key) for key in inputs] == list(PICTURES.values())


def test_a_job_can_be_cancelled_tried_again_and_deleted(made: Jobs) -> None:
    job = receive(made, form_of(*images(PICTURES))).job
    with pytest.raises(JobState):
        made.retry(job.id)
    assert made.cancel(job.id).status == "cancelled"
    assert made.retry(job.id).status == "queued"
    made.delete(job.id)
    for act in (made.cancel, made.retry, made.delete):
        with pytest.raises(UnknownJob):
            act(job.id)
    assert listed(made) == []
