"""What the routes below `/v1/jobs` tell of jobs that a ledger and a store were filled with."""

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from app import create_app
from app.api.cursors import read_cursor, write_cursor
from app.config import Settings
from app.errors import BadOption
from app.jobs.artifacts import Store, result_key
from app.jobs.reading import Reading
from app.jobs.rows import Outcome
from app.schemas.jobs import ItemAnswer, JobAnswer
from tests.app.jobs.books import FAULT, Book, file_names, opened, result

UNKNOWN = "0" * 32


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with opened(Settings(data_dir=tmp_path, event_streams=2)) as book:
        yield book


@pytest.fixture
def http(book: Book) -> Iterator[FlaskClient]:
    app = create_app(book.settings)
    yield app.test_client()
    app.extensions["heatlens"].close()


def get(http: FlaskClient, path: str, **query: Any) -> Any:
    answer = http.get(path, query_string=query)
    assert answer.status_code == 200, answer.text
    return answer.json


def refused(http: FlaskClient, path: str, **query: Any) -> tuple[int, str, str | None]:
    answer = http.get(path, query_string=query)
    assert answer.content_type == "application/problem+json"
    return answer.status_code, answer.json["code"], answer.json.get("field")


def numbers(listing: Any) -> list[int]:
    return [item["number"] for item in listing["items"]]


def test_a_job_has_the_shape_that_was_promised(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    book.ledger.begin(job_id, 0)
    book.succeed(job_id, 0, 1)
    book.fail(job_id, 2)
    job = get(http, f"/v1/jobs/{job_id}")
    assert JobAnswer.model_validate(job, by_alias=True)
    promised = {
        "id", "name", "status", "progress", "rate_per_s", "eta_s", "created_at", "finished_at", "options", "links"
    }  # fmt: skip
    assert promised | {"started_at", "waiting_for", "size_bytes"} == set(job)
    assert (job["id"], job["name"], job["status"]) == (job_id, "mine", "running")
    assert job["progress"] == {"total": 4, "done": 3, "failed": 1}
    assert job["rate_per_s"] > 0
    assert job["eta_s"] == pytest.approx((4 - 3) / job["rate_per_s"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", job["created_at"])
    assert (job["finished_at"], job["options"], job["size_bytes"]) == (None, {"method": "gradcam"}, 40)
    here = f"/v1/jobs/{job_id}"
    assert job["links"] == {
        "self": here,
        "items": f"{here}/items",
        "events": f"{here}/events",
        "results_zip": f"{here}/results.zip",
        "results_ndjson": f"{here}/results.ndjson",
        "cancel": f"{here}/cancel",
        "retry": f"{here}/retry",
    }
    book.fail(job_id, 3)
    job = get(http, here)
    assert (job["status"], job["eta_s"]) == ("completed_with_errors", 0)
    assert job["started_at"] <= job["finished_at"]


def test_before_anything_runs_there_is_no_rate_and_no_eta(book: Book, http: FlaskClient) -> None:
    job = get(http, f"/v1/jobs/{book.submit(['a.jpg'])}")
    assert (job["status"], job["rate_per_s"], job["eta_s"], job["started_at"]) == ("queued", None, None, None)


def test_links_lead_somewhere(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)
    links = get(http, f"/v1/jobs/{job_id}")["links"]
    item = get(http, links["items"])["items"][0]
    assert ItemAnswer.model_validate(item, by_alias=True)
    assert get(http, item["links"]["self"]) == item
    assert http.get(item["links"]["overlay"]).data == b"000000.overlay.jpg"
    for name, path in item["links"]["artifacts"].items():
        assert http.get(path).data == name.encode()
    for name in ("results_zip", "results_ndjson", "events"):
        assert http.get(links[name]).status_code == 200


def test_a_client_lists_its_own_jobs_page_by_page_and_the_newest_first(book: Book, http: FlaskClient) -> None:
    ids = [book.submit(["a.jpg"]) for _ in range(5)]
    book.submit(["a.jpg"], owner="203.0.113.9")
    book.fail(ids[3], 0)
    seen, cursor = [], None
    while True:
        page = get(http, "/v1/jobs", limit=2, **({"cursor": cursor} if cursor else {}))
        seen.append([job["id"] for job in page["jobs"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [ids[:2:-1], ids[2:0:-1], ids[:1]]
    assert [job["id"] for job in get(http, "/v1/jobs", status="failed")["jobs"]] == [ids[3]]
    assert get(http, "/v1/jobs", status="running")["jobs"] == []


def test_a_listing_asks_for_the_rates_of_unfinished_jobs_only(
    book: Book, http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page has up to 1000 jobs, of which few are unfinished."""
    finished, running = (book.submit(["a.jpg", "b.jpg"]) for _ in range(2))
    book.succeed(finished, 0, 1)
    book.ledger.begin(running, 0)
    book.succeed(running, 0)
    asked: list[str] = []
    rate = Reading.rate_per_s
    monkeypatch.setattr(Reading, "rate_per_s", lambda self, job: (asked.append(job.id), rate(self, job))[1])
    rates = {job["id"]: job["rate_per_s"] for job in get(http, "/v1/jobs")["jobs"]}
    assert asked == [running]
    assert rates[running] > 0
    assert rates[finished] is None


def test_pages_are_whole_when_the_last_one_is_full(book: Book, http: FlaskClient) -> None:
    job_id = book.submit([f"{n}.jpg" for n in range(4)])
    first = get(http, f"/v1/jobs/{job_id}/items", limit=2)
    second = get(http, f"/v1/jobs/{job_id}/items", limit=2, cursor=first["next"])
    assert (numbers(first), numbers(second), second["next"]) == ([0, 1], [2, 3], None)


def test_items_are_filtered(book: Book, http: FlaskClient) -> None:
    job_id = book.submit([f"{n}.jpg" for n in range(8)])
    for number in range(5):
        book.succeed(job_id, number, targets=[number % 3], probability=number / 10)
    book.fail(job_id, 5)
    items = f"/v1/jobs/{job_id}/items"
    assert numbers(get(http, items, status="succeeded")) == [0, 1, 2, 3, 4]
    assert numbers(get(http, items, status="failed")) == [5]
    assert numbers(get(http, items, status="waiting")) == [6, 7]
    assert numbers(get(http, items, label="bee")) == [1, 4]
    assert numbers(get(http, items, min_confidence=0.2)) == [2, 3, 4]
    assert numbers(get(http, items, max_confidence=0.2)) == [0, 1, 2]
    assert numbers(get(http, items, label="bee", min_confidence=0.2)) == [4]
    assert numbers(get(http, items, start=3, status="succeeded")) == [3, 4]
    first = get(http, items, start=3, limit=2)
    assert numbers(get(http, items, start=3, limit=2, cursor=first["next"])) == [5, 6]
    assert refused(http, items, start=-1) == (422, "bad_option", "start")
    book.ledger.cancel(job_id)
    assert numbers(get(http, items, status="cancelled")) == [6, 7]


def test_an_item_says_what_came_of_it(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg"])
    book.succeed(job_id, 0, targets=[1, 0])
    book.fail(job_id, 1)
    good, bad, waiting = get(http, f"/v1/jobs/{job_id}/items")["items"]
    assert (good["status"], good["label"], good["target"], good["confidence"]) == ("succeeded", "bee", 1, 0.5)
    assert good["sha256"] == "0" * 64
    assert [row["target"]["label"] for row in good["result"]["explanations"]] == ["bee", "ant"]
    assert list(good["links"]["artifacts"]) == file_names(0, 2)
    assert (bad["status"], bad["error"], bad["result"]) == ("failed", FAULT, None)
    assert (bad["links"]["overlay"], bad["links"]["artifacts"]) == (None, {})
    assert (waiting["status"], waiting["error"], waiting["finished_at"]) == ("waiting", None, None)


@pytest.mark.parametrize("cursor", ["", "x", "!", "AAAA", "é", "00000000", "eyJhIjoxfQ", "%00"])
def test_a_cursor_of_ones_own_is_refused(book: Book, http: FlaskClient, cursor: str) -> None:
    job_id = book.submit(["a.jpg"])
    assert refused(http, f"/v1/jobs/{job_id}/items", cursor=cursor) == (422, "bad_option", "cursor")
    assert refused(http, "/v1/jobs", cursor=cursor) == (422, "bad_option", "cursor")


def test_a_cursor_belongs_to_one_listing(book: Book, http: FlaskClient) -> None:
    names = [f"{n}.jpg" for n in range(3)]
    job_id, other = book.submit(names), book.submit(names)
    cursor = get(http, f"/v1/jobs/{job_id}/items", limit=1)["next"]
    assert refused(http, f"/v1/jobs/{other}/items", cursor=cursor)[1] == "bad_option"
    assert refused(http, f"/v1/jobs/{job_id}/items", cursor=cursor, status="waiting")[1] == "bad_option"
    assert refused(http, "/v1/jobs", cursor=cursor)[1] == "bad_option"
    assert numbers(get(http, f"/v1/jobs/{job_id}/items", cursor=cursor, limit=7)) == [1, 2]  # the limit may change


@pytest.mark.parametrize(
    "place",
    [
        "{", "", "null", "[]", "{}", "5", "5.5", '"abc"', "[1,2,3]", "[1.5]", '[{},"a"]', '["a","a"]', "[1.5,2]",
        '[NaN,"a"]', '[Infinity,"a"]', '[1.5,"\\u0000"]', '[1.5,"\\ud800"]', '[1.5,""]', "\xe9",
    ],
)  # fmt: skip
def test_a_cursor_whose_check_is_made_up_as_well_is_refused(http: FlaskClient, place: str) -> None:
    cursor = forged(["jobs", "127.0.0.1", None], place)
    assert refused(http, "/v1/jobs", cursor=cursor) == (422, "bad_option", "cursor")


@pytest.mark.parametrize("place", ["{", "{}", "-1", "1.5", "true", '"1"', "[1]", "2147483648", "1" + "0" * 30, "01"])
def test_so_is_one_of_a_jobs_pictures(book: Book, http: FlaskClient, place: str) -> None:
    job_id = book.submit(["a.jpg"])
    wanted = dict.fromkeys(("start", "status", "label", "min_confidence", "max_confidence"))
    assert get(http, f"/v1/jobs/{job_id}/items", cursor=forged(["items", job_id, wanted], "7"))["items"] == []
    cursor = forged(["items", job_id, wanted], place)
    assert refused(http, f"/v1/jobs/{job_id}/items", cursor=cursor) == (422, "bad_option", "cursor")


def forged(scope: object, text: str) -> str:
    """What anybody can write who read this code: six bytes of a hash of the listing and the place, and the place."""
    place = text.encode("latin-1")
    check = hashlib.blake2s(json.dumps(scope, sort_keys=True).encode() + b"\n" + place, digest_size=6).digest()
    return base64.urlsafe_b64encode(check + place).decode().rstrip("=")


PLACE: TypeAdapter[Any] = TypeAdapter(int | list[float | str])


@given(place=st.one_of(st.integers(), st.lists(st.floats(allow_nan=False) | st.text())), data=st.data())
def test_a_changed_cursor_is_refused(place: object, data: st.DataObject) -> None:
    cursor = write_cursor("here", place)
    assert read_cursor("here", cursor, PLACE) == place
    at = data.draw(st.integers(0, len(cursor) - 1))
    letter = data.draw(st.characters(codec="utf-8").filter(lambda other: other != cursor[at]))
    with pytest.raises(BadOption):
        read_cursor("here", cursor[:at] + letter + cursor[at + 1 :], PLACE)


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/v1/jobs", {"limit": 0}, (422, "bad_option", "limit")),
        ("/v1/jobs", {"limit": 1001}, (422, "bad_option", "limit")),
        ("/v1/jobs", {"status": "receiving"}, (422, "bad_option", "status")),
        ("/v1/jobs", {"owner": "me"}, (422, "bad_option", "owner")),
        ("/v1/jobs/{id}/items", {"status": "lost"}, (422, "bad_option", "status")),
        ("/v1/jobs/{id}/items", {"label": "a\0"}, (422, "bad_option", "label")),
        ("/v1/jobs/{id}/items", {"min_confidence": "nan"}, (422, "bad_option", "min_confidence")),
        ("/v1/jobs/{id}/items", {"max_confidence": 1.5}, (422, "bad_option", "max_confidence")),
        ("/v1/jobs/{id}/items/7", {}, (404, "unknown_item", None)),
        (f"/v1/jobs/{UNKNOWN}", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/items", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/items/0", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/items/0/overlay", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/events", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/results.zip", {}, (404, "unknown_job", None)),
        (f"/v1/jobs/{UNKNOWN}/results.ndjson", {}, (404, "unknown_job", None)),
        ("/v1/jobs/a%00b", {}, (422, "bad_option", "id")),
        ("/v1/jobs/{id}/items/99999999999", {}, (422, "bad_option", "number")),
        ("/v1/jobs/{id}/items/1/overlay", {}, (404, "unknown_item", None)),
        ("/v1/jobs/{id}/items/0/overlay", {"target": 1}, (404, "unknown_item", "target")),
        ("/v1/jobs/{id}/items/0/artifacts/000001.map.png", {}, (404, "unknown_item", None)),
        ("/v1/jobs/{id}/items/0/artifacts/..", {}, (404, "unknown_item", None)),
        ("/v1/jobs/{id}/events", {"after": -1}, (422, "bad_option", "after")),
    ],
)
def test_what_is_not_there_or_not_right_is_a_problem(
    book: Book, http: FlaskClient, path: str, query: dict[str, Any], expected: tuple[int, str, str | None]
) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0)
    assert refused(http, path.replace("{id}", job_id), **query) == expected


def test_files_are_sent_as_what_they_are(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["<script>.jpg"])
    book.succeed(job_id, 0, targets=[2, 1])
    item = f"/v1/jobs/{job_id}/items/0"
    answer = http.get(f"{item}/overlay?target=1")
    assert answer.data == b"000000.overlay-1.jpg"
    assert answer.content_type == "image/jpeg"
    assert answer.content_length == len(answer.data)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert "Content-Disposition" not in answer.headers
    tag = answer.headers["ETag"]
    again = http.get(f"{item}/overlay?target=1", headers={"If-None-Match": tag})
    assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag)
    assert http.get(f"{item}/overlay", headers={"If-None-Match": tag}).status_code == 200
    assert http.get(f"{item}/artifacts/000000.map.png").content_type == "image/png"


def test_arrays_are_a_download(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg"])
    book.store.write(result_key(job_id, "000000.npz", 0), b"arrays")
    book.ledger.record(job_id, [Outcome(0, result=result(0) | {"artifacts": {"arrays": "000000.npz"}})])
    answer = http.get(f"/v1/jobs/{job_id}/items/0/artifacts/000000.npz")
    assert (answer.data, answer.content_type) == (b"arrays", "application/x-npz")
    assert answer.headers["Content-Disposition"] == "attachment; filename=000000.npz"


def test_a_file_that_is_gone_is_a_404(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)
    book.store.delete_tree(job_id)
    assert refused(http, f"/v1/jobs/{job_id}/items/0/overlay")[:2] == (404, "unknown_item")


def test_a_store_that_is_away_is_a_503(book: Book, http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)

    def away(*_arguments: object) -> None:
        raise ConnectionError("no route to the bucket")

    monkeypatch.setattr(Store, "open", away)
    answer = http.get(f"/v1/jobs/{job_id}/items/0/overlay")
    assert (answer.status_code, answer.json["code"], answer.headers["Retry-After"]) == (503, "jobs_unavailable", "5")


def test_results_are_downloads(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0)
    lines = http.get(f"/v1/jobs/{job_id}/results.ndjson")
    assert lines.content_type == "application/x-ndjson"
    assert lines.headers["Content-Disposition"] == f"attachment; filename={job_id}.ndjson"
    assert [json.loads(line)["number"] for line in lines.text.splitlines()] == [0]
    archive = http.get(f"/v1/jobs/{job_id}/results.zip")
    assert archive.content_type == "application/zip"
    with zipfile.ZipFile(io.BytesIO(archive.data)) as unpacked:
        assert unpacked.testzip() is None
        assert unpacked.read("results.ndjson") == lines.data


def test_a_head_takes_no_stream(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg"])
    book.succeed(job_id, 0)
    for _ in range(5):
        assert http.head(f"/v1/jobs/{job_id}/events", buffered=True).status_code == 200
    assert b"event: end" in http.get(f"/v1/jobs/{job_id}/events").data


def test_deleted_is_gone(book: Book, http: FlaskClient) -> None:
    job_id = book.submit(["a.jpg"])
    book.ledger.delete(job_id)
    assert refused(http, f"/v1/jobs/{job_id}") == (404, "unknown_job", None)
    assert get(http, "/v1/jobs")["jobs"] == []


def test_the_document_tells_of_the_routes(http: FlaskClient) -> None:
    paths = get(http, "/openapi.json")["paths"]
    for path in ("", "/{id}", "/{id}/items", "/{id}/items/{number}", "/{id}/items/{number}/overlay", "/{id}/events"):
        assert "get" in paths[f"/v1/jobs{path}"], path
