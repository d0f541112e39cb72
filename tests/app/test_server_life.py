"""Real server processes that are restarted, stopped and damaged under load: nobody's answer is lost."""

import io
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image

from app import gunicorn_conf
from tests.conftest import Server, start_server, stop_server

pytestmark = pytest.mark.server


class Load:
    """Clients that ask again and again, each on a new connection, until told to stop; what came of it is counted."""

    def __init__(self, url: str, content: bytes, clients: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._stop = threading.Event()
        self._url = url
        self._content = content
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def after(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.outcomes.total() + count
        until(lambda: self.outcomes.total() >= wanted)

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                status = httpx.post(self._url, content=self._content, timeout=60).status_code
                self.outcomes[str(status)] += 1
            except httpx.HTTPError as error:
                self.outcomes[type(error).__name__] += 1


def until(condition: Callable[[], bool], limit_s: float = 180) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers(server: Server) -> set[int]:
    """The processes below the server's master, as the kernel sees them."""
    pid = server.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.fixture
def grey() -> bytes:
    return (Path(__file__).parents[2] / "app" / "web" / "static" / "cat.jpg").read_bytes()


def white() -> bytes:
    picture = io.BytesIO()
    Image.new("L", (32, 32), 255).save(picture, "PNG")
    return picture.getvalue()


def test_a_rolling_restart_under_load_loses_nothing(models_dir: Path, grey: bytes) -> None:
    server = start_server(
        models_dir=str(models_dir),
        default_model="sleepy",
        workers="2",
        torch_threads="1",
        result_cache_bytes="0",
        log_level="warning",
    )
    with Load(f"{server.url}/v1/explain", grey, clients=6) as load:
        load.after(10)
        old = workers(server)
        assert len(old) == 2
        server.process.send_signal(signal.SIGHUP)
        until(lambda: not old & workers(server) and len(workers(server)) == 2)
        load.after(10)
    stop_server(server)
    assert set(load.outcomes) == {"200"}, load.outcomes


def test_who_still_waits_when_the_grace_is_over_is_told_so(models_dir: Path, grey: bytes) -> None:
    server = start_server(
        models_dir=str(models_dir),
        default_model="sleepy",
        workers="1",
        torch_threads="1",
        max_chunk_pictures="1",
        graceful_timeout_s="3",
        log_level="warning",
    )
    answers: list[httpx.Response] = []
    url = f"{server.url}/v1/explain?method=rise&samples=2500"  # of 20 ms each: 50 s
    client = threading.Thread(target=lambda: answers.append(httpx.post(url, content=grey, timeout=60)))
    client.start()
    until(lambda: b'heatlens_pending{model="sleepy"} 1.0' in httpx.get(f"{server.url}/metrics").content)
    began = time.monotonic()
    said = stop_server(server)
    client.join()
    assert server.process.returncode == 0
    assert time.monotonic() - began < 20
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "shutting_down", "1")
    assert "Traceback" not in said


def test_a_worker_that_loses_its_device_answers_and_is_replaced(models_dir: Path, grey: bytes) -> None:
    server = start_server(
        models_dir=str(models_dir),
        default_model="loses_device",
        workers="1",
        torch_threads="1",
        result_cache_bytes="0",
        log_level="warning",
    )
    url = f"{server.url}/v1/explain"
    assert httpx.post(url, content=grey, timeout=60).status_code == 200
    (old,) = workers(server)
    answer = httpx.post(url, content=white(), timeout=60)
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "device_lost", "10")
    until(lambda: len(workers(server)) == 1 and old not in workers(server))
    with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as again:
        assert again.post(url, content=grey, timeout=60).status_code == 200
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    assert "cpu is lost, the process has to be replaced" in stop_server(server)


def test_a_killed_worker_is_replaced_and_the_next_requests_are_answered(models_dir: Path, grey: bytes) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="small", workers="1", torch_threads="1", log_level="warning"
    )
    (old,) = workers(server)
    os.kill(old, signal.SIGKILL)
    until(lambda: len(workers(server)) == 1 and old not in workers(server))
    assert httpx.post(f"{server.url}/v1/explain", content=grey, timeout=60).status_code == 200
    stop_server(server)


def test_each_worker_takes_a_device_of_its_own_and_a_replacement_that_of_the_dead() -> None:
    arbiter: Any = SimpleNamespace(WORKERS={})
    devices = gunicorn_conf._settings.model_copy(update={"device": "cuda:0,cuda:1,cuda:2"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gunicorn_conf, "_settings", devices)
        slots = []
        for pid in range(5):
            worker = SimpleNamespace()
            gunicorn_conf.pre_fork(arbiter, worker)
            arbiter.WORKERS[pid] = worker
            slots.append(worker.slot)
        assert slots == [0, 1, 2, 0, 1]
        del arbiter.WORKERS[2]
        worker = SimpleNamespace()
        gunicorn_conf.pre_fork(arbiter, worker)
        assert worker.slot == 2
