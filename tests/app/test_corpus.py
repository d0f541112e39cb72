"""Every hostile file of tests/corpus gets the answer that it deserves, within bounded memory, and harms nobody else."""

import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.imaging.decode import Limits, decode
from app.jobs.archives import ArchiveLimits, members
from app.known_errors import KNOWN_ERRORS
from tests.app.imaging import files
from tests.conftest import Server, start_server, stop_server
from tests.corpus import FOLDER, MANIFEST, Hostile, corpus

GROWTH_BYTES = 256 * 2**20
"""What a request may take for a moment: a file that got what it claims would take 3 to 11 GB."""
HEAVY_BYTES = 64_000_000 * 8
"""The one honest picture of 64 million px: its samples, three bytes a pixel as RGB, and as much for what is made."""
CORPUS_BYTES = 300_000
GOOD = files.save(files.flat(200, 40, 40), "PNG")


def outcome(file: Hostile) -> str | None:
    """What the part of the service that reads such a file says of it; None: nothing against it."""
    try:
        if file.kind == "picture":
            decode(file.data, Limits(), enough_px=320, longest_px=1024)
            return None
        limits = ArchiveLimits(items=100_000, bytes=20 * 2**30, ratio=100.0, picture_bytes=20 * 2**20)
        taken = [b"".join(member.data) for member in members(io.BytesIO(file.data), limits)]
    except KNOWN_ERRORS as error:
        return error.code
    if not taken:
        return "no_pictures"
    return None if all(taken) else "empty_image"  # a job's draft takes no picture without bytes


@pytest.mark.parametrize("file", [file for file in corpus() if file.kind != "json"], ids=lambda file: file.name)
def test_what_reads_it_says_the_same(file: Hostile) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd tags, as in the server
        assert outcome(file) == file.code


def test_the_corpus_is_what_its_table_says_and_small() -> None:
    names = sorted(path.name for path in FOLDER.iterdir())
    assert names == sorted(file.name for file in corpus())
    table = MANIFEST.with_name("README.md").read_text()
    assert [name for name in names if f"| {name} |" not in table] == []
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < CORPUS_BYTES


@pytest.fixture(scope="module")
def lone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one worker, in whose memory nobody else is."""
    data_dir = str(tmp_path_factory.mktemp("corpus"))
    running = start_server(workers="1", torch_threads="1", log_level="error", data_dir=data_dir, max_caller_jobs="1000")
    yield running
    said = stop_server(running)
    assert "Traceback" not in said


def worker_of(server: Server) -> Path:
    """The folder in /proc of the one worker."""
    pid = server.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return Path("/proc", worker)


def memory_bytes(process: Path, name: str) -> int:
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def send(client: httpx.Client, file: Hostile) -> httpx.Response:
    if file.kind == "archive":
        return client.post("/v1/jobs", files={"archive": (file.name, file.data)})
    content_type = "application/json" if file.kind == "json" else "application/octet-stream"
    return client.post("/v1/explain", content=file.data, headers={"Content-Type": content_type})


def code_of(response: httpx.Response) -> str | None:
    kind = response.headers.get("Content-Type")
    return json.loads(response.content)["code"] if kind == "application/problem+json" else None


@pytest.mark.server
@pytest.mark.parametrize("kind", ["picture", "archive", "json"])
def test_a_live_server_answers_each_and_goes_on(lone_server: Server, kind: str) -> None:
    """After each one a good picture is classified, by the same process, whose memory is looked at each time."""
    worker = worker_of(lone_server)
    wrong, grown = [], []
    with httpx.Client(base_url=lone_server.url, timeout=120) as client:
        client.post("/v1/explain", content=GOOD).raise_for_status()
        for file in (each for each in corpus() if each.kind == kind):
            (worker / "clear_refs").write_text("5")  # the peak begins anew
            before = memory_bytes(worker, "VmRSS")
            response = send(client, file)
            if (response.status_code, code_of(response)) != (file.status, file.code):
                wrong.append((file.name, response.status_code, response.text[:200]))
            if memory_bytes(worker, "VmHWM") - before > (HEAVY_BYTES if file.heavy else GROWTH_BYTES):
                grown.append((file.name, memory_bytes(worker, "VmHWM") - before))
            seen = client.post("/v1/predict", content=GOOD)
            assert seen.status_code == 200, file.name
    assert wrong == []
    assert grown == []
    assert worker_of(lone_server) == worker
    assert lone_server.process.poll() is None
    assert os.path.exists(worker)
