"""Keys at a real server, by the client, the wire and the log."""

import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from app.client import HeatLens, HeatLensError
from app.config import Settings
from app.jobs.artifacts import result_key
from app.jobs.database import Database
from app.keys import Keys
from tests.app.jobs.books import file_names, opened
from tests.conftest import start_server, stop_server

CAT = Path("app/web/static/cat.jpg").absolute()
PATIENCE_S = 60.0


def test_a_server_with_keys(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    keys = Keys(settings, Database(settings))
    key, text = keys.create("ann", ["explain", "jobs"])
    server = start_server(data_dir=str(tmp_path), workers="1", torch_threads="1", log_format="json")
    try:
        with HeatLens(server.url, api_key=text) as lens:
            assert lens.explain(CAT, target="tabby").label == "tabby"
            job = lens.jobs.create([CAT])
            assert [listed.id for listed in lens.jobs] == [job.id]
        with HeatLens(server.url) as stranger, pytest.raises(HeatLensError) as refused:
            stranger.jobs.get(job.id)
        assert (refused.value.code, refused.value.status) == ("unauthorized", 401)
        answer = httpx2.post(
            f"{server.url}/v1/tickets",
            json={"path": f"/v1/jobs/{job.id}/results.ndjson"},
            headers={"X-API-Key": text},
            timeout=PATIENCE_S,
        )
        url = answer.json()["url"]
        assert httpx2.get(f"{server.url}{url}", timeout=PATIENCE_S).status_code == 200
        assert_refused_before_the_body(server.url)
        keys.revoke("ann")
        until = time.monotonic() + PATIENCE_S
        methods, of_ann = f"{server.url}/v1/methods", {"X-API-Key": text}
        while httpx2.get(methods, headers=of_ann, timeout=PATIENCE_S).status_code != 401:
            assert time.monotonic() < until, "the key opens doors for ever"
            time.sleep(0.2)
        assert httpx2.get(f"{server.url}{url}", timeout=PATIENCE_S).status_code == 401
    finally:
        log = server.greeting + stop_server(server)
    assert text not in log
    assert text.split("_", 2)[2] not in log
    assert url.partition("=")[2] not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    of_requests = [line for line in lines if line["event"] == "request"]
    assert {(line["route"], line.get("key")) for line in of_requests} >= {
        ("/v1/explain", key.id),
        ("/v1/jobs/<id>/results.ndjson", key.id),
        ("/v1/jobs/<id>", None),
    }


def test_a_download_of_a_job_that_is_deleted_meanwhile_breaks_off(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    large = bytes(16 * 2**20)  # more than lies between server and client
    with opened(settings) as book:
        job_id = book.submit(["a.png", "b.png"])
        book.succeed(job_id, 0, 1)
        for number in (0, 1):
            for name in file_names(number):
                book.store.write(result_key(job_id, name, number), large)
    server = start_server(data_dir=str(tmp_path), workers="1", torch_threads="1", job_workers="0")
    try:
        with httpx2.stream("GET", f"{server.url}/v1/jobs/{job_id}/results.zip", timeout=PATIENCE_S) as download:
            pieces = download.iter_raw()
            assert next(pieces)
            assert httpx2.delete(f"{server.url}/v1/jobs/{job_id}", timeout=PATIENCE_S).status_code == 204
            with pytest.raises(httpx2.RemoteProtocolError):
                list(pieces)
        assert httpx2.get(f"{server.url}/v1/jobs/{job_id}", timeout=PATIENCE_S).status_code == 404
    finally:
        log = server.greeting + stop_server(server)
    assert log.count("cut short") == 1
    assert "Traceback" not in log


def assert_refused_before_the_body(url: str) -> None:
    """A gigabyte is promised and nothing of it sent; the answer comes all the same."""
    host = urlsplit(url)
    with socket.create_connection((str(host.hostname), host.port or 80), timeout=PATIENCE_S) as wire:
        wire.sendall(b"POST /v1/explain HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("text", ["", "a b", "a\r\nHost: evil", "schlüssel"])
def test_what_cannot_be_a_key_is_refused_and_not_told_again(text: str) -> None:
    with pytest.raises(ValueError, match="no key has") as refused:
        HeatLens("http://127.0.0.1:1", text)
    assert text == "" or text not in str(refused.value)
