"""Tickets: one download of a job, for a minute, without a header."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from app.config import Settings
from app.errors import Unauthorized
from app.signing import Signer
from app.tickets import LIFETIME_S, Tickets
from tests.app.api.guarded import Guarded, guarded
from tests.app.jobs.books import Book, opened


@pytest.fixture(scope="module")
def service(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    made = guarded(
        tmp_path_factory.mktemp("tickets"), models_dir=models_dir, default_model="small", key_failure_limit=""
    )
    made.make("other", "jobs")
    return made


@pytest.fixture(scope="module")
def book(service: Guarded) -> Iterator[Book]:
    with opened(service.app.extensions["heatlens"].settings) as book:
        yield book


@pytest.fixture(scope="module")
def job(service: Guarded, book: Book) -> str:
    job_id = book.submit(["a.png"], owner=f"key:{service.ids['jobs']}")
    book.succeed(job_id, 0)
    return job_id


def url_of(client: FlaskClient, path: str) -> str:
    answer = client.post("/v1/tickets", json={"path": path})
    assert answer.status_code == 201, answer.text
    assert answer.json is not None
    return str(answer.json["url"])


def test_a_ticket_is_good_beside_a_gateways_own_key(service: Guarded, job: str) -> None:
    url = url_of(service.client("jobs"), f"/v1/jobs/{job}/results.ndjson")
    assert service.client().get(url, headers={"X-API-Key": "a-gateways"}).status_code == 200


def altered(text: str) -> str:
    """The same with another letter in its middle."""
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]


@pytest.mark.parametrize(
    "way",
    ["results.zip", "results.ndjson", "events", "items", "items/0", "items/0/overlay", "items/0/artifacts/{}.map.png"],
)
def test_a_ticket_opens_what_it_is_for_to_who_sends_no_key(service: Guarded, job: str, way: str) -> None:
    path = f"/v1/jobs/{job}/{way.format('000000')}"
    url = url_of(service.client("jobs"), path)
    assert url.startswith(f"{path}?ticket=")
    with_key, with_ticket = service.client("jobs").get(path), service.client().get(url)
    assert (with_ticket.status_code, with_ticket.content_type) == (200, with_key.content_type)
    assert service.client().get(path).status_code == 401


def test_a_ticket_answers_head_as_get_and_as_often_as_it_is_asked(service: Guarded, job: str) -> None:
    url = url_of(service.client("jobs"), f"/v1/jobs/{job}/results.zip")
    for method in ("HEAD", "GET", "GET", "HEAD"):
        assert service.client().open(url, method=method).status_code == 200


def test_other_options_stand_beside_a_ticket(service: Guarded, job: str) -> None:
    url = url_of(service.client("jobs"), f"/v1/jobs/{job}/items")
    assert service.client().get(f"{url}&limit=1").status_code == 200
    assert service.client().get(f"{url}&limit=x").status_code == 422


def test_a_ticket_opens_nothing_else(service: Guarded, job: str) -> None:
    zip_url = url_of(service.client("jobs"), f"/v1/jobs/{job}/results.zip")
    path, _, query = zip_url.partition("?")
    client = service.client()
    for method, asked in [
        ("GET", f"/v1/jobs/{job}/results.ndjson"),
        ("GET", f"/v1/jobs/{job}"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/methods"),
        ("DELETE", f"/v1/jobs/{job}"),
        ("POST", f"/v1/jobs/{job}/cancel"),
    ]:
        assert client.open(f"{asked}?{query}", method=method).status_code == 401, (method, asked)
    payload, _, signature = query.removeprefix("ticket=").partition(".")
    # In the middle: the last letter of a signature has bits that mean nothing.
    forged = [f"ticket={altered(payload)}.{signature}", f"ticket={payload}.{altered(signature)}"]
    forged += ["ticket=", "ticket=x", "ticket=a.b&ticket=c", "x=1"]
    assert [client.get(f"{path}?{each}").status_code for each in forged] == [401] * len(forged)


def test_a_ticket_can_do_no_more_than_its_key(service: Guarded, job: str) -> None:
    path = f"/v1/jobs/{job}/results.zip"
    got = {key: service.client().get(url_of(service.client(key), path)).status_code for key in ("other", "explain")}
    assert got == {"other": 404, "explain": 403}  # another's job; no scope for jobs


def test_a_ticket_of_a_revoked_key_is_worth_nothing(service: Guarded, job: str) -> None:
    service.make("passing", "jobs", "admin")
    url = url_of(service.client("passing"), f"/v1/jobs/{job}/results.zip")
    assert service.client().get(url).status_code == 200
    service.app.extensions["heatlens_keys"].revoke("passing")
    assert service.client().get(url).status_code == 401


def test_a_ticket_is_good_for_a_minute(tmp_path: Path) -> None:
    now = [1000.0]
    tickets = Tickets(Settings(data_dir=tmp_path), clock=lambda: now[0])
    ticket, expires_at = tickets.issue("/a", "key")
    assert (LIFETIME_S, expires_at) == (60, 1060)
    now[0] = 1059.9
    assert tickets.holder(ticket, "/a") == "key"
    now[0] = 1060.0
    with pytest.raises(Unauthorized):
        tickets.holder(ticket, "/a")


def test_a_token_of_an_embed_link_is_no_ticket(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with pytest.raises(Unauthorized):
        Tickets(settings).holder(Signer(settings).sign("/a", 2e9), "/a")


def test_all_processes_believe_one_anothers_tickets(tmp_path: Path) -> None:
    one, other = (Tickets(Settings(data_dir=tmp_path)) for _ in range(2))
    assert other.holder(one.issue("/a", "key")[0], "/a") == "key"


def test_the_answer_says_when_it_is_over(service: Guarded, job: str) -> None:
    before = datetime.now(UTC).timestamp()
    response = service.client("jobs").post("/v1/tickets", json={"path": f"/v1/jobs/{job}/results.zip"})
    assert response.json is not None
    assert -1 <= datetime.fromisoformat(response.json["expires_at"]).timestamp() - before - 60 <= 60
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"path": "/v1/explain"}, 422),
        ({"path": "/v1/jobs"}, 422),
        ({"path": "/v1/jobs/j/cancel"}, 422),  # no GET
        ({"path": "/v1/jobs/j/results.zip?x=1"}, 422),
        ({"path": "https://evil.example/v1/jobs/j/results.zip"}, 422),
        ({"path": "//evil.example/v1/jobs/j/results.zip"}, 422),
        ({"path": "/v1//jobs/j/results.zip"}, 422),
        ({"path": "//v1/jobs/j/results.zip"}, 422),
        ({"path": "/v1/jobs/../jobs/j/results.zip"}, 422),
        ({"path": "/v1/jobs/j/items/0/artifacts/.."}, 422),
        ({"path": "/v1/jobs/j?x"}, 422),
        ({"path": "/v1/jobs/j\r\nX: y"}, 422),
        ({"path": "/v1/jobs/j\n"}, 422),
        ({"path": "/v1/jobs/j\x00"}, 422),
        ({"path": "/v1/jobs/j%2e"}, 422),
        ({"path": "/v1/jobs/\N{LATIN SMALL LETTER U WITH DIAERESIS}"}, 422),
        ({"path": "/v1/jobs/\ud800"}, 422),
        ({"path": "/v1/images/x/picture"}, 422),
        ({"path": "/metrics"}, 422),
        ({"path": "/v1/jobs/" + "x" * 3000}, 422),
        ({"path": 7}, 400),
        ({}, 400),
        ({"path": "/v1/jobs/j/results.zip", "more": 1}, 400),
        ([], 400),
    ],
)
def test_what_no_ticket_is_for(service: Guarded, body: Any, status: int) -> None:
    assert service.client("jobs").post("/v1/tickets", json=body).status_code == status


def test_without_keys_there_are_tickets_too_which_open_nothing_once_keys_are_needed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    client = create_app(settings).test_client()
    with opened(settings) as book:
        job = book.submit(["a.png"])
        url = url_of(client, f"/v1/jobs/{job}/results.ndjson")
        assert client.get(url).status_code == 200
        assert client.get(re.sub("ticket=.*", "ticket=x", url)).status_code == 200  # as without one
        later = guarded(tmp_path)
        assert later.client().get(url).status_code == 401
