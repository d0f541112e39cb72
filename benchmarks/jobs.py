"""Batch jobs: pictures per second beside the bare network, what the engine costs, and a job of 100,000 pictures.

All in one run, by real processes: workers, a web server, Postgres (Debian's). The bare network is efficientnet_lite0 as
PyTorch makes it, in `inference_mode`, at its best batch, with as many threads as the worker's: no picture is read for
it, no map computed, nothing drawn or written. It takes turns with the jobs, and each job is compared with the turns
before and after it. Where the engine alone is measured, a test double explains the pictures (`_stub.py`).

    python benchmarks/jobs.py                                # half an hour
    python benchmarks/jobs.py --only pictures --rounds 1
"""

import argparse
import io
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import skimage
import torch
from _stub import AtOnce
from _timing import print_table
from PIL import Image

from app.config import Settings
from app.jobs.artifacts import Store, input_key
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.explaining import worker_settings
from app.jobs.ledger import Ledger
from app.jobs.rows import JobRow, NewItem
from app.jobs.shard import ShardRunner
from models import Registry
from models.loading import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # the Postgres server is that of the tests

from tests.app.jobs import postgres

HERE = Path(__file__).parent
MODEL = "efficientnet_lite0"
PHOTOGRAPHS = ["chelsea.png", "astronaut.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg"]
SHARD = 128
_BATCHES = 1, 2, 4, 8, 16, 32
_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class House:
    """A database and a store, as all processes of one deployment share them."""

    settings: Settings
    ledger: Ledger
    store: Store
    environment: dict[str, str]

    def submit(self, pictures: Sequence[bytes]) -> str:
        """Make a job of pictures, as the web server does."""
        job_id = self.ledger.open(owner="benchmark")
        items = []
        for number, picture in enumerate(pictures):
            key = input_key(job_id, number)
            items.append(NewItem(f"{number}.jpg", f"store:{key}", size_bytes=self.store.write(key, picture)))
        self.ledger.add(job_id, 0, items)
        return self.ledger.submit(job_id, options={}).id

    def finished(self, job_id: str) -> JobRow:
        """Wait until a job is over."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (job := self.ledger.job(job_id)).is_finished:
            assert time.monotonic() < deadline, f"the job is {job.status} with {job.done} of {job.total} done"
            time.sleep(0.1)
        assert job.status == "succeeded", f"{job.failed} of {job.total} pictures failed"
        return job

    def rate(self, pictures: Sequence[bytes]) -> float:
        """Return how many pictures per second a job explains, from its submission to its end."""
        job = self.finished(self.submit(pictures))
        assert job.finished_at is not None
        return job.total / (job.finished_at - job.created_at)


class NoQueue(ShardQueue):
    """Queues nothing: the shards are run by who asks for them."""

    def enqueue(self, *_: object) -> None:
        """Do nothing."""


@contextmanager
def house(database_url: str = "", *, shard: int = SHARD, threads: int = 1, engine: bool = True) -> Iterator[House]:
    """A deployment with nothing in it yet."""
    with tempfile.TemporaryDirectory(prefix="heatlens-jobs-") as folder:
        variables: dict[str, str] = {
            "data_dir": folder,
            "database_url": database_url,
            "job_shard_pictures": str(shard),
            "torch_threads": str(threads),
            "job_sources": f"file://{folder}",
            "log_level": "warning",
        }
        settings = Settings(**variables)  # type: ignore[arg-type]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
        environment |= {f"HEATLENS_{name.upper()}": value for name, value in variables.items()}
        environment |= {"OMP_NUM_THREADS": str(threads)}
        database = Database(settings)
        database.migrate()
        queue = ShardQueue(database) if engine else NoQueue(database)
        yield House(settings, Ledger(database, queue, shard_pictures=shard), Store(settings), environment)
        database.close()


@contextmanager
def worker(house: House, *, stubbed: bool = False, core: int | None = None) -> Iterator[int]:
    """A worker process, on a core of its own if so asked for; yields its id."""
    command = [str(HERE / "_stub.py")] if stubbed else ["-P", "-m", "app.jobs.worker"]
    pin = [] if core is None else ["taskset", "--cpu-list", str(core)]
    process = subprocess.Popen([*pin, sys.executable, *command], env=house.environment)  # noqa: S603
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def web(house: House) -> Iterator[tuple[str, int]]:
    """A web server without workers of jobs; yields its URL and its process's id."""
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--workers", "1"]
    environment = house.environment | {"HEATLENS_JOB_WORKERS": "0"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert server.stdout is not None
    try:
        found = next(filter(None, (re.search(r"(http://[\d.]+:\d+)/v1/explain", line) for line in server.stdout)), None)
        assert found, "the server did not start"
        threading.Thread(target=server.stdout.read, daemon=True).start()
        yield found[1], server.pid
    finally:
        server.terminate()
        server.wait()


@contextmanager
def new_postgres() -> Iterator[Callable[[], str]]:
    """A Postgres server; yields what makes a database and returns its URL."""
    with postgres.running() as server:
        yield server.make


def photographs(count: int) -> list[bytes]:
    """JPEGs of about 0.15 megapixels, each another cut of one of scikit-image's pictures."""
    wholes, random = [_whole(name) for name in PHOTOGRAPHS], np.random.default_rng(0)
    return [_cut(wholes[number % len(wholes)], random) for number in range(count)]


def _whole(name: str) -> Image.Image:
    with Image.open(Path(skimage.__file__).parent / "data" / name) as picture:
        factor = (165_000 / (picture.width * picture.height)) ** 0.5
        size = round(picture.width * factor), round(picture.height * factor)
        return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _cut(whole: Image.Image, random: np.random.Generator) -> bytes:
    left, top = (int(offset) for offset in random.integers(0, 20, 2))
    buffer = io.BytesIO()
    part = whole.crop((left, top, whole.width - 20 + left, whole.height - 20 + top))
    part.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


class Bare:
    """The network as PyTorch makes it, on random pictures, at its best batch."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._network = load(Registry().get(MODEL), device=torch.device("cpu"))
        rounds = [{batch: self._run(batch, 2.0) for batch in _BATCHES} for _ in range(3)]
        self.by_batch = {batch: statistics.median(found[batch] for found in rounds) for batch in _BATCHES}
        self.batch = max(self.by_batch, key=lambda batch: self.by_batch[batch])

    def rate(self, seconds: float) -> float:
        """Return how many pictures per second it answers."""
        return self._run(self.batch, seconds)

    def _run(self, batch: int, seconds: float) -> float:
        inputs = torch.randn(batch, 3, 224, 224).contiguous(memory_format=self._network.memory_format)
        with torch.inference_mode():
            self._network.module(inputs)
            started, count = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - started) < seconds:
                self._network.module(inputs)
                count += batch
        return count / elapsed


def pictures_per_second(count: int, rounds: int, threads: Sequence[int]) -> None:
    """Print a job of real pictures beside the bare network."""
    pictures, rows = photographs(count), []
    megapixels = statistics.mean(np.prod(Image.open(io.BytesIO(picture)).size) for picture in pictures) / 1e6
    print(f"\n## A job of {count} JPEGs of {megapixels:.2f} megapixels, Grad-CAM, overlays as JPEG\n")
    for count_of_threads in threads:
        bare = Bare(count_of_threads)
        with house(threads=count_of_threads) as deployment, worker(deployment):
            deployment.rate(pictures[:32])  # loads the model
            turns = [bare.rate(8.0)]
            jobs, ratios = [], []
            for _ in range(rounds):
                jobs.append(deployment.rate(pictures))
                turns.append(bare.rate(8.0))
                ratios.append(jobs[-1] / statistics.mean(turns[-2:]))
        rows.append(
            [
                str(count_of_threads),
                str(bare.batch),
                f"{statistics.median(turns):.1f}",
                f"{statistics.median(jobs):.1f}",
                f"{statistics.median(ratios):.2f}",
                " ".join(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    print_table(["torch threads", "best batch", "bare pictures/s", "job pictures/s", "ratio", "rounds"], rows)


def overhead(make_database: Callable[[], str], count: int = 200) -> None:
    """Print what a shard costs beside its pictures: shards of one picture, explained in no time."""
    rows = []
    for name, url in (("SQLite", ""), ("Postgres", make_database())):
        with house(url, shard=1) as deployment, worker(deployment, stubbed=True):
            deployment.rate([b"picture"])
            by_engine = 1e3 / deployment.rate([b"picture"] * count)
        with house("" if not url else make_database(), shard=1, engine=False) as deployment:
            by_hand = 1e3 * run_by_hand(deployment, count)
        rows.append([name, f"{by_engine:.1f}", f"{by_hand:.1f}", f"{by_engine - by_hand:.1f}"])
    print(f"\n## A shard's own cost, ms, over {count} shards of one picture that is explained in no time\n")
    print_table(["", "by the engine", "run by hand", "the engine's share"], rows)


def run_by_hand(deployment: House, count: int) -> float:
    """Return the seconds of a shard that is run without the engine."""
    job_id = deployment.submit([b"picture"] * count)
    stopping = threading.Event()
    settings = worker_settings(deployment.settings)
    runner = ShardRunner(deployment.ledger, deployment.store, settings, AtOnce(), stopping=stopping, beat=lambda: None)
    started = time.perf_counter()
    for shard in range(count):
        runner.run(job_id, shard)
    return (time.perf_counter() - started) / count


def large(count: int) -> None:
    """Print how a job of very many pictures is made and looked at, and what memory it takes."""
    print(f"\n## A job of {count} tiny pictures, explained in no time; SQLite, one web server, one worker\n")
    archive = _archive(count)
    with ExitStack() as stack:
        deployment = stack.enter_context(house())
        url, web_pid = stack.enter_context(web(deployment))
        before = memory_mib(web_pid)
        started = time.perf_counter()
        job = _post(f"{url}/v1/jobs", archive)
        created_s = time.perf_counter() - started
        worker_pid = stack.enter_context(worker(deployment, stubbed=True))
        looks = _watch(f"{url}/v1/jobs/{job['id']}", (web_pid, worker_pid))
        row = deployment.finished(str(job["id"]))
    assert row.finished_at is not None
    assert row.started_at is not None
    times = sorted(look.query_s for look in looks)
    print(f"created by one POST of {len(archive) / 2**20:.0f} MiB in {created_s:.1f} s")
    print(f"explained in {row.finished_at - row.started_at:.0f} s, {count / (row.finished_at - row.started_at):.0f}/s")
    print(
        f"progress asked for {len(times)} times: {1e3 * statistics.median(times):.1f} ms at the median, "
        f"{1e3 * times[int(0.99 * len(times))]:.1f} ms at the 99th percentile, {1e3 * times[-1]:.1f} ms at most\n"
    )
    moments = [("a tenth", 0.1), ("half", 0.5), ("all", 1.0)]
    found = [(name, min(looks, key=lambda look: abs(look.done - share * count))) for name, share in moments]
    print_table(
        ["memory, MiB", "before", *(f"{name} done" for name, _ in found)],
        [
            ["web", f"{before:.0f}", *(f"{look.memory_mib[0]:.0f}" for _, look in found)],
            ["worker", "", *(f"{look.memory_mib[1]:.0f}" for _, look in found)],
        ],
    )


@dataclass(frozen=True)
class Look:
    """What was seen of a running job."""

    done: int
    query_s: float
    memory_mib: tuple[float, ...]


def _watch(url: str, pids: Sequence[int]) -> list[Look]:
    looks: list[Look] = []
    while True:
        started = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
            job = json.load(answer)
        query_s = time.perf_counter() - started
        looks.append(Look(job["progress"]["done"], query_s, tuple(memory_mib(pid) for pid in pids)))
        if job["finished_at"]:
            return looks
        time.sleep(0.2)


def _archive(count: int) -> bytes:
    """A multipart body with a zip of tiny pictures."""
    picture, buffer = io.BytesIO(), io.BytesIO()
    Image.new("L", (1, 1)).save(picture, "PNG")
    buffer.write(b'--b\r\nContent-Disposition: form-data; name="archive"; filename="many.zip"\r\n\r\n')
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number:06d}.png", picture.getvalue())
    return buffer.getvalue() + zipped.getvalue() + b"\r\n--b--\r\n"


def _post(url: str, body: bytes) -> dict[str, object]:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
        found: dict[str, object] = json.load(answer)
    return found


def memory_mib(pid: int) -> float:
    """Return what a process and those below it take, what they share counted once."""
    kilobytes = 0
    for one in _tree(pid):
        with open(f"/proc/{one}/smaps_rollup") as facts:
            kilobytes += sum(int(line.split()[1]) for line in facts if line.startswith("Pss:"))
    return kilobytes / 1024


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *itertools.chain.from_iterable(_tree(int(child)) for child in children)]


def two_workers(make_database: Callable[[], str], count: int, rounds: int) -> None:
    """Print two workers beside one, each with one thread on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("\ntwo workers need two cores, and there is one")
        return
    pictures, rates = photographs(count), {1: [], 2: []}  # type: ignore[var-annotated]
    for _ in range(rounds):
        for number in rates:
            with house(make_database()) as deployment, ExitStack() as workers:
                for core in cores[:number]:
                    workers.enter_context(worker(deployment, core=core))
                deployment.rate(pictures[:SHARD] * number)  # all of them have the model then
                rates[number].append(deployment.rate(pictures))
    ratios = [both / one for one, both in zip(rates[1], rates[2], strict=True)]
    print(f"\n## Workers on Postgres, each with one thread on its own core; {count} JPEGs\n")
    row = [f"{statistics.median(rates[number]):.1f}" for number in rates]
    print_table(
        ["one, pictures/s", "two, pictures/s", "ratio", "rounds"],
        [[*row, f"{statistics.median(ratios):.2f}", " ".join(f"{ratio:.2f}" for ratio in ratios)]],
    )


def machine() -> str:
    """Return what the figures depend on."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    return f"{cpu[1] if cpu else platform.machine()}, {cores} cores; torch {version('torch')}, dbos {version('dbos')}"


def main() -> None:
    """Print the machine and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["pictures", "overhead", "large", "two"], action="append")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    options = parser.parse_args()
    wanted = options.only or ["pictures", "overhead", "large", "two"]
    print(f"{machine()}; {options.rounds} rounds")
    with ExitStack() as stack:
        make_database = stack.enter_context(new_postgres()) if {"overhead", "two"} & set(wanted) else str
        if "pictures" in wanted:
            pictures_per_second(options.pictures, options.rounds, options.threads)
        if "overhead" in wanted:
            overhead(make_database)
        if "large" in wanted:
            large(options.items)
        if "two" in wanted:
            two_workers(make_database, options.pictures, options.rounds)


if __name__ == "__main__":
    main()
