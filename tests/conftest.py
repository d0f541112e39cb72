"""Fixtures that need the whole service."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
from flask.testing import FlaskClient

from app import create_app
from app.config import Settings
from tests import zoo
from tests.support import PICTURES

# pytest imports readline, which tells child processes, as the workers of xdist are, of a terminal that nobody has.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# How long an example takes says nothing on a machine that is busy with others.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@dataclass(frozen=True)
class Server:
    """A running `heatlens serve`."""

    url: str
    greeting: str
    process: subprocess.Popen[str]


@pytest.fixture(autouse=True, scope="session")
def _data_dir(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing that a test leaves out lands in the data folder of whoever runs the tests."""
    os.environ["HEATLENS_DATA_DIR"] = str(tmp_path_factory.mktemp("data"))


def launch_server(cwd: Path | None = None, **settings: str) -> subprocess.Popen[str]:
    """Begin to start a real server on a free port; no worker for jobs, unless asked."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    settings = {"job_workers": "0", "data_dir": os.environ["HEATLENS_DATA_DIR"], **settings}
    environment |= {f"HEATLENS_{name.upper()}": value for name, value in settings.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", "0"],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_server(cwd: Path | None = None, **settings: str) -> Server:
    """Start a server, as `launch_server` does, and wait until it says that it is ready."""
    process = launch_server(cwd, **settings)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"curl .*-T .* (http://\S+)/v1/explain", line):
            return Server(found[1], "".join(lines), process)
    msg = f"the server stopped with {process.wait()}:\n{''.join(lines)}"
    raise RuntimeError(msg)


def stop_server(server: Server) -> str:
    """Stop a server as an operator does, and return what it still had to say."""
    server.process.terminate()
    rest, _ = server.process.communicate(timeout=60)
    return rest


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server process with the embedded model, one worker, and one for jobs."""
    jobs = {"job_workers": "1", "data_dir": str(tmp_path_factory.mktemp("server"))}
    running = start_server(workers="1", torch_threads="1", log_level="warning", **jobs)
    yield running
    stop_server(running)


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with the small networks of `tests.zoo`."""
    folder = tmp_path_factory.mktemp("models")
    zoo.write_model_files(folder)
    return folder


@pytest.fixture(scope="session")
def client(models_dir: Path) -> Iterator[FlaskClient]:
    """A client of the app in this process, with the embedded model and the zoo; every answer is computed."""
    settings = Settings(
        models_dir=models_dir, torch_threads=1, max_body_bytes=4 * 2**20, load_wait_s=60, result_cache_bytes=0
    )
    app = create_app(settings)
    service = app.extensions["heatlens"]
    service.start()
    yield app.test_client()
    service.close()


@pytest.fixture(scope="session")
def cat() -> bytes:
    """scikit-image's cat Chelsea, 451 x 300, PNG."""
    return (PICTURES / "chelsea.png").read_bytes()
