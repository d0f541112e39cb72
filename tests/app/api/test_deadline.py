"""`X-Request-Deadline-S`, and clients that hang up."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from tests import zoo

HEADER = "X-Request-Deadline-S"
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def limited(models_dir: Path) -> Iterator[FlaskClient]:
    """An app with a short time for each request, no cache, and a model of which each run takes 20 ms."""
    settings = Settings(
        models_dir=models_dir,
        default_model="sleepy",
        models=("slow",),
        torch_threads=1,
        max_chunk_pictures=1,
        request_timeout_s=LIMIT_S,
        result_cache_bytes=0,
    )
    app = create_app(settings)
    app.extensions["heatlens"].start()
    yield app.test_client()
    app.extensions["heatlens"].close()


@pytest.fixture
def nobody_answers() -> Iterator[None]:
    zoo.may_answer.clear()
    yield
    zoo.may_answer.set()


def ask(client: FlaskClient, picture: bytes, path: str, deadline: str) -> TestResponse:
    return client.put(path, data=picture, headers={HEADER: deadline})


@pytest.mark.parametrize("route", ["/v1/explain", "/v1/predict"])
@pytest.mark.parametrize("deadline", ["", "soon", "0", "-1", "nan", "inf", "-inf", "1e999", "1,5", "2 s"])
def test_what_is_no_positive_number_is_refused_by_name(
    limited: FlaskClient, cat: bytes, route: str, deadline: str
) -> None:
    problem = ask(limited, cat, route, deadline).json
    assert problem is not None
    assert (problem["status"], problem["code"], problem["field"]) == (422, "bad_option", HEADER)
    assert HEADER in problem["detail"]


@pytest.mark.parametrize("route", ["/v1/explain", "/v1/predict"])
@pytest.mark.parametrize("deadline", ["8.5", "8", " 60 ", "1e3"])
def test_a_deadline_that_is_met_changes_nothing(limited: FlaskClient, cat: bytes, route: str, deadline: str) -> None:
    assert ask(limited, cat, route, deadline).status_code == 200


# 5000 masks of 20 ms each: neither deadline nor limit can be met
@pytest.mark.parametrize(("deadline", "seconds"), [("0.5", 0.5), ("1000", LIMIT_S)])
def test_it_shortens_the_servers_limit_and_cannot_extend_it(
    limited: FlaskClient, cat: bytes, deadline: str, seconds: float
) -> None:
    started = time.perf_counter()
    problem = ask(limited, cat, "/v1/explain?method=rise&samples=5000", deadline).json
    spent = time.perf_counter() - started
    assert problem is not None
    assert (problem["status"], problem["code"]) == (504, "deadline_exceeded")
    assert seconds <= spent < seconds + 9  # of 100 s


@pytest.mark.usefixtures("nobody_answers")
def test_a_prediction_has_a_deadline_too(limited: FlaskClient, cat: bytes) -> None:
    started = time.perf_counter()
    problem = ask(limited, cat, "/v1/predict?model=slow", "0.3").json
    assert problem is not None
    assert problem["code"] == "deadline_exceeded"
    assert 0.3 <= time.perf_counter() - started < LIMIT_S


@pytest.mark.usefixtures("nobody_answers")
@pytest.mark.parametrize("route", ["/v1/explain", "/v1/predict"])
def test_who_hangs_up_is_no_longer_waited_for(limited: FlaskClient, cat: bytes, route: str) -> None:
    server, client = socket.socketpair()
    client.close()
    started = time.perf_counter()
    with server:
        response = limited.put(f"{route}?model=slow", data=cat, environ_overrides={"gunicorn.socket": server})
    assert response.status_code == 400  # which nobody reads
    assert time.perf_counter() - started < LIMIT_S


def test_the_document_has_the_header_on_both_routes(limited: FlaskClient) -> None:
    document = limited.get("/openapi.json").json
    assert document is not None
    for route, names in (("explain", {HEADER, "If-None-Match"}), ("predict", {HEADER})):
        parameters = document["paths"][f"/v1/{route}"]["post"]["parameters"]
        assert {each["name"] for each in parameters if each["in"] == "header"} == names
    assert "304" in document["paths"]["/v1/explain"]["post"]["responses"]


def test_time_runs_while_other_pictures_are_decoded(limited: FlaskClient, cat: bytes) -> None:
    decoders = limited.application.extensions["heatlens"].viewer._decoding
    held = 0
    while decoders.acquire(blocking=False):
        held += 1
    problem = ask(limited, cat, "/v1/explain", "0.2").json  # would wait for ever
    assert problem is not None
    assert (problem["status"], problem["code"]) == (504, "deadline_exceeded")
    assert f"0.2 s ({HEADER})" in problem["detail"]
    for _ in range(held):
        decoders.release()
    assert held == 4
    assert ask(limited, cat, "/v1/explain", "60").status_code == 200
