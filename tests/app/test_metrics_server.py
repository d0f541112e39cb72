"""Metrics of a real server with two workers."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.multiprocess import MultiProcessCollector

from tests.app.test_metrics import values
from tests.conftest import Server, start_server, stop_server

pytestmark = pytest.mark.server
HEALTHZ = "heatlens_requests_total method=GET route=/healthz status=200"


def test_workers_count_together_and_a_killed_one_is_taken_out(
    tmp_path: Path, cat: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, foreign = tmp_path / "counter_1.db", tmp_path / "jobs.txt"
    for file in (old, foreign):
        file.write_bytes(bytes(64))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    server = start_server(workers="2", torch_threads="1", log_level="warning")
    assert not old.exists()
    assert foreign.exists()

    sent = 0
    while not all(_own(tmp_path, "counter", pid).get(HEALTHZ) for pid in _workers(server)):
        httpx.get(f"{server.url}/healthz", timeout=60)
        sent += 1
        assert sent < 2000, "one worker got everything"
    assert _metrics(server)[HEALTHZ] == sent

    threading.Thread(target=_explain_for_long, args=(server, cat), daemon=True).start()
    pending = "heatlens_pending model=efficientnet_lite0"
    _wait_for(lambda: _metrics(server).get(pending) == 1)
    (busy,) = [pid for pid in _workers(server) if _own(tmp_path, "gauge_livesum", pid).get(pending)]
    os.kill(busy, signal.SIGKILL)
    _wait_for(lambda: not list(tmp_path.glob(f"gauge_*_{busy}.db")))
    found = _metrics(server)
    assert not found.get(pending)
    assert found[HEALTHZ] == sent
    stop_server(server)
    assert foreign.exists()


def test_its_own_folder_is_removed_at_the_end(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    server = start_server(workers="1", torch_threads="1", models_dir=str(models_dir), default_model="small")
    (worker,) = _workers(server)
    (found,) = set(re.findall(r"\S+/heatlens-metrics-[\w-]+(?=/)", Path(f"/proc/{worker}/maps").read_text()))
    folder = Path(found)
    assert (folder.stat().st_mode & 0o777, {file.suffix for file in folder.iterdir()}) == (0o700, {".db"})
    stop_server(server)
    assert not folder.exists()


def _workers(server: Server) -> list[int]:
    master = server.process.pid
    return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


def _own(folder: Path, kind: str, pid: int) -> dict[str, float]:
    """Return what one worker has written."""
    families = MultiProcessCollector.merge([str(file) for file in folder.glob(f"{kind}_{pid}.db")])
    return {
        sample.name + "".join(f" {name}={label}" for name, label in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def _metrics(server: Server) -> dict[str, float]:
    return values(httpx.get(f"{server.url}/metrics", timeout=30).content)


def _explain_for_long(server: Server, cat: bytes) -> None:
    try:
        httpx.post(f"{server.url}/v1/explain?method=rise&samples=5000", content=cat, timeout=60)
    except httpx.TransportError:
        return  # its worker is killed


def _wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)
