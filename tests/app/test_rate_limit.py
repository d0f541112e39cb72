"""Rate limits: counted in memory, and by a real Redis, which may go away."""

import logging
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from redis import Redis
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings, SettingsError, load_settings
from tests.app.api.guarded import guarded
from tests.support import require

SERVER = Path("/usr/bin/redis-server")
NO_PICTURE = 400
"""What a request without a body gets that is let through: to count, no model has to be there."""


def client(**settings: object) -> FlaskClient:
    return create_app(Settings(torch_threads=1, **settings)).test_client()


def ask(asked: FlaskClient, path: str = "/v1/explain", address: str = "192.0.2.1", **headers: str) -> TestResponse:
    return asked.post(path, environ_base={"REMOTE_ADDR": address}, headers=headers)


def statuses(asked: FlaskClient, count: int) -> list[int]:
    return [ask(asked).status_code for _ in range(count)]


# In memory


def test_by_default_nothing_is_limited() -> None:
    assert statuses(client(), 100) == [NO_PICTURE] * 100


def test_beyond_the_limit_it_is_429_and_says_which_and_for_how_long() -> None:
    limited = client(rate_limit="3/minute")
    assert statuses(limited, 3) == [NO_PICTURE] * 3
    response = ask(limited)
    problem = response.json
    assert problem is not None
    assert (response.status_code, problem["code"], problem["limit"]) == (429, "rate_limited", "3 per 1 minute")
    assert response.content_type == "application/problem+json"
    assert "HEATLENS_RATE_LIMIT" in problem["detail"]
    assert problem["request_id"] == response.headers["X-Request-Id"]
    assert 50 <= int(response.headers["Retry-After"]) == problem["retry_after_s"] <= 60


def test_who_waits_for_retry_after_is_let_in() -> None:
    limited = client(rate_limit="1/2 second")
    while (response := ask(limited)).status_code != 429:
        pass
    time.sleep(int(response.headers["Retry-After"]))
    assert ask(limited).status_code == NO_PICTURE


def test_of_several_limits_the_one_that_is_reached_is_named() -> None:
    limited = client(rate_limit="2/second;3/hour")
    assert [status for status in statuses(limited, 3) if status == 429] == [429]
    time.sleep(1.1)
    assert statuses(limited, 1) == [NO_PICTURE]
    time.sleep(1.1)
    problem = ask(limited).json
    assert problem is not None
    assert (problem["status"], problem["limit"]) == (429, "3 per 1 hour")
    assert problem["retry_after_s"] > 3500


@pytest.mark.parametrize("spent_on", ["/v1/explain", "/v1/predict"])
def test_explanations_and_predictions_share_one_limit_whichever_way_they_are_sent(spent_on: str) -> None:
    limited = client(rate_limit="2/minute")
    assert ask(limited, spent_on).status_code == NO_PICTURE
    assert limited.put(spent_on, environ_base={"REMOTE_ADDR": "192.0.2.1"}).status_code == NO_PICTURE
    for path in ("/v1/explain", "/v1/predict"):
        assert ask(limited, path).status_code == 429
        assert limited.put(path, environ_base={"REMOTE_ADDR": "192.0.2.1"}).status_code == 429


def test_each_client_has_a_limit_of_its_own() -> None:
    limited = client(rate_limit="1/minute")
    addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
    assert [ask(limited, address=each).status_code for each in addresses * 2] == [NO_PICTURE] * 3 + [429] * 3


def test_with_keys_it_is_the_key_that_is_counted_wherever_it_is_used(tmp_path: Path) -> None:
    service = guarded(tmp_path, rate_limit="1/hour")
    service.make("other", "explain")
    for key in ("explain", "other"):
        got = [ask(service.client(key), address=each).status_code for each in ("192.0.2.1", "192.0.2.2")]
        assert got == [NO_PICTURE, 429]


def test_who_is_refused_uses_up_nothing(tmp_path: Path) -> None:
    service = guarded(tmp_path, rate_limit="1/hour")
    assert [ask(service.client(key)).status_code for key in (None, None, "jobs", "jobs")] == [401, 401, 403, 403]
    assert ask(service.client("explain")).status_code == NO_PICTURE


@pytest.mark.parametrize("path", ["/healthz", "/v1/methods", "/", "/openapi.json"])
def test_what_costs_the_models_nothing_is_not_limited(path: str) -> None:
    limited = client(rate_limit="1/minute")
    assert statuses(limited, 2) == [NO_PICTURE, 429]
    for _ in range(3):
        response = limited.get(path, environ_base={"REMOTE_ADDR": "192.0.2.1"})
        assert response.status_code == 200
        response.close()


def test_clients_at_once_are_counted_one_by_one() -> None:
    limited = client(rate_limit="50/hour").application
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: ask(limited.test_client()).status_code, range(200)))
    assert (got.count(NO_PICTURE), got.count(429)) == (50, 150)


# Behind proxies


@pytest.mark.parametrize(
    ("proxies", "forwarded", "same_client"),
    [
        (0, ("198.51.100.1", "198.51.100.2"), True),  # nobody is believed: both are who connects
        (1, ("198.51.100.1", "198.51.100.2"), False),
        (1, ("198.51.100.8, 198.51.100.1", "198.51.100.9, 198.51.100.1"), True),  # the first is the client's own word
        (2, ("198.51.100.1, 203.0.113.5", "198.51.100.2, 203.0.113.5"), False),
        (2, ("198.51.100.1, 203.0.113.5", "198.51.100.1, 203.0.113.6"), True),
    ],
)
def test_as_many_proxies_are_believed_as_there_are(proxies: int, forwarded: tuple[str, str], same_client: bool) -> None:
    limited = client(rate_limit="1/minute", trusted_proxies=proxies)
    first, second = (ask(limited, **{"X-Forwarded-For": each}).status_code for each in forwarded)
    assert (first, second) == (NO_PICTURE, 429 if same_client else NO_PICTURE)


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RATE_LIMIT", "many"),
        ("RATE_LIMIT", "60/fortnight"),
        ("RATE_LIMIT", "60/minute;x"),
        ("RATE_LIMIT_STORAGE", "redis"),
        ("RATE_LIMIT_STORAGE", "redis://"),
        ("RATE_LIMIT_STORAGE", "redis://localhost:port"),
        ("RATE_LIMIT_STORAGE", "http://localhost"),
        ("TRUSTED_PROXIES", "-1"),
    ],
)
def test_a_wrong_setting_stops_the_start_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEATLENS_{name}", value)
    with pytest.raises(SettingsError, match=re.escape(f"HEATLENS_{name}='{value}'")):
        load_settings()


@pytest.mark.parametrize("value", ["60/minute", "10 per second; 1000 per day", "5/30 seconds"])
def test_the_notation_of_limits(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HEATLENS_RATE_LIMIT", value)
    assert load_settings().rate_limit == value


# Redis

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def redis_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def start_redis(redis_port: int, tmp_path: Path) -> Iterator[Start]:
    require(SERVER.exists(), "Debian's redis-server (apt-get install redis-server)")
    running: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        command = [SERVER, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", tmp_path]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", redis_port), timeout=1).close()
            except ConnectionRefusedError:
                assert time.monotonic() < until, "redis-server does not start"
                time.sleep(0.02)
            else:
                return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def counting_in(redis_port: int, limit: str = "4/hour") -> FlaskClient:
    return client(rate_limit=limit, rate_limit_storage=f"redis://127.0.0.1:{redis_port}/0")


def test_two_processes_share_one_limit_through_redis(start_redis: Start, redis_port: int) -> None:
    start_redis()
    one, other = counting_in(redis_port), counting_in(redis_port)
    assert statuses(one, 3) == [NO_PICTURE] * 3
    assert statuses(other, 2) == [NO_PICTURE, 429]
    response = ask(one)
    assert response.status_code == 429
    assert 3590 <= int(response.headers["Retry-After"]) <= 3600
    assert ask(one, address="192.0.2.2").status_code == NO_PICTURE


def test_without_redis_each_process_counts_for_itself_and_says_so_once(
    start_redis: Start, redis_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    redis = start_redis()
    one, other = counting_in(redis_port), counting_in(redis_port)
    assert statuses(one, 4) == [NO_PICTURE] * 4
    assert statuses(other, 1) == [429]
    redis.kill()
    redis.wait()
    with caplog.at_level(logging.WARNING):
        started = time.perf_counter()
        assert statuses(one, 6) == [NO_PICTURE] * 4 + [429] * 2
        assert time.perf_counter() - started < 2  # nobody waits for who does not answer
    warnings = [record.getMessage() for record in caplog.records if record.name == "flask-limiter"]
    assert warnings == ["Rate limit storage unreachable - falling back to in-memory storage"]
    assert statuses(other, 5) == [NO_PICTURE] * 4 + [429]


def test_it_starts_without_redis_and_counts_there_once_it_is_back(start_redis: Start, redis_port: int) -> None:
    limited = counting_in(redis_port, "10000/hour")
    assert ask(limited).status_code == NO_PICTURE
    start_redis()
    until = time.monotonic() + 20
    with Redis(port=redis_port) as counts:
        while counts.dbsize() == 0:
            assert time.monotonic() < until
            time.sleep(0.05)
            assert ask(limited).status_code == NO_PICTURE
        (key,) = counts.keys()
    assert b"192.0.2.1" in key


def test_requests_at_the_moment_redis_dies_are_all_answered(start_redis: Start, redis_port: int) -> None:
    redis = start_redis()
    app = counting_in(redis_port, "1000/hour").application

    def work(index: int) -> int:
        if index == 100:
            redis.kill()
        return ask(app.test_client()).status_code

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(work, range(400)))
    assert got == [NO_PICTURE] * 400


def test_a_redis_that_does_not_answer_holds_nobody_up_for_long(redis_port: int) -> None:
    with socket.create_server(("127.0.0.1", redis_port)):  # takes connections, and says nothing
        limited = counting_in(redis_port)
        started = time.perf_counter()
        assert ask(limited).status_code == NO_PICTURE
        assert time.perf_counter() - started < 3
