"""Log lines: for people and for machines, each with the request that it belongs to."""

import json
import logging
import re
import sys
import threading
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from flask import Flask
from structlog.contextvars import bound_contextvars, get_contextvars

from app import logs, telemetry
from app.logs import Format
from app.metrics import Metrics
from tests.conftest import start_server, stop_server

FORGERY = "no such model\n2026-01-01T00:00:00Z [info     ] all is well\x1b[2K\u2028\x85"


def _line(format_: Format, message: str, *args: object, **facts: object) -> str:
    record = logging.LogRecord("app.test", logging.WARNING, __file__, 1, message, args, None)
    vars(record).update(facts)
    return logs.formatter(format_).format(record)


def test_a_line_cannot_be_forged() -> None:
    for line in (_line("text", "failed: %s", FORGERY), _line("text", "failed", model=FORGERY)):
        assert len(line.splitlines()) == 1
        assert line.isprintable()
    found = json.loads(_line("json", "failed: %s", FORGERY, model=FORGERY))
    assert (found["event"], found["model"]) == (f"failed: {FORGERY}", FORGERY)
    assert len(_line("json", "failed: %s", FORGERY).splitlines()) == 1


def _traced(format_: Format) -> str:
    try:
        raise ValueError(FORGERY)
    except ValueError:
        return _line(format_, "broke", exc_info=sys.exc_info())


def test_a_traceback_is_indented_or_a_field() -> None:
    first, *trace = _traced("text").splitlines()
    assert "broke" in first
    assert trace[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in trace)
    assert json.loads(_traced("json"))["exception"].startswith("Traceback (most recent call last):")


def test_a_line_names_its_time_its_level_its_logger_and_its_request() -> None:
    with bound_contextvars(request_id="abc"):
        found = json.loads(_line("json", "%d left", 3))
        elsewhere: list[str] = []
        thread = threading.Thread(target=lambda: elsewhere.append(_line("json", "of no request")))
        thread.start()
        thread.join()
    assert list(found) == ["timestamp", "level", "logger", "event", "request_id"]
    assert datetime.fromisoformat(found["timestamp"]).utcoffset().total_seconds() == 0
    assert list(found.values())[1:] == ["warning", "app.test", "3 left", "abc"]
    assert "request_id" not in json.loads(elsewhere[0])


def test_a_thread_forgets_the_request_that_it_has_answered() -> None:
    app, seen = Flask(__name__), []
    telemetry.register(app, Metrics())
    app.add_url_rule("/", "view", lambda: str(seen.append(get_contextvars())))
    app.test_client().get("/", headers={"X-Request-Id": "abc"})
    assert seen == [{"request_id": "abc"}]
    assert get_contextvars() == {}


@pytest.mark.server
def test_a_server_writes_nothing_but_json(models_dir: Path, cat: bytes) -> None:
    server = start_server(
        workers="1", torch_threads="1", log_format="json", models_dir=str(models_dir), default_model="small"
    )
    secret = {"Authorization": "Bearer hush", "Cookie": "key=hush"}
    asked = {"/v1/explain?method=gradcam&target=hush-1": "one", "/v1/models/resnet50/layers": "two", "/hush": "three"}
    for path, request_id in asked.items():
        method = "POST" if "explain" in path else "GET"
        headers = {**secret, "X-Request-Id": request_id}
        httpx.request(method, server.url + path, content=cat, headers=headers, timeout=60)
    explained = httpx.post(
        f"{server.url}/v1/explain?format=png", content=cat, headers={"X-Request-Id": "four"}, timeout=60
    )
    written = server.greeting + stop_server(server)
    lines = [json.loads(line) for line in written.splitlines()]
    assert all({"timestamp", "level", "logger", "event"} <= line.keys() for line in lines)
    assert "Booting worker" in written  # gunicorn's own
    assert "hush" not in written

    of_request = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert {name: (line["route"], line["status"]) for name, line in of_request.items()} == {
        "one": ("/v1/explain", 422),
        "two": ("/v1/models/<path:model>/layers", 503),
        "three": ("unmatched", 404),
        "four": ("/v1/explain", 200),
    }
    four = of_request["four"]
    assert (four["model"], four["explanation"], four["method"]) == ("small", "gradcam", "POST")
    assert four["bytes_out"] == len(explained.content)
    assert 0 < four["seconds"] < 60
    assert four["client"] == "127.0.0.1"
    (why,) = [line for line in lines if line["logger"] == "app.problems"]
    assert (why["level"], why["request_id"]) == ("warning", "two")
    assert "resnet50" in why["event"]


@pytest.mark.server
def test_a_server_writes_plain_text_where_there_is_no_terminal(models_dir: Path) -> None:
    server = start_server(workers="1", torch_threads="1", models_dir=str(models_dir), default_model="small")
    httpx.get(f"{server.url}/healthz", headers={"X-Request-Id": "abc"}, timeout=60)
    written = server.greeting + stop_server(server)
    assert "\x1b" not in written
    (line,) = re.findall(r".*\[app.telemetry\].*", written)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z \[info +\] request ", line)
    assert "request_id=abc method=GET route=/healthz status=200" in line
