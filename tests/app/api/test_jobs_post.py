"""`POST /v1/jobs`, and what is done to jobs, over HTTP: in this process, and a real server."""

import io
import itertools
import json
import re
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from app.jobs.database import Database
from app.jobs.options import JobOptions
from app.schemas.jobs import JobAnswer
from tests.app.jobs.test_intake import BOUNDARY, PICTURES, a_zip, form_of, images, part
from tests.conftest import Server, start_server, stop_server

URL = "/v1/jobs"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("1.jpg", "2.jpg"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def settings(tmp_path: Path, folder: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        job_sources=(f"file://{folder}",),
        max_job_bytes=MIB,
        max_job_items=10,
        max_body_bytes=250_000,
        max_caller_jobs=3,
    )


@pytest.fixture
def http(settings: Settings) -> Iterator[FlaskClient]:
    database = Database(settings)
    database.migrate()
    database.close()
    app = create_app(settings)
    yield app.test_client()
    app.extensions["heatlens"].close()


def post(http: FlaskClient, body: bytes, query: str = "", **headers: str) -> TestResponse:
    return http.post(f"{URL}?{query}", data=body, content_type=FORM, headers=headers)


def accepted(response: TestResponse) -> JobAnswer:
    assert response.status_code == 202, response.text
    answer = JobAnswer.model_validate_json(response.data)
    assert response.headers["Location"] == f"/v1/jobs/{answer.id}" == answer.links.self_
    return answer


def names(http: FlaskClient, job: JobAnswer) -> list[str]:
    return [item["name"] for item in http.get(job.links.items).json["items"]]


def test_pictures_become_a_job_that_can_be_asked_for(http: FlaskClient) -> None:
    files = [(io.BytesIO(data), name) for name, data in PICTURES.items()]
    form = {"image": files, "method": "saliency", "target": ["1", "2"], "artifacts": ["map", "overlay"], "name": "mine"}
    job = accepted(http.post(URL, data=form))
    assert (job.name, job.status, job.progress.total, job.progress.done) == ("mine", "queued", 4, 0)
    assert job.options == {"method": "saliency", "target": [1, 2], "artifacts": ["map", "overlay"]}
    assert http.get(f"{URL}/{job.id}").json["id"] == job.id
    assert names(http, job) == list(PICTURES)


def test_an_archive_and_a_source_become_jobs_too(http: FlaskClient, folder: Path) -> None:
    job = accepted(post(http, form_of(part("archive", a_zip(PICTURES), "p.zip"), part("alpha", b"0.5")), "method=rise"))
    assert job.options == {"alpha": 0.5, "method": "rise"}
    assert names(http, job) == list(PICTURES)
    job = accepted(http.post(f"{URL}?name=x", json={"source": f"file://{folder}", "target": 3, "artifacts": "map"}))
    assert (job.name, job.options) == ("x", {"target": [3], "artifacts": ["map"]})
    assert names(http, job) == ["1.jpg", "2.jpg"]
    job = accepted(http.post(f"{URL}?source=file://{folder}/1.jpg"))
    assert names(http, job) == ["1.jpg"]


def archived(files: dict[str, bytes]) -> bytes:
    return form_of(part("archive", a_zip(files), "a.zip"))


ONE = form_of(part("image", b"x", "a.jpg"))
ALPHA = form_of(part("alpha", b"0"))
LARGE = {f"{number}": bytes(190_000) for number in range(6)}
BAD: dict[str, tuple[int, str, str | None, dict[str, Any]]] = {
    "an unknown option in the query": (422, "unknown_option", "colour", {"query_string": "colour=red"}),
    "a bad option in the query": (422, "bad_option", "alpha", {"query_string": "alpha=7"}),
    "an unknown option in the form": (422, "unknown_option", "colour", {"data": form_of(part("colour", b"red"))}),
    "an unknown method": (422, "unknown_method", "method", {"data": form_of(part("method", b"x"))}),
    "a format that a job has not": (422, "bad_option", "format", {"query_string": "format=npz"}),
    "an option given twice": (422, "bad_option", "alpha", {"query_string": "alpha=0.1&alpha=0.2"}),
    "an option here and there": (422, "bad_option", "alpha", {"query_string": "alpha=0.1", "data": ALPHA}),
    "a field without a name": (400, "bad_request_body", None, {"query_string": "=1"}),
    "a webhook that is not sent": (422, "bad_webhook", "webhook", {"query_string": "webhook=https://example.org/"}),
    "nothing": (422, "no_pictures", None, {"data": form_of()}),
    "no body": (422, "no_pictures", "source", {"data": b"", "content_type": ""}),
    "an empty archive": (422, "no_pictures", None, {"data": archived({})}),
    "a nested archive": (422, "bad_archive", "archive", {"data": archived({"b": a_zip({})})}),
    "a name that leads out": (422, "bad_archive", "archive", {"data": archived({"../b": b""})}),
    "too many pictures": (413, "too_many_items", None, {"data": form_of(*images({f"{i}": b"x" for i in range(11)}))}),
    "a large picture": (413, "image_too_many_bytes", "image", {"data": form_of(part("image", bytes(250_001), "a"))}),
    "a large body": (413, "job_too_large", None, {"data": form_of(*images(LARGE))}),
    "a file of another name": (400, "bad_request_body", "image", {"data": form_of(part("file", b"x", "a.jpg"))}),
    "a body cut off": (400, "bad_request_body", None, {"data": ONE[:-30]}),
    "no boundary": (400, "bad_request_body", "Content-Type", {"content_type": "multipart/form-data"}),
    "a strange boundary": (400, "bad_request_body", "Content-Type", {"content_type": FORM + 71 * "x"}),
    "another type": (415, "unsupported_media_type", "Content-Type", {"content_type": "image/jpeg"}),
    "a compressed body": (415, "unsupported_media_type", "Content-Encoding", {"headers": {"Content-Encoding": "gzip"}}),
    "no JSON": (400, "bad_request_body", None, {"data": b"{", "content_type": "application/json"}),
    "JSON that is no object": (400, "bad_request_body", None, {"data": b"[]", "content_type": "application/json"}),
    "half a letter": (400, "bad_request_body", None, {"data": rb'{"x": "\ud800"}', "content_type": "application/json"}),
    "no number": (400, "bad_request_body", None, {"data": b'{"alpha": NaN}', "content_type": "application/json"}),
    "no finite number": (400, "bad_request_body", None, {"data": b'{"x": 1e999}', "content_type": "application/json"}),
    "a source that is no text": (422, "bad_option", "source", {"json": {"source": ["a"]}}),
    "a source that is not allowed": (403, "source_not_allowed", "source", {"json": {"source": "file:///etc"}}),
    "a source and pictures": (400, "bad_request_body", "source", {"query_string": "source=file:///etc"}),
    "an empty key": (422, "bad_option", "Idempotency-Key", {"headers": {"Idempotency-Key": ""}}),
    "a key with a space": (422, "bad_option", "Idempotency-Key", {"headers": {"Idempotency-Key": "a b"}}),
    "a long key": (422, "bad_option", "Idempotency-Key", {"headers": {"Idempotency-Key": "k" * 256}}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_refused_by_name_before_there_is_a_job(
    http: FlaskClient, settings: Settings, what: str
) -> None:
    status, code, field, request = BAD[what]
    if "json" not in request:
        request = {"data": ONE, "content_type": FORM, **request}
    response = http.post(URL, **request)
    problem = json.loads(response.data)
    assert (response.status_code, problem["code"], problem.get("field")) == (status, code, field)
    assert response.content_type == "application/problem+json"
    assert http.get(URL).json["jobs"] == []
    files = [path for path in settings.data_dir.rglob("*") if path.is_file() and "jobs.db" not in path.name]
    assert files == []
    if status == 413:
        assert "HEATLENS_MAX_" in problem["detail"]
        assert problem["limit"] > 0


class _Unread(io.RawIOBase):
    """A body that must not be read."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: object) -> int:
        pytest.fail("the body was read")


@pytest.mark.parametrize(
    ("query", "length", "code"), [("colour=red", 1000, "unknown_option"), ("", MIB + 1, "job_too_large")]
)
def test_what_is_known_before_the_body_is_said_without_reading_it(
    http: FlaskClient, query: str, length: int, code: str
) -> None:
    environ = {"wsgi.input": io.BufferedReader(_Unread()), "CONTENT_LENGTH": str(length)}
    response = http.post(f"{URL}?{query}", content_type=FORM, environ_overrides=environ)
    assert json.loads(response.data)["code"] == code


def test_a_key_makes_the_same_request_one_job(http: FlaskClient) -> None:
    key = {"Idempotency-Key": "!" + "~" * 254}
    first = post(http, ONE, "alpha=0.5", **key)
    again = post(http, ONE, "alpha=0.5", **key)
    assert accepted(first).id == accepted(again).id
    assert ("Idempotency-Replayed" in first.headers, again.headers["Idempotency-Replayed"]) == (False, "true")
    other = post(http, ONE, "alpha=0.6", **key)
    assert (other.status_code, other.json["code"], other.json["field"]) == (
        422,
        "idempotency_conflict",
        "Idempotency-Key",
    )
    assert other.json["job"] == accepted(first).id
    assert len(http.get(URL).json["jobs"]) == 1


def test_a_client_has_a_quota_and_is_told_when_to_come_again(http: FlaskClient) -> None:
    for _ in range(3):
        accepted(post(http, ONE))
    refused = post(http, ONE)
    assert (refused.status_code, refused.json["code"], refused.json["limit"]) == (429, "quota_exceeded", 3)
    assert int(refused.headers["Retry-After"]) > 0
    other = http.post(URL, data=ONE, content_type=FORM, environ_overrides={"REMOTE_ADDR": "192.0.2.1"})
    accepted(other)


def test_a_job_is_cancelled_tried_again_and_deleted(http: FlaskClient) -> None:
    job = accepted(post(http, ONE))
    early = http.post(job.links.retry)
    assert (early.status_code, early.json["code"]) == (409, "job_state")
    cancelled = http.post(job.links.cancel)
    assert (cancelled.status_code, JobAnswer.model_validate_json(cancelled.data).status) == (200, "cancelled")
    again = http.post(job.links.retry)
    assert (again.status_code, JobAnswer.model_validate_json(again.data).status) == (202, "queued")
    deleted = http.delete(job.links.self_)
    assert (deleted.status_code, deleted.data) == (204, b"")
    for response in (http.get(job.links.self_), http.delete(job.links.self_), http.post(job.links.cancel)):
        assert (response.status_code, response.json["code"]) == (404, "unknown_job")


def test_the_document_has_every_option_in_every_place(http: FlaskClient) -> None:
    operation = http.get("/openapi.json").json["paths"]["/v1/jobs"]["post"]
    options = set(JobOptions.model_fields)
    query = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
    assert options | {"source", "samples"} <= query
    assert "X-Request-Deadline-S" not in str(operation)
    bodies = operation["requestBody"]["content"]
    form, as_json = (bodies[kind]["schema"]["properties"] for kind in ("multipart/form-data", "application/json"))
    assert options | {"image", "archive", "source", "samples"} <= form.keys()
    assert options | {"source", "samples"} <= as_json.keys()
    assert "image" not in as_json
    assert form["image"] == {**form["image"], "type": "array", "items": {"type": "string", "format": "binary"}}
    assert operation["responses"]["202"]["headers"].keys() == {"Location", "Idempotency-Replayed"}


# A real server.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("served")
    database = Database(Settings(data_dir=data_dir))
    database.migrate()
    database.close()
    running = start_server(
        workers="1", torch_threads="1", log_level="warning", data_dir=str(data_dir), max_job_bytes=str(400 * MIB)
    )
    yield running
    stop_server(running)


def _worker(server: Server) -> int:
    pid = server.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(worker)


def _peak_bytes(pid: int) -> int:
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) * 1024


_CHUNK = bytes(range(256)) * 256


def _many(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield part("image", b"", f"{number}.jpg")[:-2]
        yield from itertools.repeat(_CHUNK, size // len(_CHUNK))
        yield b"\r\n"
    yield form_of()


def _tar(count: int, size: int) -> Iterator[bytes]:
    """The same as one archive, with nothing but blocks of 512 bytes in it."""
    yield part("archive", b"", "pictures.tar")[:-2]
    for number in range(count):
        info = tarfile.TarInfo(f"{number}.jpg")
        info.size = size
        yield info.tobuf()
        yield from itertools.repeat(_CHUNK, size // len(_CHUNK))
    yield bytes(1024) + b"\r\n" + form_of()


@pytest.mark.server
@pytest.mark.parametrize("body", [_many, _tar])
def test_an_upload_takes_no_memory_whatever_its_size(
    server: Server, body: Callable[[int, int], Iterator[bytes]]
) -> None:
    """320 MiB come, and the worker's peak grows by less than a tenth of it."""
    worker = _worker(server)
    Path(f"/proc/{worker}/clear_refs").write_text("5")  # the peak is what is there now
    before = _peak_bytes(worker)
    content = body(20, 16 * MIB)
    answer = httpx.post(f"{server.url}/v1/jobs", content=content, headers={"Content-Type": FORM}, timeout=300)
    assert answer.status_code == 202, answer.text
    assert answer.json()["size_bytes"] == 320 * MIB
    assert _peak_bytes(worker) - before < 32 * MIB
    assert httpx.delete(f"{server.url}{answer.json()['links']['self']}", timeout=60).status_code == 204


@pytest.mark.server
def test_a_body_in_chunks_beyond_the_limit_is_refused(server: Server) -> None:
    answer = httpx.post(
        f"{server.url}/v1/jobs", content=_many(26, 16 * MIB), headers={"Content-Type": FORM}, timeout=300
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "job_too_large")
    assert httpx.get(f"{server.url}/v1/jobs", timeout=60).json()["jobs"] == []


@pytest.mark.server
@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_client_that_hangs_up_leaves_nothing(server: Server, length: str) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\nContent-Type: {FORM}\r\n{length}\r\n\r\n"
        body = part("image", b"x" * 1000, "a.jpg")
        if "chunked" in length:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0]
    assert b'"code": "bad_request_body"' in answer
    assert httpx.get(f"{server.url}/v1/jobs", timeout=60).json()["jobs"] == []
