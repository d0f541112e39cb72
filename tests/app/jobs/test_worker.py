"""The worker's own part, in this process; what it promises with others is in `test_promises`."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.engine import DeviceLost
from app.errors import DeviceUnavailable, JobsUnavailable
from app.jobs import worker as worker_module
from app.jobs.explaining import Explain
from app.jobs.rows import NewItem
from app.jobs.supervisor import CANNOT_START
from app.jobs.worker import Worker
from tests.app.jobs.crew import eventually

MakeExplain = Callable[[Settings], Explain]


class Office:
    """A worker that has not begun, with a shard of one picture to work on."""

    def __init__(self, settings: Settings, make_explain: MakeExplain) -> None:
        self.worker = Worker(settings, make_explain)
        self.worker._database.migrate()
        self.ledger = self.worker._ledger
        self.job_id = self.ledger.open(owner="me")
        self.ledger.add(self.job_id, 0, [NewItem("a", "store:a")])
        self.ledger.submit(self.job_id, options={"method": "gradcam"})
        self.beats = 0
        self.worker._pulse.beat = self._beat  # type: ignore[method-assign]

    def _beat(self) -> None:
        self.beats += 1

    def require_left_to_others(self) -> None:
        """The worker stops, and the picture has no outcome but a shard of its own, which another may begin."""
        assert self.worker._stopping.is_set()
        assert self.ledger.job(self.job_id).done == 0
        assert self.ledger.begin(self.job_id, 0) is None
        assert self.ledger.begin(self.job_id, 1) is not None


def raises(error: Exception) -> MakeExplain:
    def make(_settings: Settings) -> Explain:
        raise error

    return make


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


def test_who_loads_a_model_does_not_hang(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(worker_module, "_TICK_S", 0.01)
    is_loaded = threading.Event()

    def make(_settings: Settings) -> Explain:
        is_loaded.wait(20)
        raise DeviceUnavailable("that is enough")

    office = Office(settings, make)
    working = threading.Thread(target=office.worker._run_shard, args=[office.job_id, 0])
    working.start()
    while office.beats < 5:
        assert working.is_alive()
    is_loaded.set()
    working.join(20)
    monkeypatch.setattr(worker_module, "LONGEST_S", 0)
    stuck = Office(settings.model_copy(update={"data_dir": settings.data_dir / "stuck"}), make)
    is_loaded.clear()
    working = threading.Thread(target=stuck.worker._run_shard, args=[stuck.job_id, 0])
    working.start()
    working.join(0.2)
    assert working.is_alive()
    assert stuck.beats == 0, "but not for ever"
    is_loaded.set()
    working.join(20)


def test_who_is_told_to_stop_while_a_model_loads_hands_the_shard_back(settings: Settings) -> None:
    goes_on = threading.Event()
    office = Office(settings, lambda _settings: goes_on.wait(20) and None)  # type: ignore[arg-type, return-value]
    office.worker._stopping.set()
    office.worker._run_shard(office.job_id, 0)
    goes_on.set()
    office.require_left_to_others()
    assert office.worker._code == 0


def test_a_worker_whose_device_is_not_there_leaves_its_shard_and_cannot_start(settings: Settings) -> None:
    without = settings.model_copy(update={"device": "cuda:63"})
    office = Office(without, worker_module._models)
    office.worker._run_shard(office.job_id, 0)
    office.require_left_to_others()
    assert office.worker._code == CANNOT_START


def test_a_device_that_is_missed_by_a_further_model_is_the_same(settings: Settings) -> None:
    office = Office(settings, raises(AssertionError()))

    class Runner:
        def run(self, _job_id: str, _shard: int) -> None:
            raise DeviceUnavailable("no GPU")

    office.worker.__dict__["_runner"] = Runner()
    office.worker._run_shard(office.job_id, 0)
    office.require_left_to_others()
    assert office.worker._code == CANNOT_START


def test_a_device_that_is_lost_while_a_model_loads_costs_the_shard_nothing_and_may_be_back_at_the_next_start(
    settings: Settings,
) -> None:
    office = Office(settings, raises(DeviceLost("gone")))
    office.worker._run_shard(office.job_id, 0)
    office.require_left_to_others()
    assert office.worker._code == worker_module._KILLED


class Seat:
    """One that is confirmed, unless it is given an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.confirmed = 0

    def confirm(self, _owns_what_it_runs: Callable[[], bool]) -> None:
        self.confirmed += 1
        if self._error:
            raise self._error

    def leave(self) -> None:
        pass


class Engine:
    """One that needs as long to stop as it takes to confirm the place three times more."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def owns_what_it_runs(self) -> bool:
        return True

    def rescue(self) -> None:
        raise sa.exc.ProgrammingError("SELECT", {}, RuntimeError("column does not exist"))

    def stop(self, _grace_s: float) -> None:
        enough = self._seat.confirmed + 3
        eventually(lambda: self._seat.confirmed >= enough, 10)


def test_the_place_is_confirmed_until_the_engine_has_stopped(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(worker_module, "_TICK_S", 0.01)
    worker, seat = Worker(settings, raises(AssertionError())), Seat()
    worker._seat, worker._engine = seat, Engine(seat)  # type: ignore[assignment]
    worker._stop()
    assert seat.confirmed >= 3


def test_an_error_of_the_database_that_nobody_knows_is_said_and_the_worker_goes_on(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    worker, seat = Worker(settings, raises(AssertionError())), Seat()
    worker._seat, worker._engine = seat, Engine(seat)  # type: ignore[assignment]
    worker._tick()
    assert "column does not exist" in caplog.text
    assert seat.confirmed == 1


def test_who_waits_for_the_database_with_a_shard_in_hand_does_not_hang(settings: Settings) -> None:
    office = Office(settings, raises(AssertionError()))
    office.worker._shards = 1
    office.worker._seat = Seat(JobsUnavailable("away"))  # type: ignore[assignment]
    office.worker._engine = Engine(office.worker._seat)  # type: ignore[arg-type, assignment]
    office.worker._tick()
    assert office.beats == 1
