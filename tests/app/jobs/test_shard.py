"""The run of a shard, on both databases; the model is a double at the seam, except where the model is what counts."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.engine import DeviceLost, Job, ShuttingDown
from app.errors import DeviceUnavailable, JobsUnavailable, OutOfMemory, OutOfSpace
from app.jobs import shard
from app.jobs.artifacts import Store, result_key
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.explaining import Explained, ServiceExplain, Watching, worker_settings
from app.jobs.ledger import Ledger
from app.jobs.options import Asked
from app.jobs.room import Room
from app.jobs.rows import NewItem
from app.jobs.shard import ShardRunner
from app.service import Service
from models.errors import WeightsMismatch
from tests.app.jobs import books
from tests.support import PICTURES

_PATIENCE_S = 30.0


@dataclass
class Double:
    """Explains a picture by its bytes: what they name happens."""

    happens: dict[bytes, Callable[[Watching], None]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)

    def __call__(self, picture: bytes, asked: Asked, number: int, watch: Watching) -> Explained:
        self.calls.append(number)
        if picture in self.happens:
            self.happens[picture](watch)
        result = books.result(number) | {"seen": picture.decode()}
        return Explained(result, {f"{number:06d}.overlay.jpg": b"overlay of " + picture})


def raises(error: Exception) -> Callable[[Watching], None]:
    def happen(watch: Watching) -> None:
        raise error

    return happen


def job_in(state: str, progress: tuple[int, int] | None = None) -> Job[None, None]:
    """What a watch is shown: a job of the engine that waits, or runs."""
    job: Job[None, None] = Job("key", None, deadline=1e9, limit="", clock=time.monotonic)
    job.progress = progress
    if state == "running":
        job.started = time.monotonic()
    return job


@dataclass
class Bench:
    """A ledger, a store and a runner, and a job of them."""

    settings: Settings
    database: Database
    ledger: Ledger
    store: Store
    explain: Double
    stopping: threading.Event
    beats: list[float]

    @property
    def runner(self) -> ShardRunner:
        return ShardRunner(
            self.ledger,
            self.store,
            self.settings,
            self.explain,
            stopping=self.stopping,
            beat=lambda: self.beats.append(time.monotonic()),
        )

    def submit(self, pictures: Sequence[bytes], **options: object) -> str:
        job_id = self.ledger.open(owner="me")
        items = []
        for number, picture in enumerate(pictures):
            self.store.write(f"{job_id}/{number}", picture)
            items.append(NewItem(f"{number}.jpg", f"store:{job_id}/{number}"))
        return self.add(job_id, items, **options)

    def add(self, job_id: str, items: Sequence[NewItem], **options: object) -> str:
        self.ledger.add(job_id, 0, items)
        return self.ledger.submit(job_id, options=options).id

    def statuses(self, job_id: str) -> str:
        """One letter for each picture: waiting, succeeded, failed, cancelled."""
        return "".join(item.status[0] for item in self.ledger.items(job_id, limit=10_000))

    def errors(self, job_id: str) -> dict[int, str]:
        found = self.ledger.items(job_id, limit=10_000, status="failed")
        return {item.number: item.error["code"] for item in found if item.error}


@pytest.fixture
def bench(settings: Settings, database: Database) -> Bench:
    settings = settings.model_copy(update={"min_free_bytes": 0, "batch_size": 4, "job_shard_pictures": 50})
    ledger = Ledger(database, ShardQueue(database), shard_pictures=50)
    return Bench(settings, database, ledger, Store(settings), Double(), threading.Event(), [])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "_PAUSE_S", 0.02)


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """A thread for a shard that runs while the test does something else."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def names(count: int) -> list[bytes]:
    return [b"picture %d" % number for number in range(count)]


def test_every_picture_of_a_shard_is_explained_written_and_recorded(bench: Bench) -> None:
    job_id = bench.submit(names(60))
    bench.runner.run(job_id, 0)
    assert bench.statuses(job_id) == "s" * 50 + "w" * 10
    assert sorted(bench.explain.calls) == list(range(50))
    bench.runner.run(job_id, 1)
    job = bench.ledger.job(job_id)
    assert (job.status, job.done, job.failed) == ("succeeded", 60, 0)
    for item in bench.ledger.items(job_id, limit=100):
        picture = b"picture %d" % item.number
        assert item.sha256 == hashlib.sha256(picture).hexdigest()
        assert item.result is not None
        assert item.result["seen"] == picture.decode()
        overlay = bench.store.read(result_key(job_id, f"{item.number:06d}.overlay.jpg", item.number))
        assert overlay == b"overlay of " + picture
    assert job.size_bytes == sum(len(b"overlay of " + name) for name in names(60))
    assert len(bench.beats) >= 60  # one for each picture at least


def test_a_shard_that_is_over_is_not_run_again(bench: Bench) -> None:
    job_id = bench.submit(names(3))
    bench.runner.run(job_id, 0)
    bench.runner.run(job_id, 0)
    bench.runner.run(job_id, 7)  # there is none
    assert sorted(bench.explain.calls) == [0, 1, 2]


def test_what_is_wrong_with_one_picture_is_its_own_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    pictures = names(12)
    bench.explain.happens = {
        pictures[3]: raises(OutOfMemory("It is too large.")),
        pictures[5]: raises(RuntimeError("a bug")),
        pictures[6]: raises(WeightsMismatch("The model cannot be loaded.")),
    }
    pictures[7] = b""
    pictures[8] = b"x" * (bench.settings.max_body_bytes + 1)
    job_id = bench.submit(pictures)
    (bench.settings.data_dir / "jobs" / job_id / "9").unlink()
    with caplog.at_level(logging.ERROR):
        bench.runner.run(job_id, 0)
    assert bench.errors(job_id) == {
        3: "out_of_memory",
        5: "internal_error",
        6: "weights_mismatch",
        7: "empty_image",
        8: "image_too_many_bytes",
        9: "source_unreadable",
    }
    assert bench.ledger.job(job_id).status == "completed_with_errors"
    assert bench.ledger.item(job_id, 3).error == {"code": "out_of_memory", "detail": "It is too large."}
    assert bench.ledger.item(job_id, 5).sha256 == hashlib.sha256(b"picture 5").hexdigest()
    assert "a bug" in caplog.text  # which nobody outside is told
    assert "a bug" not in str(bench.ledger.item(job_id, 5).error)


def test_pictures_are_read_from_where_the_operator_allows(bench: Bench, tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "a.jpg").write_bytes(b"picture")
    (allowed / "large.jpg").write_bytes(bytes(5000))
    bench.settings = bench.settings.model_copy(update={"job_sources": (f"file://{allowed}",), "max_body_bytes": 4096})
    job_id = bench.ledger.open(owner="me")
    places = [allowed / "a.jpg", other / "a.jpg", allowed / "gone.jpg", allowed / "large.jpg"]
    bench.add(job_id, [NewItem(path.name, f"file://{path}") for path in places])
    bench.runner.run(job_id, 0)
    assert bench.statuses(job_id) == "sfff"
    assert bench.errors(job_id) == {1: "source_not_allowed", 2: "source_unreadable", 3: "image_too_many_bytes"}
    assert bench.ledger.item(job_id, 0).sha256 == hashlib.sha256(b"picture").hexdigest()


def test_three_batches_are_under_way_and_no_more(bench: Bench, aside: ThreadPoolExecutor) -> None:
    go = threading.Event()
    pictures = names(50)
    bench.explain.happens = dict.fromkeys(pictures, lambda watch: held(go))
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 12)
    assert sorted(bench.explain.calls) == list(range(12))
    go.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "s" * 50


@pytest.mark.parametrize(("method", "expected"), [("gradcam", 12), ("integrated_gradients", 3), ("rise", 3)])
def test_a_method_that_fills_the_device_alone_has_few_under_way(bench: Bench, method: str, expected: int) -> None:
    assert 3 * bench.runner.batch_size(method) == expected


def test_outcomes_are_recorded_while_others_are_still_worked_on(bench: Bench, aside: ThreadPoolExecutor) -> None:
    go = threading.Event()
    pictures = names(10)
    bench.explain.happens = {pictures[9]: lambda watch: held(go)}
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: bench.ledger.job(job_id).done == 9)  # two batches, and one picture that is no batch
    assert not running.done()
    go.set()
    running.result(_PATIENCE_S)
    assert bench.ledger.job(job_id).done == 10


def test_a_cancelled_job_stops_at_once(bench: Bench, aside: ThreadPoolExecutor) -> None:
    pictures = names(50)
    bench.explain.happens = dict.fromkeys(pictures[4:], lambda watch: watched(watch, job_in("running")))
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 16)  # four, and the three batches behind them, begun when those are done
    bench.ledger.cancel(job_id)
    running.result(_PATIENCE_S)
    assert len(bench.explain.calls) == 16
    assert bench.statuses(job_id) == "s" * 4 + "c" * 46


def test_an_old_run_ends_although_the_job_was_retried_and_tells_nothing(
    bench: Bench, aside: ThreadPoolExecutor
) -> None:
    go = threading.Event()
    pictures = names(50)
    goes_on = dict.fromkeys(pictures[4:], lambda watch: watched(watch, job_in("running")))
    bench.explain.happens = {**dict.fromkeys(pictures[:4], lambda watch: held(go)), **goes_on}
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 12)
    bench.ledger.cancel(job_id)
    bench.ledger.retry(job_id)
    go.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "w" * 50
    bench.explain.happens = {}
    bench.runner.run(job_id, 1)
    assert bench.statuses(job_id) == "s" * 50


def test_what_an_old_run_tells_last_is_not_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bench.submit(names(3))
    record = bench.ledger.record

    def retried(*args: Any, **more: Any) -> None:
        bench.ledger.cancel(job_id)
        bench.ledger.retry(job_id)
        record(*args, **more)

    monkeypatch.setattr(bench.ledger, "record", retried)
    bench.runner.run(job_id, 0)
    assert bench.statuses(job_id) == "www"


def test_a_deleted_job_stops_at_once(bench: Bench, aside: ThreadPoolExecutor) -> None:
    pictures = names(50)
    bench.explain.happens = dict.fromkeys(pictures, lambda watch: watched(watch, job_in("running")))
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 12)
    bench.ledger.delete(job_id)
    running.result(_PATIENCE_S)
    assert len(bench.explain.calls) == 12


def test_at_the_end_of_the_process_what_runs_is_finished_and_the_rest_handed_back(
    bench: Bench, aside: ThreadPoolExecutor
) -> None:
    go = threading.Event()
    pictures = names(50)
    waits = dict.fromkeys(pictures[4:], lambda watch: watched(watch, job_in("waiting")))
    bench.explain.happens = {**dict.fromkeys(pictures[:4], lambda watch: held(go)), **waits}
    job_id = bench.submit(pictures)
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 12)
    bench.stopping.set()
    go.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "s" * 4 + "w" * 46
    bench.stopping.clear()
    bench.explain.happens = {}
    bench.runner.run(job_id, 0)  # has nothing any more
    assert bench.statuses(job_id) == "s" * 4 + "w" * 46
    bench.runner.run(job_id, 1)  # has what was handed back
    assert bench.statuses(job_id) == "s" * 50
    assert {item.attempts for item in bench.ledger.items(job_id, limit=4)} == {1}


def test_what_the_model_would_not_finish_in_time_is_handed_back(bench: Bench, aside: ThreadPoolExecutor) -> None:
    bench.settings = bench.settings.model_copy(update={"graceful_timeout_s": 1})
    pictures = names(2)
    bench.explain.happens = dict.fromkeys(pictures, lambda watch: watched(watch, job_in("running")))
    job_id = bench.submit(pictures, method="rise")
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.explain.calls) == 2)
    bench.stopping.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "ww"
    bench.stopping.clear()
    bench.explain.happens = {}
    bench.runner.run(job_id, 1)
    assert bench.statuses(job_id) == "ss"


def test_reported_steps_beat_and_silence_does_not(
    bench: Bench, aside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, reported = threading.Event(), threading.Event()
    monkeypatch.setattr(shard, "_LOOK_S", 0.02)

    def work(watch: Watching) -> None:
        for done in (1, 1, 2, 3):
            watch(job_in("running", (done, 3)))
        reported.set()
        while not go.wait(0.01):
            watch(job_in("running", (3, 3)))

    bench.explain.happens = {b"picture 0": work}
    job_id = bench.submit(names(1), method="rise")
    running = aside.submit(bench.runner.run, job_id, 0)
    assert reported.wait(_PATIENCE_S)
    assert len(bench.beats) == 3
    time.sleep(10 * shard._LOOK_S)  # it looks, which is no sign of life of the model
    assert len(bench.beats) == 3
    go.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "s"


def test_loading_a_model_is_a_sign_of_life_and_ends_with_the_process(bench: Bench, aside: ThreadPoolExecutor) -> None:
    def load(watch: Watching) -> None:
        while True:
            watch.loading()
            time.sleep(0.01)

    bench.explain.happens = {b"picture 0": load}
    job_id = bench.submit(names(1))
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: len(bench.beats) > 3)
    bench.stopping.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "w"


@pytest.mark.parametrize("where", ["free bytes", "writing"])
def test_without_room_a_job_waits_says_so_and_goes_on(
    bench: Bench, aside: ThreadPoolExecutor, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    write, room = bench.store.write, bench.store.room

    def no_room(key: str, data: bytes) -> int:
        if full.is_set():
            raise OutOfSpace("The disk is full.")
        return write(key, data)

    job_id = bench.submit(names(20))
    if where == "writing":
        monkeypatch.setattr(bench.store, "write", no_room)
    else:
        bench.settings = bench.settings.model_copy(update={"min_free_bytes": 1})
        monkeypatch.setattr(bench.store, "room", lambda: Room(0, None) if full.is_set() else room())
    full.set()
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: bench.ledger.job(job_id).waiting_for == "disk_space")
    before = len(bench.beats)
    until(lambda: len(bench.beats) > before + 3)  # it is alive
    assert bench.ledger.job(job_id).done == 0
    full.clear()
    running.result(_PATIENCE_S)
    job = bench.ledger.job(job_id)
    assert (job.status, job.done, job.failed, job.waiting_for) == ("succeeded", 20, 0, None)


def test_a_job_that_waits_for_room_can_be_cancelled(bench: Bench, aside: ThreadPoolExecutor) -> None:
    bench.settings = bench.settings.model_copy(update={"min_free_bytes": 2**60})
    job_id = bench.submit(names(5))
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: bench.ledger.job(job_id).waiting_for == "disk_space")
    bench.ledger.cancel(job_id)
    running.result(_PATIENCE_S)
    assert bench.explain.calls == []


def test_a_worker_that_waits_for_room_can_stop(bench: Bench, aside: ThreadPoolExecutor) -> None:
    bench.settings = bench.settings.model_copy(update={"min_free_bytes": 2**60})
    job_id = bench.submit(names(5))
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: bench.ledger.job(job_id).waiting_for == "disk_space")
    bench.stopping.set()
    running.result(_PATIENCE_S)
    assert bench.statuses(job_id) == "wwwww"
    assert len(bench.ledger.begin(job_id, 1).items) == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("act", ["read", "write", "room"])
def test_a_store_that_is_away_is_waited_for(
    bench: Bench, aside: ThreadPoolExecutor, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    job_id = bench.submit(names(10))
    usual = getattr(bench.store, act)

    def refuse(*args: object) -> object:
        if away.is_set():
            raise ConnectionError("nobody answers")
        return usual(*args)

    monkeypatch.setattr(bench.store, act, refuse)
    away.set()
    running = aside.submit(bench.runner.run, job_id, 0)
    until(lambda: bench.ledger.job(job_id).waiting_for == "store")
    away.clear()
    running.result(_PATIENCE_S)
    job = bench.ledger.job(job_id)
    assert (job.status, job.done, job.waiting_for) == ("succeeded", 10, None)


def test_one_upload_that_cannot_be_read_is_its_own_error(bench: Bench, aside: ThreadPoolExecutor) -> None:
    job_id = bench.submit(names(1))
    upload = bench.settings.data_dir / "jobs" / job_id / "0"
    upload.unlink()
    upload.mkdir()  # no file, as no permission or a damaged disk would make it none
    running = aside.submit(bench.runner.run, job_id, 0)
    try:
        running.result(_PATIENCE_S)
    finally:
        bench.stopping.set()
    assert bench.errors(job_id) == {0: "source_unreadable"}


def test_a_database_that_is_away_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bench.submit(names(20))
    for name in ("begin", "wanted", "record"):
        fails_first(bench.ledger, name, JobsUnavailable("away"), monkeypatch)
    bench.runner.run(job_id, 0)
    assert bench.ledger.job(job_id).status == "succeeded"
    assert sorted(bench.explain.calls) == list(range(20))  # nothing was done twice for it


def test_a_full_disk_of_the_database_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bench.submit(names(20))
    fails_first(bench.ledger, "record", OutOfSpace("full"), monkeypatch)
    bench.runner.run(job_id, 0)
    assert bench.ledger.job(job_id).status == "succeeded"


def test_a_full_disk_of_the_database_fails_no_shard_of_a_worker_that_stops(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = bench.submit(names(3))
    for name in ("begin", "hand_back"):
        fails_first(bench.ledger, name, OutOfSpace("full"), monkeypatch)
    bench.stopping.set()
    bench.runner.run(job_id, 0)
    assert len(bench.ledger.begin(job_id, 1).items) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [DeviceLost("gone"), DeviceUnavailable("none"), ShuttingDown("closing")])
def test_a_lost_device_is_no_pictures_error(bench: Bench, error: Exception, aside: ThreadPoolExecutor) -> None:
    pictures = names(20)
    others = dict.fromkeys(pictures[9:], lambda watch: watched(watch, job_in("running")))
    bench.explain.happens = {pictures[8]: raises(error), **others}
    job_id = bench.submit(pictures)
    with pytest.raises(type(error)):
        aside.submit(bench.runner.run, job_id, 0).result(_PATIENCE_S)
    assert bench.statuses(job_id) == "s" * 8 + "w" * 12  # what was done before is not lost
    bench.explain.happens = {}
    bench.runner.run(job_id, 0)  # it was not handed back: it may be this shard that loses devices
    assert bench.statuses(job_id) == "s" * 20


def test_the_real_thing(bench: Bench, cat: bytes) -> None:
    """The embedded model; batches are full, and a damaged picture fails alone."""
    service = Service(worker_settings(bench.settings.model_copy(update={"torch_threads": 1})))
    ran: list[int] = []
    try:
        service.start()
        owner = service.hosts.ready("efficientnet_lite0").owner
        note = owner._ran
        owner._ran = lambda key, jobs, seconds: (ran.append(len(jobs)), note(key, jobs, seconds))[1]
        bench.explain = ServiceExplain(service)  # type: ignore[assignment]
        pictures = [cat, b"no picture", (PICTURES / "coffee.png").read_bytes(), *[cat] * 21]
        job_id = bench.submit(pictures, target=["top2"], artifacts=["overlay", "map", "arrays"])
        bench.runner.run(job_id, 0)
    finally:
        service.close(grace_s=0)
    assert bench.errors(job_id) == {1: "unsupported_image_format"}
    assert sum(ran) == 23
    assert ran.count(4) >= 4  # of five: the first picture runs at once, and the last are fewer
    labels = [item.label for item in bench.ledger.items(job_id, limit=100)]
    assert labels[2] == "espresso"
    assert set(labels[3:]) == {labels[0]}
    size = sum(
        bench.store.size(result_key(job_id, name, item.number))
        for item in bench.ledger.items(job_id, limit=100, status="succeeded")
        for name in artifacts(item.result)
    )
    assert bench.ledger.job(job_id).size_bytes == size


def artifacts(result: object) -> list[str]:
    assert isinstance(result, dict)
    each = [name for explanation in result["explanations"] for name in explanation["artifacts"].values()]
    assert len(each) == 4
    return [*each, *result["artifacts"].values()]


def fails_first(ledger: Ledger, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a call fail twice before it does what it does."""
    usual, failures = getattr(ledger, name), iter([error, error])

    def call(*args: object, **more: object) -> object:
        if raised := next(failures, None):
            raise raised
        return usual(*args, **more)

    monkeypatch.setattr(ledger, name, call)


def held(go: threading.Event) -> None:
    assert go.wait(_PATIENCE_S)


def watched(watch: Watching, job: Job[None, None]) -> None:
    """Work until the watch ends it."""
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends:
        watch(job)
        time.sleep(0.01)
    raise TimeoutError


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it did not come to it"
        time.sleep(0.01)
