"""Real server processes that are restarted, stopped and damaged under load: nobody's answer is lost."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image

from app import gunicorn_conf
from tests.conftest import Server, launch_server, start_server, stop_server

pytestmark = pytest.mark.server

METRICS = Path(gunicorn_conf.worker_tmp_dir or tempfile.gettempdir())
LOADING_S = 400
"""Workers load beside others that are busy, and the machine may be so too."""


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
        self.stop()

    def stop(self) -> None:
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


def ended(server: Server) -> dict[str, float]:
    """How many workers have ended, by how."""
    page = httpx.get(f"{server.url}/metrics", timeout=60).text
    return {how: float(n) for how, n in re.findall(r'heatlens_workers_ended_total\{how="(\w+)"\} (\S+)', page)}


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
    with Load(f"{server.url}/v1/explain", grey, clients=2) as load:
        load.after(10)
        old = workers(server)
        assert len(old) == 2
        server.process.send_signal(signal.SIGHUP)
        until(lambda: len(workers(server)) == 4)
        new = workers(server) - old
        for pid in new:
            os.kill(pid, signal.SIGSTOP)  # as if their models took long to load
        server.process.send_signal(signal.SIGHUP)
        load.after(20)
        assert workers(server) == old | new
        for pid in new:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not old & workers(server), LOADING_S)
        load.after(10)
    until(lambda: not new & workers(server) and len(workers(server)) == 2, LOADING_S)  # the second was obeyed, too
    until(lambda: ended(server) == {"asked": 4, "killed": 0, "failed": 0})
    stop_server(server)
    assert set(load.outcomes) == {"200"}, load.outcomes


def test_a_new_master_takes_over_under_load_and_loses_nothing(grey: bytes, tmp_path: Path) -> None:
    server = start_server(tmp_path, workers="1", torch_threads="1", result_cache_bytes="0", log_level="warning")
    assert server.process.stdout is not None
    old = workers(server)
    with Load(f"{server.url}/v1/explain", grey, clients=2) as load:
        load.after(10)
        server.process.send_signal(signal.SIGUSR2)
        until(lambda: len(workers(server) - old) == 1)
        (new,) = workers(server) - old
        try:
            for line in server.process.stdout:
                assert "Error" not in line
                if "HeatLens is ready" in line:
                    break
            server.process.terminate()
            assert server.process.wait(60) == 0
            load.after(10)
        finally:
            load.stop()
            server.process.terminate()
            with suppress(ProcessLookupError):
                os.kill(new, signal.SIGTERM)
    said, _ = server.process.communicate(timeout=60)  # to the end, when the last one has ended
    assert "Traceback" not in said
    assert set(load.outcomes) == {"200"}, load.outcomes


def refuses(server: Server) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(("end", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_who_still_waits_when_the_grace_is_over_is_told_so(
    models_dir: Path, grey: bytes, end: signal.Signals, code: int
) -> None:
    """Also by a worker whose master was killed."""
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
    until(lambda: b'heatlens_pending{model="sleepy"} 1.0' in httpx.get(f"{server.url}/metrics", timeout=60).content)
    began = time.monotonic()
    server.process.send_signal(end)
    until(lambda: refuses(server))  # in place of letting in whom nobody answers
    assert client.is_alive()
    said, _ = server.process.communicate(timeout=60)  # to the end, when the worker has ended, too
    client.join()
    assert server.process.returncode == code
    assert time.monotonic() - began < 20
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "shutting_down", "1")
    assert "Traceback" not in said


def test_ctrl_c_ends_all_at_once_whoever_still_waits(models_dir: Path, grey: bytes) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="sleepy", workers="1", job_workers="1", torch_threads="1",
        max_chunk_pictures="1", graceful_timeout_s="600", log_level="warning",
    )  # fmt: skip
    answers: list[httpx.Response] = []

    def ask() -> None:
        with suppress(httpx.HTTPError):
            answers.append(httpx.post(f"{server.url}/v1/explain?method=rise&samples=2500", content=grey, timeout=60))

    client = threading.Thread(target=ask)  # 50 s
    client.start()
    until(lambda: b'heatlens_pending{model="sleepy"} 1.0' in httpx.get(f"{server.url}/metrics", timeout=60).content)
    children = workers(server)
    assert len(children) == 2
    (metrics,) = METRICS.glob(f"heatlens-metrics-{server.process.pid}-*")
    began = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # a terminal tells all
    said, _ = server.process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    client.join()
    assert (server.process.returncode, answers) == (0, [])
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not metrics.exists()
    assert "Traceback" not in said


@pytest.mark.parametrize("where", ["imports torch", "loads its model"])
def test_a_server_is_stopped_at_once_while_its_worker(tmp_path: Path, where: str) -> None:
    (tmp_path / "of_mine.py").write_text(
        "import time\n\n\ndef never():\n    print('waits', flush=True)\n    time.sleep(3600)\n"
    )
    (tmp_path / "m.toml").write_text(
        'arch = "python:of_mine:never"\nweights = "random"\nlabels = ["a", "b", "c", "d"]\n'
        "preprocess = { input_size = 32, mean = [0, 0, 0], std = [1, 1, 1] }\n"
    )
    process = launch_server(
        models_dir=str(tmp_path), default_model="m", workers="1", torch_threads="1", graceful_timeout_s="600",
        log_level="info", cwd=tmp_path,
    )  # fmt: skip
    server = Server("", "", process)
    assert process.stdout is not None
    if where == "imports torch":
        until(lambda: any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in workers(server)))
    else:
        assert any(line == "waits\n" for line in process.stdout)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_all_threads_are_there_from_the_start(models_dir: Path) -> None:
    server = start_server(
        models_dir=str(models_dir), default_model="small", workers="1", torch_threads="1", threads="200",
        log_level="warning",
    )  # fmt: skip
    (worker,) = workers(server)
    assert len(os.listdir(f"/proc/{worker}/task")) > 200
    stop_server(server)


def test_it_listens_at_a_socket_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    monkeypatch.setenv("GUNICORN_CMD_ARGS", f"--bind unix:{path}")
    process = launch_server(workers="1", torch_threads="1")
    assert process.stdout is not None
    assert any(f"ready at unix:{path}" in line for line in process.stdout)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://localhost/readyz", timeout=60).status_code == 200
    assert "Traceback" not in stop_server(Server("", "", process))


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
    assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200
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


def test_one_of_two_workers_is_killed_under_load_and_only_those_it_had_in_hand_notice(
    models_dir: Path, grey: bytes
) -> None:
    clients = 6
    server = start_server(
        models_dir=str(models_dir), default_model="sleepy", workers="2", torch_threads="1",
        result_cache_bytes="0", log_level="warning",
    )  # fmt: skip
    with Load(f"{server.url}/v1/explain", grey, clients=clients) as load:
        load.after(10)
        dead, other = workers(server)
        os.kill(dead, signal.SIGKILL)
        load.after(20)  # by the other one, whatever the new one is doing
        until(lambda: len(workers(server)) == 2 and dead not in workers(server))
        loaded = b"heatlens_loaded_models 2.0"
        until(lambda: loaded in httpx.get(f"{server.url}/metrics", timeout=60).content)
        load.after(10)
    assert other in workers(server)
    cut_off = load.outcomes.total() - load.outcomes["200"]
    assert cut_off <= clients
    assert set(load.outcomes) <= {"200", "ReadError", "RemoteProtocolError"}, load.outcomes
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).content
    assert b'heatlens_pending{model="sleepy"} 0.0' in metrics
    assert b'heatlens_workers_ended_total{how="killed"} 1.0' in metrics
    stop_server(server)


def test_a_worker_that_cannot_be_replaced_does_not_end_the_others(
    models_dir: Path, grey: bytes, tmp_path: Path
) -> None:
    for file in models_dir.glob("small.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    server = start_server(
        models_dir=str(tmp_path), default_model="small", workers="2", torch_threads="1", log_level="warning"
    )
    until(lambda: b"heatlens_loaded_models 2.0" in httpx.get(f"{server.url}/metrics", timeout=60).content)
    (tmp_path / "small.toml").rename(tmp_path / "small.away")
    dead, other = workers(server)
    os.kill(dead, signal.SIGKILL)
    until(lambda: len(workers(server)) == 2 and dead not in workers(server))
    until(lambda: workers(server) == {other})  # the new one could not start
    assert httpx.post(f"{server.url}/v1/explain", content=grey, timeout=60).status_code == 200
    (tmp_path / "small.away").rename(tmp_path / "small.toml")
    until(lambda: b"heatlens_loaded_models 2.0" in httpx.get(f"{server.url}/metrics", timeout=60).content)
    assert server.process.poll() is None
    assert "cannot start with these models" in stop_server(server)


def test_tls_is_refused_since_it_would_go_around_what_slow_clients_meet() -> None:
    certificate = str(Path(__file__))  # is not even read
    command = [sys.executable, "-m", "gunicorn", "-c", "python:app.gunicorn_conf", "-b", "127.0.0.1:0"]
    tls = ["--certfile", certificate, "--keyfile", certificate, "app.wsgi:application()"]
    ended = subprocess.run([*command, *tls], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "does not speak TLS" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_sigterm_changes_nothing_even_in_the_middle_of_the_first() -> None:
    code = """
import signal, threading
from types import SimpleNamespace as Some
from app import gunicorn_conf

class Ending(threading.Event):
    def set(self):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        with self._cond:  # as Event.set has it while it works
            signal.raise_signal(signal.SIGTERM)
        super().set()

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
extensions = {"heatlens": Some(close=lambda grace_s: None), "heatlens_streams": Some(ending=Ending())}
gunicorn_conf._answer_before_the_grace_is_over(Some(wsgi=Some(extensions=extensions)))
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGTERM)
print(len(told), extensions["heatlens_streams"].ending.is_set())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "1 True\n", ended.stderr


def test_the_metrics_of_dead_masters_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    old = time.time() - 3600
    for name in ("heatlens-metrics-1-dead", "heatlens-metrics-1-alive", "heatlens-metrics-1-young", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "counter_1.db").write_bytes(b"")
        if "young" not in name:
            os.utime(tmp_path / name, (old, old))
    (tmp_path / "heatlens-metrics-link").symlink_to(tmp_path / "other")
    held = gunicorn_conf._lock(tmp_path / "heatlens-metrics-1-alive")
    assert held is not None
    gunicorn_conf._remove_what_dead_masters_left(tmp_path)
    os.close(held)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"heatlens-metrics-1-alive", "heatlens-metrics-1-young", "other", "heatlens-metrics-link"}
    assert (tmp_path / "other" / "counter_1.db").exists()


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
