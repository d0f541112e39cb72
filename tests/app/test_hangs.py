"""A model that never comes back, or that asks for more memory than there is: whoever waits hears of it."""

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.config import Settings
from app.engine import ModelStuck
from app.hosts import Hosts
from app.tasks import Payload, Predict
from models import Registry
from tests import zoo
from tests.app.test_server_life import until, white, workers
from tests.conftest import start_server, stop_server

CAT = (Path(__file__).parents[2] / "app" / "web" / "static" / "cat.jpg").read_bytes()


@pytest.mark.server
def test_a_worker_whose_model_hangs_is_replaced_each_time_and_says_so_in_one_line(models_dir: Path) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="hangs", workers="1", torch_threads="1", result_cache_bytes="0",
        request_timeout_s="5", method_timeouts_s="rise=120", model_stall_s="8", log_level="warning",
    )  # fmt: skip
    url = f"{server.url}/v1/explain"
    for _time in range(2):
        (old,) = workers(server)
        until(lambda: httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200)
        too_late = httpx.post(url, content=white(), timeout=60)
        assert (too_late.status_code, too_late.json()["code"]) == (504, "deadline_exceeded")
        held = httpx.post(f"{url}?method=rise&samples=16", content=CAT, timeout=120)
        assert (held.status_code, held.json()["code"], held.headers["Retry-After"]) == (503, "model_stuck", "10")
        until(lambda old=old: len(workers(server)) == 1 and old not in workers(server))  # type: ignore[misc]
    with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as again:
        assert again.post(f"{url}?method=rise&samples=16", content=CAT, timeout=120).status_code == 200
    said = stop_server(server)
    assert said.count("hangs still runs") == 2
    assert said.count("HEATLENS_MODEL_STALL_S") == 2
    assert "Traceback" not in said


def test_a_model_that_is_let_go_while_it_hangs_is_found_too(models_dir: Path) -> None:
    lost = threading.Event()
    settings = Settings(models_dir=models_dir, default_model="slow", model_stall_s=0.05, torch_threads=1)
    hosts = Hosts(Registry(models_dir), settings, on_lost=lost.set)
    zoo.slow_is_running.clear()
    host = hosts.ready("slow")
    zoo.may_answer.clear()
    try:
        job = host.submit(Predict(), Payload(np.zeros((3, 32, 32), np.float32)), timeout_s=0.05)
        assert zoo.slow_is_running.wait(60)
        hosts.unload("slow")
        deadline = time.monotonic() + 60
        while not lost.is_set():
            hosts.watch()
            assert time.monotonic() < deadline
        with pytest.raises(ModelStuck, match=r"'slow' does not come back .* try again in 10 s"):
            hosts.get("slow")
        assert isinstance(job.future.exception(timeout=60), ModelStuck)
        began = time.monotonic()
        hosts.close(grace_s=600)  # whoever waited was told, and a thread that hangs does not end
        assert time.monotonic() - began < 60
    finally:
        zoo.may_answer.set()


@pytest.mark.server
def test_a_worker_in_which_no_thread_runs_any_more_is_killed_by_the_master(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--timeout 45")  # in place of two minutes
    server = start_server(
        models_dir=str(models_dir), default_model="stops", workers="1", torch_threads="1", log_level="warning"
    )
    (old,) = workers(server)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{server.url}/v1/explain", content=white(), timeout=120)
    until(lambda: len(workers(server)) == 1 and old not in workers(server))
    assert httpx.post(f"{server.url}/v1/explain", content=CAT, timeout=120).status_code == 200
    assert "WORKER TIMEOUT" in stop_server(server)


@pytest.mark.server
def test_a_picture_for_which_there_is_no_memory_is_answered_and_so_is_the_next(models_dir: Path) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="ravenous", workers="1", torch_threads="1", log_level="warning"
    )
    (worker,) = workers(server)
    answer = httpx.post(f"{server.url}/v1/explain", content=white(), timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (503, "out_of_memory")
    assert httpx.post(f"{server.url}/v1/explain", content=CAT, timeout=60).status_code == 200
    assert workers(server) == {worker}
    assert "Traceback" not in stop_server(server)


@pytest.mark.server
def test_a_stopped_process_is_ended_by_the_kernel_when_its_grace_is_over(models_dir: Path) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="leaves_thread", workers="1", torch_threads="1",
        graceful_timeout_s="1", log_level="warning",
    )  # fmt: skip
    (old,) = workers(server)
    assert httpx.post(f"{server.url}/v1/explain", content=white(), timeout=60).status_code == 200
    os.kill(old, signal.SIGTERM)
    until(lambda: old not in workers(server))
    assert f"Worker (pid:{old}) was sent SIGALRM" in stop_server(server)
