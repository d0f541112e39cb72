"""A worker: a process that explains the shards of jobs, one after the other, on one device.

What needs torch is imported with the first shard: until then a worker takes 100 MB, and not five times as much.
"""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from app import logs
from app.config import LONGEST_S, SLOT, Settings, SettingsError, load_settings
from app.engine import DeviceLost
from app.errors import DatabaseTooNew, DeviceUnavailable, JobsUnavailable, OutOfSpace
from app.jobs.artifacts import Store
from app.jobs.database import Database
from app.jobs.engine import Engine, ShardQueue
from app.jobs.housekeeping import Housekeeping
from app.jobs.ledger import Ledger
from app.jobs.locks import Locks, Seat, SeatLost
from app.jobs.supervisor import CANNOT_START, Pulse
from app.jobs.webhooks import Webhooks

if TYPE_CHECKING:
    from app.jobs.explaining import Explain
    from app.jobs.shard import ShardRunner

Result = TypeVar("Result")

_TICK_S = 1.0
_RESCUE_S = 3.0
_DELETED_S, _HOUSEKEEPING_S = 5.0, 60.0
_KILLED = 1
_log = logging.getLogger("app.jobs.worker")


class _Stopping(Exception):
    """The worker is to stop before it has begun, or before the model is loaded."""


class Worker:
    """Runs until it is told to stop. The model is loaded with the first shard: an idle worker takes little memory."""

    def __init__(self, settings: Settings, make_explain: "Callable[[Settings], Explain]") -> None:
        self._settings = settings
        self._make_explain = make_explain
        self._pulse = Pulse()
        self._stopping = threading.Event()
        self._code = 0
        self._shards = 0
        self._rescued = 0.0
        self._database = Database(settings)
        self._locks = Locks(self._database)
        self._queue = ShardQueue(self._database)
        self._ledger = Ledger(self._database, self._queue, shard_pictures=settings.job_shard_pictures)
        self._store = Store(settings)

    def run(self) -> int:
        """Return the exit code; threads may still run then, and are to be ended with the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        try:
            self._begin()
        except _Stopping:
            return self._code
        except DatabaseTooNew as error:
            _log.critical("cannot start: %s", error)
            return CANNOT_START
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()
        while not self._stopping.wait(_TICK_S):
            self._tick()
        _log.info("stopping")
        self._stop()
        self._seat.leave()
        return self._code

    def _stop(self) -> None:
        """Let end what runs, whose results are kept only while the place is confirmed."""
        grace_s = self._settings.graceful_timeout_s
        ending = threading.Thread(target=self._engine.stop, args=[grace_s], name="stop", daemon=True)
        ending.start()
        while ending.is_alive():
            self._tick()
            ending.join(_TICK_S)

    def _begin(self) -> None:
        self._patiently(self._database.migrate)
        self._seat = self._patiently(lambda: Seat.take(self._locks))
        os.environ[SLOT] = str(self._seat.slot)
        deliver = Webhooks(self._settings, self._ledger).deliver
        self._engine = Engine(
            self._database, self._locks, self._seat.executor, run_shard=self._run_shard, deliver=deliver
        )
        self._pulse.beat()  # from here on a shard may hang
        self._patiently(self._engine.start)
        _log.info("worker %s is ready for jobs", self._seat.executor)

    def _patiently(self, call: Callable[[], Result]) -> Result:
        def waiting() -> None:
            _log.warning("the jobs' database does not answer; waiting for it")
            self._pulse.beat()
            if self._stopping.is_set() or not self._pulse.is_heard:
                raise _Stopping

        return self._database.patiently(call, waiting)

    def _tick(self) -> None:
        if not (self._pulse.is_heard or self._stopping.is_set()):
            _log.error("the supervisor is gone; stopping")
            self._stopping.set()
        try:
            self._seat.confirm(self._engine.owns_what_it_runs)
            self._rescue()
        except (JobsUnavailable, OutOfSpace):
            self._pulse.beat()  # who waits for the database does not hang
        except SQLAlchemyError:
            _log.exception("looking after the jobs failed, and is tried again")
        except SeatLost as error:
            _end_at_once(str(error))
        if not self._shards:
            self._pulse.beat()

    def _rescue(self) -> None:
        now = time.monotonic()
        if now - self._rescued < _RESCUE_S:
            return
        self._rescued = now
        self._engine.rescue()
        for job_id, shard, error in self._queue.given_up():
            _log.error("shard %d of job %s is given up: %s", shard, job_id, error["detail"])
            self._ledger.give_up(job_id, shard, error)
            self._queue.settle(job_id, shard)

    # From here on in other threads.

    def _run_shard(self, job_id: str, shard: int) -> None:
        self._shards += 1
        try:
            if runner := self._runner_or_stop(job_id, shard):
                runner.run(job_id, shard)
        except DeviceUnavailable as error:  # of a model that is loaded for this shard
            self._leave_to_others(job_id, shard, error)
        except DeviceLost as error:  # of this shard, perhaps: it counts as one of its runs
            _end_at_once(f"the device is lost: {error}")
        finally:
            self._shards -= 1

    def _runner_or_stop(self, job_id: str, shard: int) -> "ShardRunner | None":
        """Where no model can run here, whatever the job, leave the shard to a better worker."""
        from app.known_errors import KNOWN_ERRORS

        try:
            return self._runner
        except (SettingsError, _Stopping, *KNOWN_ERRORS) as error:
            self._leave_to_others(job_id, shard, error)
            return None

    def _leave_to_others(self, job_id: str, shard: int, error: Exception) -> None:
        if not isinstance(error, _Stopping):
            _log.critical("cannot explain anything: %s", error)
            self._code = _KILLED if isinstance(error, DeviceLost) else CANNOT_START
        self._stopping.set()  # first, so that it does not come back
        self._database.patiently(lambda: self._ledger.hand_back(job_id, shard))

    @cached_property
    def _runner(self) -> "ShardRunner":
        from app.jobs.explaining import worker_settings
        from app.jobs.shard import ShardRunner

        settings = worker_settings(self._settings)
        explain = self._explain(settings)
        return ShardRunner(self._ledger, self._store, settings, explain, stopping=self._stopping, beat=self._on_beat)

    def _explain(self, settings: Settings) -> "Explain":
        """Load the models, which takes as long as a download and is no hang, for as long as a server may take."""
        made = ThreadPoolExecutor(1, "loading").submit(self._make_explain, settings)
        ends = time.monotonic() + LONGEST_S
        while not wait([made], _TICK_S / 10).done:
            if self._stopping.is_set():
                raise _Stopping
            if time.monotonic() < ends:
                self._pulse.beat()
        return made.result()

    def _on_beat(self) -> None:
        """Wait, after each step and so before it is recorded, while others might take this worker for dead."""
        self._pulse.beat()
        while not self._seat.is_sure:
            time.sleep(_TICK_S / 10)

    def _keep_house(self) -> None:
        housekeeping = Housekeeping(self._ledger, self._store, self._settings)
        last = 0.0
        while not self._stopping.wait(_DELETED_S):
            try:
                if time.monotonic() - last >= _HOUSEKEEPING_S or self._ledger.deleted():
                    last = time.monotonic()
                    self._tidy(housekeeping)
            except Exception:  # noqa: BLE001 - the store's own, the network's: nothing of it is the jobs' fault
                _log.exception("housekeeping failed, and is tried again")

    def _tidy(self, housekeeping: Housekeeping) -> None:
        """One worker at a time does."""
        if lock := self._locks.take("housekeeping"):
            with lock:
                housekeeping.tick()


def run_worker(settings: Settings, make_explain: "Callable[[Settings], Explain] | None" = None) -> NoReturn:
    """Be a worker until told to stop, and end the process.

    What the machine has is shared among its devices; a server that starts workers beside its own says how much.
    """
    settings = settings.model_copy(update={"workers": len(settings.devices)})
    logs.configure(settings.log_level, settings.log_format)
    code = _KILLED
    try:
        code = Worker(settings, make_explain or _models).run()
    except Exception:  # noqa: BLE001 - whatever it is, another process may do better
        _log.exception("the worker failed")
    logging.shutdown()
    os._exit(code)  # whatever still runs is left as it is, to be taken up by others


def _models(settings: Settings) -> "Explain":
    import cv2

    from app.jobs.explaining import ServiceExplain
    from app.service import Service

    warnings.filterwarnings("ignore", module=r"PIL\.")  # quotes odd tags of uploads
    cv2.setNumThreads(1)  # pictures are parallel enough
    service = Service(settings)
    service.start()
    return ServiceExplain(service)


def _end_at_once(why: str) -> NoReturn:
    _log.critical("%s; another process takes over", why)
    logging.shutdown()
    os._exit(_KILLED)


def main() -> NoReturn:
    """Be the worker of a supervisor: `python -m app.jobs.worker`."""
    try:
        settings = load_settings()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(CANNOT_START)
    run_worker(settings)


if __name__ == "__main__":
    main()
