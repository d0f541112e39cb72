"""The server as the image runs it: a user without rights, and nothing to write to but /data, /tmp and /dev/shm."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Server, stop_server
from tests.support import require

REPOSITORY = Path(__file__).parents[2]
USER = "10001"
DATA = "/mnt"
"""In the place of the image's /data, which a machine need not have."""
ALONE = """
mount --bind "$1" /mnt
mount -o remount,ro,bind /
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777,size=64m tmpfs /dev/shm
shift
cd /mnt
exec "$@"
"""
"""What `docker run --read-only --tmpfs /tmp` gives, with its usual 64 MiB of shared memory."""
IN_A_NAMESPACE = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", ALONE, "sh"]
AS_NOBODY = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
READS_ALL = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""Python may lie in a folder of root's, where an image has it for everybody. This right is to read, not to write."""


def environment_of_the_image() -> dict[str, str]:
    """What the Dockerfile sets, in the second stage, without what belongs to its build."""
    text = (REPOSITORY / "Dockerfile").read_text().split("\nFROM ")[2].replace("\\\n", " ")
    pairs = [pair for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split()]
    variables = dict(pair.split("=", 1) for pair in pairs if not pair.startswith("PIP_"))
    return {name: re.sub("^/data", DATA, value) for name, value in variables.items()}


def settings() -> dict[str, str]:
    image = environment_of_the_image()
    assert image["HEATLENS_HOST"] == "0.0.0.0"  # noqa: S104 - it is what is looked for
    # No folder /models here, which the image makes; one worker is enough.
    return {**image, "HEATLENS_MODELS_DIR": "", "HEATLENS_PORT": "0", "HEATLENS_WORKERS": "1", "HOME": DATA}


def command(data: Path, *arguments: str) -> list[str]:
    heatlens = [sys.executable, "-c", "from app.cli import main; main()", *arguments]
    return [*IN_A_NAMESPACE, str(data), *AS_NOBODY, *READS_ALL, *heatlens]


def environment() -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **settings(), "HEATLENS_TORCH_THREADS": "1", "HEATLENS_LOG_LEVEL": "warning"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-o", "remount,ro,bind", "/"], capture_output=True, check=False
    )
    require(tried.returncode == 0, "root with the right to mount")
    folder = tmp_path_factory.mktemp("container")
    os.chown(folder, int(USER), int(USER))
    return folder


@pytest.fixture(scope="module")
def key(data: Path) -> str:
    """The first key, made as the documentation says, before the server starts."""
    making = command(data, "keys", "create", "first", "--scope", "explain,jobs,admin")
    done = subprocess.run(making, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def running(data: Path, key: str) -> Iterator[tuple[Server, list[str]]]:
    """The server, and what it said from then on."""
    process = subprocess.Popen(
        command(data, "serve"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"curl .*-T .* (http://\S+)/v1/explain", line):
            break
    else:
        raise RuntimeError("".join(said))
    server = Server(found[1], "".join(said), process)
    yield server, said
    if process.poll() is None:
        stop_server(server)


@pytest.fixture(scope="module")
def client(running: tuple[Server, list[str]], key: str) -> Iterator[httpx.Client]:
    server, _ = running
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
        yield client


@pytest.mark.server
def test_everything_works_with_three_places_to_write(
    running: tuple[Server, list[str]], client: httpx.Client, data: Path, cat: bytes
) -> None:
    server, said = running
    assert httpx.post(f"{server.url}/v1/explain", content=cat, timeout=60).status_code == 401
    assert client.post("/v1/explain", content=cat).is_success
    chart = client.post("/v1/diagnostics/gradient-flow?format=png", content=cat)  # matplotlib and its fonts
    assert chart.content.startswith(b"\x89PNG")
    assert client.post("/v1/embed-links", content=cat).is_success  # the secret that signs
    assert "heatlens_requests_total" in client.get("/metrics").text
    job = _finished(client, cat)
    assert job["status"] == "succeeded", job

    root = Path(f"/proc/{server.process.pid}/root")
    with pytest.raises(OSError, match="Read-only file system"):
        (root / "var" / "tmp" / "try").touch()
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert re.search(rf"^Uid:\t{USER}\t{USER}\t{USER}\t{USER}$", status, re.MULTILINE)
    left = {path.name.partition("-")[0] for path in (root / "tmp").iterdir()}
    assert left <= {"matplotlib", f"torchinductor_uid_{USER}"}, "what is temporary is gone when its request is"
    kept = {re.sub(r"^(jobs\.db|embed\.secret).*", r"\1", path.name) for path in data.iterdir()}
    assert {"jobs.db", "jobs", "embed.secret"} <= kept <= {"jobs.db", "jobs", "embed.secret", "locks", "records"}

    rest = stop_server(server)
    assert server.process.returncode == 0
    lines = ("".join(said) + rest).splitlines()
    log = "\n".join(line for line in lines if "[matplotlib]" not in line)  # it says that its fonts go elsewhere
    for trouble in ("Traceback", "Read-only", "Permission denied"):
        assert trouble not in log


def _finished(client: httpx.Client, picture: bytes) -> dict[str, Any]:
    """Return a job when it is over, for which its events are waited for."""
    path = f"/v1/jobs/{client.post('/v1/jobs', files={'image': ('cat.png', picture)}).json()['id']}"
    with client.stream("GET", f"{path}/events") as events:
        assert any(line == "event: end" for line in events.iter_lines())
    job: dict[str, Any] = client.get(path).json()
    return job | {"items": client.get(f"{path}/items").json()["items"]}
