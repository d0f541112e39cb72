"""What a key made is its own: to another key it is not there."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.config import Settings
from tests.app.api.guarded import Guarded, guarded, routes
from tests.app.jobs.books import Book, opened


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = guarded(tmp_path_factory.mktemp("owners"), models_dir=models_dir, default_model="small")
    for name in ("ann", "bob"):
        made.make(name, "explain", "jobs")
    made.make("root", "explain", "jobs", "admin")
    made.app.extensions["heatlens"].start()
    yield made
    made.app.extensions["heatlens"].close()


@pytest.fixture(scope="module")
def book(service: Guarded) -> Iterator[Book]:
    settings: Settings = service.app.extensions["heatlens"].settings
    with opened(settings) as book:
        yield book


@pytest.fixture
def job(service: Guarded, book: Book) -> str:
    """A finished job of Ann's, of one picture."""
    job_id = book.submit(["a.png"], owner=f"key:{service.ids['ann']}")
    book.succeed(job_id, 0)
    return job_id


def picture() -> bytes:
    stored = io.BytesIO()
    Image.new("RGB", (40, 30), "green").save(stored, "PNG")
    return stored.getvalue()


def of(answer: Any, *private: str) -> tuple[int, dict[str, Any]]:
    """What an answer says, without what differs by request, and without the name that was asked for."""
    text = answer.get_data(as_text=True)
    for word in (*private, answer.headers["X-Request-Id"]):
        text = text.replace(word, "")
    return answer.status_code, text


def test_anothers_job_is_not_there_on_any_route_and_nothing_happens_to_it(
    service: Guarded, book: Book, job: str
) -> None:
    paths = [(method, path) for method, path, _ in routes(service.app) if path.startswith("/v1/jobs/nothing")]
    assert len(paths) >= 11
    for method, path in paths:
        asked = service.client("bob").open(path.replace("nothing", job), method=method)
        assert of(asked, job) == of(service.client("bob").open(path, method=method), "nothing"), (method, path)
        assert asked.status_code == 404, (method, path)
    assert book.ledger.job(job).status == "succeeded"


@pytest.mark.parametrize("key", ["ann", "root"])
def test_a_job_is_there_for_its_owner_and_for_an_admin(service: Guarded, job: str, key: str) -> None:
    client, got = service.client(key), {}
    for method, path, endpoint in routes(service.app):
        if path.startswith("/v1/jobs/nothing") and method == "GET" and endpoint != "jobs.job_artifact":
            response = client.get(path.replace("nothing", job))
            got[endpoint] = response.status_code
            response.close()
    assert len(got) >= 7
    assert set(got.values()) == {200}
    assert client.delete(f"/v1/jobs/{job}").status_code == 204


@pytest.mark.parametrize("way", ["results.ndjson", "results.zip"])
@pytest.mark.parametrize("end", ["revoke", "delete"])
def test_a_download_that_cannot_go_on_is_cut_short(
    service: Guarded, book: Book, way: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An end as any other would make half of it look like all."""
    name = f"{way}-{end}"
    service.make(name, "jobs")
    numbers = range(600)  # more than are read at once
    job_id = book.submit([f"{number}.png" for number in numbers], owner=f"key:{service.ids[name]}")
    book.succeed(job_id, *numbers)
    response = service.client(name).get(f"/v1/jobs/{job_id}/{way}")
    pieces = response.iter_encoded()
    assert next(pieces)
    if end == "revoke":
        service.app.extensions["heatlens_keys"].revoke(name)
    else:
        assert service.client(name).delete(f"/v1/jobs/{job_id}").status_code == 204
    with pytest.raises(ConnectionResetError):
        list(pieces)
    response.close()
    (line,) = [record for record in caplog.records if "cut short" in record.message]
    assert line.exc_info is None
    assert ("valid API key" if end == "revoke" else job_id) in line.message


@pytest.mark.parametrize("end", ["revoke", "delete"])
def test_watching_ends_with_the_key_and_with_the_job(service: Guarded, book: Book, end: str) -> None:
    name = f"watch-{end}"
    service.make(name, "jobs")
    job_id = book.submit(["a.png", "b.png"], owner=f"key:{service.ids[name]}")
    response = service.client(name).get(f"/v1/jobs/{job_id}/events")
    pieces = response.iter_encoded()
    assert b"retry" in next(pieces)
    assert b"progress" in next(pieces)
    if end == "revoke":
        service.app.extensions["heatlens_keys"].revoke(name)
        book.succeed(job_id, 0)  # which would be told
    else:
        assert service.client(name).delete(f"/v1/jobs/{job_id}").status_code == 204
    assert list(pieces) == []
    response.close()


def test_listings_have_ones_own_jobs_and_an_admins_all(service: Guarded, book: Book, job: str) -> None:
    other = book.submit(["b.png"], owner=f"key:{service.ids['bob']}")
    by_address = book.submit(["c.png"])  # made before there were keys

    def listed(key: str) -> set[str]:
        answer = service.client(key).get("/v1/jobs?limit=1000").json
        assert answer is not None
        return {row["id"] for row in answer["jobs"]}

    assert job in listed("ann")
    assert not {other, by_address} & listed("ann")
    assert listed("bob") == {other}
    assert {job, other, by_address} <= listed("root")


def test_the_place_in_ones_own_list_is_none_in_anothers(service: Guarded, book: Book) -> None:
    for _ in range(2):
        book.submit(["a.png"], owner=f"key:{service.ids['ann']}")
    page = service.client("ann").get("/v1/jobs?limit=1").json
    assert page is not None
    asked = f"/v1/jobs?limit=1&cursor={page['next']}"
    assert (service.client("ann").get(asked).status_code, service.client("bob").get(asked).status_code) == (200, 422)


def test_a_kept_picture_is_its_senders_alone(service: Guarded, book: Book) -> None:
    ann, bob, root = (service.client(name) for name in ("ann", "bob", "root"))
    made = ann.post("/v1/images", data=picture(), content_type="image/png").json
    assert made is not None
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/v1/images/{}", {}),
        ("GET", "/v1/images/{}/picture", {}),
        ("POST", "/v1/explain", {"json": {"image": {"id": "{}"}, "method": "gradcam"}}),
        ("POST", "/v1/embed-links", {"json": {"image": {"id": "{}"}}}),
        ("DELETE", "/v1/images/{}", {}),
    ]

    def ask(client: Any, id_: str, method: str, path: str, sent: dict[str, Any]) -> Any:
        body = {"json": {**sent["json"], "image": {"id": id_}}} if sent else {}
        return client.open(path.format(id_), method=method, **body)

    for way in ways:
        refused = ask(bob, made["id"], *way)
        assert of(refused, made["id"]) == of(ask(bob, "nothing", *way), "nothing"), way
        assert refused.status_code == 404, way
    assert [ask(root, made["id"], *way).status_code for way in ways[:2]] == [200, 200]
    assert [ask(ann, made["id"], *way).status_code for way in ways] == [200, 200, 200, 201, 204]


def test_a_link_opens_for_everybody_and_ends_by_its_maker_or_an_admin(service: Guarded, book: Book) -> None:
    def made_by_ann() -> Any:
        return service.client("ann").post("/v1/embed-links", data=picture(), content_type="image/png").json

    for key, status, after in (("bob", 404, 200), ("ann", 204, 404), ("root", 204, 404)):
        token = made_by_ann()["token"]
        assert service.client().get(f"/embed/{token}/image").status_code == 200
        assert service.client(key).delete(f"/v1/embed-links/{token}").status_code == status
        assert service.client().get(f"/embed/{token}/image").status_code == after


def test_a_link_of_a_job_needs_a_key_that_is_for_jobs_too(service: Guarded, job: str) -> None:
    service.make("shows", "explain", "admin")  # who sees all jobs, and may have none of them
    for ask in ({"json": {"job": job, "item": 0}}, {"query_string": {"job": job, "item": "0"}}):
        refused = service.client("shows").post("/v1/embed-links", **ask).json
        assert refused is not None
        assert (refused["status"], refused["code"]) == (403, "forbidden")
        assert (refused["needed"], refused["scopes"]) == (["jobs"], ["admin", "explain"])
    assert service.client("shows").post("/v1/embed-links", data=picture(), content_type="image/png").status_code == 201


def test_a_link_of_anothers_job_cannot_be_made(service: Guarded, job: str) -> None:
    bob = service.client("bob")
    answers = [bob.post("/v1/embed-links", json={"job": id_, "item": 0}) for id_ in (job, "nothing")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert of(answers[0], job) == of(answers[1], "nothing")
