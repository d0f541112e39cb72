"""Real servers whose disk fills, is read-only, whose database is locked, whose clock jumps, whose model's file changes.

Explaining goes on; what cannot be done says why; and all is well when the fault is over, without a restart.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from tests import zoo
from tests.app.disks import Clock, clock, disk
from tests.app.jobs.crew import children
from tests.app.soaking import picture
from tests.conftest import Server, start_server, stop_server

pytestmark = pytest.mark.server

SQLITE_PATIENCE_S = 29
YEAR_S = 365 * 24 * 3600.0
LIMIT_S = 240


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@contextmanager
def serving(
    models_dir: Path, data_dir: Path, environment: dict[str, str] | None = None, **settings: str
) -> Iterator[Server]:
    """A server with the small network, one worker, and one for jobs, unless told otherwise."""
    chosen = {
        "models_dir": str(models_dir),
        "default_model": "small",
        "data_dir": str(data_dir),
        "workers": "1",
        "job_workers": "1",
        "torch_threads": "1",
        "min_free_bytes": "0",
        "log_level": "warning",
        **settings,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        server = start_server(**chosen)
    try:
        yield server
    finally:
        print(stop_server(server))  # noqa: T201 - for who looks at a failure


def explain(server: Server, number: int = 0) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/explain", content=picture(number), timeout=LIMIT_S)


def submit(server: Server, pictures: int = 1) -> httpx.Response:
    files = [("image", (f"{number}.jpg", picture(number))) for number in range(pictures)]
    return httpx.post(f"{server.url}/v1/jobs", files=files, timeout=LIMIT_S)


def keep(server: Server) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/images", content=picture(0), timeout=LIMIT_S)


def link(server: Server) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/embed-links", content=picture(0), timeout=LIMIT_S)


def job(server: Server, job_id: str) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/v1/jobs/{job_id}", timeout=LIMIT_S)
    return dict(answer.raise_for_status().json())


def require_finished(server: Server, job_id: str, pictures: int) -> None:
    until(lambda: job(server, job_id)["finished_at"])
    found = job(server, job_id)
    assert found["status"] == "succeeded"
    assert found["progress"] == {"total": pictures, "done": pictures, "failed": 0}
    lines = httpx.get(f"{server.url}/v1/jobs/{job_id}/results.ndjson", timeout=LIMIT_S).text.splitlines()
    assert len(lines) == pictures


def metrics(server: Server) -> str:
    return httpx.get(f"{server.url}/metrics", timeout=LIMIT_S).text


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def half_written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


def test_a_full_disk_stops_what_is_kept_and_nothing_else(models_dir: Path, tmp_path: Path) -> None:
    pictures = 40
    with disk(tmp_path / "disk", 16 * 2**20) as small, serving(models_dir, small.folder / "data") as server:
        kept = keep(server).raise_for_status().json()
        under_way = submit(server, pictures).raise_for_status().json()["id"]
        until(lambda: job(server, under_way)["progress"]["done"])
        small.fill()
        assert explain(server).status_code == 200
        assert httpx.get(f"{server.url}/readyz", timeout=LIMIT_S).status_code == 200
        assert refused(keep(server)) == (507, "out_of_space")
        assert refused(link(server)) == (507, "out_of_space")
        assert refused(submit(server)) == (507, "out_of_space")
        assert httpx.get(f"{server.url}/v1/images/{kept['id']}", timeout=LIMIT_S).status_code == 200
        assert half_written(small.folder) == []
        small.make_room()
        require_finished(server, under_way, pictures)
        after = submit(server).raise_for_status().json()["id"]
        require_finished(server, after, 1)
        assert keep(server).status_code == 201
        assert half_written(small.folder) == []


def test_a_data_folder_that_is_read_only_is_waited_for(models_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        volume = stack.enter_context(disk(tmp_path / "disk", 16 * 2**20))
        volume.remount("ro")
        server = stack.enter_context(serving(models_dir, volume.folder / "data"))
        assert explain(server).status_code == 200
        for ask in (submit, keep, link):
            answer = ask(server)
            assert refused(answer) == (503, "jobs_unavailable")
            assert "Retry-After" in answer.headers
        assert httpx.get(f"{server.url}/readyz", timeout=LIMIT_S).status_code == 200
        volume.remount("rw")
        until(lambda: submit(server).status_code == 202)
        require_finished(server, submit(server).json()["id"], 1)
        assert keep(server).status_code == 201


def test_a_locked_database_holds_up_who_writes_and_nobody_else(models_dir: Path, tmp_path: Path) -> None:
    """SQLite's own patience is 30 s; then whoever writes is refused, and nothing of the job is left."""
    with serving(models_dir, tmp_path) as server:
        require_finished(server, submit(server).json()["id"], 1)
        with closing(sqlite3.connect(tmp_path / "jobs.db", timeout=30)) as somebody:
            somebody.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            answer = submit(server)
            assert refused(answer) == (503, "jobs_unavailable")
            assert answer.headers["Retry-After"] == "5"
            assert time.monotonic() - began > SQLITE_PATIENCE_S
            assert explain(server).status_code == 200
            assert len(httpx.get(f"{server.url}/v1/jobs", timeout=LIMIT_S).json()["jobs"]) == 1
            somebody.rollback()
        require_finished(server, submit(server).raise_for_status().json()["id"], 1)
        assert len(list((tmp_path / "jobs").iterdir())) == 2
        assert half_written(tmp_path) == []


def have_house_kept(server: Server, folder: Path) -> None:
    """Delete a job, and wait until whoever removes its files has been round."""
    deleted = submit(server).raise_for_status().json()["id"]
    require_finished(server, deleted, 1)
    httpx.delete(f"{server.url}/v1/jobs/{deleted}", timeout=LIMIT_S).raise_for_status()
    until(lambda: not (folder / deleted).exists())


@pytest.fixture
def wrong_clock(tmp_path: Path) -> Clock:
    return clock(tmp_path)


def test_a_clock_that_jumps_deletes_nothing_and_ends_no_request(
    models_dir: Path, tmp_path: Path, wrong_clock: Clock
) -> None:
    """A year on, then a year back, as while a machine has not heard from its time server."""
    with serving(models_dir, tmp_path / "data", wrong_clock.environment) as server:
        before = submit(server).raise_for_status().json()["id"]
        require_finished(server, before, 1)
        for years in (1, -1, 0):
            wrong_clock.jump(years * YEAR_S)
            year = int(httpx.get(f"{server.url}/healthz", timeout=LIMIT_S).headers["Date"].split()[3])
            assert year == time.gmtime().tm_year + years
            assert explain(server, 10 + years).status_code == 200
            require_finished(server, submit(server).raise_for_status().json()["id"], 1)
            assert keep(server).status_code == 201
            have_house_kept(server, tmp_path / "data" / "jobs")
            require_finished(server, before, 1)
        listed = httpx.get(f"{server.url}/v1/jobs", timeout=LIMIT_S).json()["jobs"]
        assert len(listed) == 4


class Weights:
    """A model file and its weights, which somebody else writes again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "own.safetensors"
        zoo.write_model_files(folder)
        (folder / "own.toml").write_text(
            (folder / "small.toml").read_text().replace('weights = "random"', f'weights = "{self.file.name}"')
        )
        assert self.file.name in (folder / "own.toml").read_text()

    def write(self, seed: int) -> None:
        """Put other weights in the place of the file, as `cp` and downloads should do it."""
        torch.manual_seed(seed)
        other = self.file.with_suffix(".new")
        save_file(zoo.Small().state_dict(), other)
        other.rename(self.file)


def sha256(answer: httpx.Response) -> str:
    return str(answer.raise_for_status().json()["model"]["weights_sha256"])


def test_other_weights_under_the_same_name_are_never_unnoticed(tmp_path: Path) -> None:
    """A worker keeps what it has, whatever becomes of the file; one that replaces it names what it found."""
    (tmp_path / "models").mkdir()
    weights = Weights(tmp_path / "models")
    weights.write(seed=1)
    with serving(tmp_path / "models", tmp_path / "data", default_model="own", workers="2", job_workers="0") as server:

        def ask(number: int) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/explain?format=json", content=picture(number), timeout=LIMIT_S)

        until(lambda: "heatlens_loaded_models 2.0" in metrics(server))
        first = sha256(ask(1))
        os.truncate(weights.file, 100)  # in place, which would kill who had it mapped
        assert {sha256(ask(number)) for number in range(10)} == {first}
        old = set(children(server.process.pid))
        os.kill(min(old), signal.SIGKILL)  # who takes its place finds a damaged file, and the other goes on
        until(lambda: min(old) not in children(server.process.pid))
        until(lambda: 'heatlens_workers_ended_total{how="failed"} 0.0' not in metrics(server))
        assert {sha256(ask(number)) for number in range(10, 20)} == {first}
        weights.write(seed=2)
        until(lambda: sha256(ask(1)) != first)
        assert len({sha256(ask(number)) for number in range(20, 40)}) <= 2
        said = stop_server(server)
    assert "own.safetensors" in said
    assert "Traceback" not in said
