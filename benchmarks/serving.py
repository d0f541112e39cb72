"""Requests per second and latency over HTTP: HeatLens beside the server that people write today.

wrk drives both servers in turns within one run: each round measures both, and the ratios are taken round by round.
Each request sends a picture that neither server has seen before, except in the rows that say otherwise. wrk shares the
cores with the servers, as they share the machine with each other; a server is measured when the others are idle.
"""

import argparse
import itertools
import json
import math
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

from _timing import print_table
from PIL import Image

HERE = Path(__file__).parent
PICTURE = HERE.parent / "app" / "web" / "static" / "cat.jpg"
MANY = 16
"""Connections, beside the rows with one."""
PEER = "1: Flask + pytorch-grad-cam"
TUNED = "2: the same with OMP_NUM_THREADS=1"
"""One thread for each worker: people seldom think of it, but it is fair to compare with them who do."""
EXPLAIN = "HeatLens"
PREDICT, REPEATED = "HeatLens, predict", "HeatLens, the same picture again"
_BOOT_S = 180.0
_SETTLE_S = 120.0
_run_number = itertools.count()


@dataclass(frozen=True)
class Server:
    """A server that runs: gunicorn's master process and its workers."""

    url: str
    pid: int

    @property
    def cpu_s(self) -> float:
        """What all its processes have computed so far, in seconds of one core."""
        workers = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(cpu_s(pid) for pid in (str(self.pid), *workers))


@dataclass(frozen=True)
class Load:
    """One row: what wrk asks of which server."""

    name: str
    server: Server
    path: str
    connections: int
    new_pictures: bool = True


@dataclass(frozen=True)
class Measured:
    """What one run of wrk gave; wrong answers count as none. `cpu_s` is the server's own, for one answer."""

    rate: float
    cpu_s: float
    p50_s: float
    p99_s: float
    errors: int


def machine() -> str:
    """Return what the figures depend on."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    return f"{cpu[1] if cpu else platform.machine()}, {cores} cores; torch {version('torch')}"


Measurements = dict[tuple[str, int], list[Measured]]
"""The rounds of each row, by its name and connections."""


def cpu_s(pid: str) -> float:
    """Return what a process has computed, in seconds of one core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(command_for: Callable[[int], list[str]], **variables: str) -> Iterator[Server]:
    """A server process, until the `with` ends; What it prints is shown only if it does not start."""
    port = free_port()
    command = command_for(port)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEATLENS_", "OMP_"))}
    environment |= variables
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)  # noqa: S603
        try:
            if not accepts(server, port):
                log.seek(0)
                sys.exit(f"{' '.join(command)} did not start:\n{log.read().decode(errors='replace')}")
            yield Server(f"http://127.0.0.1:{port}", server.pid)
        finally:
            server.terminate()
            server.wait()


def accepts(server: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until the port takes connections; False if the process ends first, or it takes too long."""
    deadline = time.monotonic() + _BOOT_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


def peer(port: int) -> list[str]:
    gunicorn = [sys.executable, "-m", "gunicorn", "--chdir", str(HERE / "peers"), "--bind", f"127.0.0.1:{port}"]
    return [*gunicorn, "--workers", "2", "flask_gradcam:app"]


def heatlens(port: int) -> list[str]:
    return [sys.executable, "-m", "app", "serve", "--port", str(port)]


def require_overlay(url: str) -> None:
    """Make sure that what will be measured is an answer: a JPEG of the picture's size."""
    request = urllib.request.Request(url, PICTURE.read_bytes(), {"Content-Type": "image/jpeg"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_BOOT_S) as answer:  # noqa: S310
            overlay = Image.open(BytesIO(answer.read()))
    except urllib.error.HTTPError as error:
        sys.exit(f"{url} answers {error.code}: {error.read().decode(errors='replace')}")
    assert (overlay.format, overlay.size) == ("JPEG", Image.open(PICTURE).size), f"{url} answers {overlay}"


def drive(load: Load, seconds: int) -> Measured:
    """Run wrk once."""
    command = ["wrk", "--threads", "1", "--connections", str(load.connections), "--duration", f"{seconds}s"]
    command += ["--timeout", "60s", "--script", str(HERE / "pictures.lua"), load.server.url + load.path]
    command += ["--", str(PICTURE)]
    if load.new_pictures:
        command.append(f"{os.getpid()}-{next(_run_number)}-")
    before_s = load.server.cpu_s
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    used_s = load.server.cpu_s - before_s
    settle(load.server)
    found = json.loads(printed.splitlines()[-1])
    answered = found["requests"] - found["refused"]
    return Measured(
        rate=answered / found["seconds"],
        cpu_s=used_s / max(1, answered),
        p50_s=found["p50_s"],
        p99_s=found["p99_s"],
        errors=found["refused"] + found["broken"],
    )


def settle(server: Server) -> None:
    """Wait until a server is idle: wrk hangs up at the end, and some servers work on for clients that are gone."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        before_s = server.cpu_s
        time.sleep(0.5)
        if server.cpu_s - before_s < 0.05:
            return
    sys.exit(f"{server.url} still works {_SETTLE_S:.0f} s after the last client has gone")


def loads(peer: Server, tuned: Server, ours: Server) -> list[Load]:
    """What every round measures, one row after the other."""
    return [
        Load(PEER, peer, "/explain", 1),
        Load(TUNED, tuned, "/explain", 1),
        Load(EXPLAIN, ours, "/v1/explain", 1),
        Load(PEER, peer, "/explain", MANY),
        Load(TUNED, tuned, "/explain", MANY),
        Load(EXPLAIN, ours, "/v1/explain", MANY),
        Load(PREDICT, ours, "/v1/predict", MANY),
        Load(REPEATED, ours, "/v1/explain", MANY, new_pictures=False),
    ]


def measure(loads: list[Load], seconds: int, rounds: int) -> Measurements:
    """Warm every row up, then measure all of them in each round."""
    for load in loads:
        drive(load, max(2, seconds // 4))
    measured: Measurements = {(load.name, load.connections): [] for load in loads}
    for _ in range(rounds):
        for load in loads:
            measured[load.name, load.connections].append(drive(load, seconds))
    return measured


def ratio(ours: list[Measured], base: list[Measured]) -> float:
    """Return the median over the rounds of how many times the base's requests per second it answers."""
    return statistics.median(
        own.rate / other.rate if other.rate else math.inf for own, other in zip(ours, base, strict=True)
    )


def row(measured: Measurements, name: str, connections: int) -> list[str]:
    """Return the medians of a row's rounds as text."""
    runs = measured[name, connections]
    p50_s, p99_s = (statistics.median(times) for times in zip(*((run.p50_s, run.p99_s) for run in runs), strict=True))
    return [
        name,
        str(connections),
        f"{statistics.median(run.rate for run in runs):.1f}",
        *(f"{ratio(runs, measured[base, connections]):.2f}" for base in (PEER, TUNED)),
        f"{p50_s * 1000:.0f}",
        f"{p99_s * 1000:.0f}",
        f"{p99_s / p50_s:.2f}" if p50_s else "-",  # nothing was answered in time
        f"{statistics.median(run.cpu_s for run in runs) * 1000:.0f}",
        str(sum(run.errors for run in runs)),
    ]


def main() -> None:
    """Print the machine, and one row per server and number of connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of each run of wrk")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("This needs wrk, which drives the servers. On Debian and Ubuntu, as root: apt-get install wrk")
    with ExitStack() as servers:
        wanted = running(peer), running(peer, OMP_NUM_THREADS="1"), running(heatlens)
        rows = loads(*(servers.enter_context(server) for server in wanted))
        for load in rows:
            if load.name != PREDICT:
                require_overlay(load.server.url + load.path)
        measured = measure(rows, options.seconds, options.rounds)
    print(f"{machine()}\nmedians of {options.rounds} rounds of {options.seconds} s; times in ms, CPU for one answer\n")
    columns = [
        "",
        "connections",
        "requests/s",
        "times peer 1",
        "times peer 2",
        "p50",
        "p99",
        "p99/p50",
        "CPU",
        "errors",
    ]
    print_table(columns, [row(measured, *key) for key in measured])
    share = ratio(measured[EXPLAIN, MANY], measured[PREDICT, MANY])
    print(f"\nexplain against predict: {share:.2f} of its requests per second")


if __name__ == "__main__":
    main()
