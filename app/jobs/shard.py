"""A shard: pictures of one job, explained batch by batch, so that the model always has its next batch waiting.

Each picture is one task of a pool of threads: read, decoded, handed to the model's owner thread, drawn, written. There
are three batches of them at once: one that the model works on, one that waits for it, one that is read or drawn. The
thread that runs the shard hands them out, notes what comes back, and looks whether it is to go on.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import explainers
from app.config import Settings
from app.engine import Job, ShuttingDown
from app.errors import OutOfSpace
from app.jobs import sources
from app.jobs.artifacts import Store
from app.jobs.explaining import Explain
from app.jobs.ledger import Ledger
from app.jobs.options import from_json
from app.jobs.pictures import Dropped, Pictures, StoreAway, limits_of
from app.jobs.room import shortage
from app.jobs.rows import ItemRow, Outcome, Shard

Result = TypeVar("Result")

_BATCHES = 3
_LOOK_S = 1.0
"""How long at most until somebody who cancels, or the end of the process, is noticed, and what came is written down."""
_PAUSE_S = 5.0
"""How long is waited before looking again whether there is room."""
_DISK_SPACE, _STORE = "disk_space", "store"
"""What a job can wait for."""
_log = logging.getLogger(__name__)


class ShardRunner:
    """Runs shards, one after the other, for the engine's worker.

    `beat` is called whenever a step is done, and while something is waited for on purpose; not while the model or a
    source says nothing. Once `stopping` is set, what the model has begun is finished, within half of
    HEATLENS_GRACEFUL_TIMEOUT_S, and the rest is handed back. `settings` are those of `worker_settings`.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        settings: Settings,
        explain: Explain,
        *,
        stopping: threading.Event,
        beat: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self.store = store
        self.settings = settings
        self.stopping = stopping
        self.beat = beat
        self.pictures = Pictures(store, limits_of(settings), explain, lambda url: sources.read(url, settings))

    def run(self, job_id: str, shard: int) -> None:
        """Work on a shard until it is done, handed back, or not wanted any more; raises what must end the process."""
        found = self.surely(lambda ledger: ledger.begin(job_id, shard))
        if found is not None:
            _Run(self, found).run()

    def surely(self, call: Callable[[Ledger], Result]) -> Result:
        """Return what the ledger answers, asked again while its database is away, or that disk is full.

        Also when stopping: what cannot be written down is left to whoever takes up the shard of a dead process.
        """
        return self._ledger.database.patiently(lambda: call(self._ledger), self.beat)

    def batch_size(self, method: str) -> int:
        """Return how many pictures the model takes at once."""
        fills_the_device_alone = explainers.get(method).cost_class != "low"
        return 1 if fills_the_device_alone else self.settings.batch_size


class _Run:
    """One run of one shard."""

    def __init__(self, runner: ShardRunner, shard: Shard) -> None:
        self._runner = runner
        self._job_id, self._number, self._attempt = shard.job_id, shard.shard, shard.attempt
        self._asked = from_json(shard.options)
        self._batch = runner.batch_size(self._asked.options.method)
        self._left = deque(shard.items)
        self._flying = 0
        self._came: SimpleQueue[tuple[ItemRow, Outcome | BaseException]] = SimpleQueue()
        self._outcomes: list[Outcome] = []
        self._obstacle: str | None = None
        self._lost: BaseException | None = None
        self._dropped = threading.Event()
        self._patience_ends = math.inf
        self._look_at = self._note_at = -math.inf
        self._unseen = 0
        """Pictures handed out since the last look."""

    def run(self) -> None:
        with ThreadPoolExecutor(_BATCHES * self._batch, "picture") as pool:
            try:
                while self._flying or (self._left and not self._stops):
                    self._turn(pool)
            except Dropped:
                return
            finally:
                self._dropped.set()
        self._note()
        if self._lost is not None:
            raise self._lost
        if self._left:
            self._surely(lambda ledger: ledger.hand_back(self._job_id, self._number))

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        self._look()
        if self._obstacle and not self._flying:
            self._note()
            self._wait_for(self._obstacle)
        self._hand_out(pool)
        self._collect()
        if len(self._outcomes) >= self._batch or time.monotonic() >= self._note_at:
            self._note()

    @property
    def _stops(self) -> bool:
        """Whether nothing more is handed out."""
        return self._lost is not None or self._runner.stopping.is_set()

    def _look(self) -> None:
        """See, before each batch and every second, whether the job is still wanted, and whether there is room."""
        now = time.monotonic()
        if self._runner.stopping.is_set():
            self._patience_ends = min(self._patience_ends, now + self._runner.settings.graceful_timeout_s / 2)
        if self._unseen < self._batch and now < self._look_at:
            return
        self._look_at, self._unseen = now + _LOOK_S, 0
        self._require_wanted()
        self._obstacle = self._missing() or self._obstacle

    def _require_wanted(self) -> None:
        if not self._surely(lambda ledger: ledger.wanted(self._job_id, self._attempt)):
            raise Dropped

    def _missing(self) -> str | None:
        """Return what there has to be before anything is begun, and is not: room, or the store itself."""
        try:
            room = self._runner.store.room()
        except OSError as error:
            _log.warning("the store does not work: %s", error)
            return _STORE
        return _DISK_SPACE if shortage(room, self._runner.settings) else None

    def _hand_out(self, pool: ThreadPoolExecutor) -> None:
        while self._left and self._flying < _BATCHES * self._batch and not (self._stops or self._obstacle):
            pool.submit(self._picture, self._left.popleft())
            self._flying += 1
            self._unseen += 1

    def _collect(self) -> None:
        """Take what has come back, and wait a moment for the first."""
        patience_s = _LOOK_S
        with suppress(Empty):
            while self._flying:
                self._take(*self._came.get(timeout=patience_s))
                patience_s = 0.0

    def _take(self, item: ItemRow, came: Outcome | BaseException) -> None:
        self._flying -= 1
        if isinstance(came, Outcome):
            if not self._outcomes:
                self._note_at = time.monotonic() + _LOOK_S
            self._outcomes.append(came)
            self._runner.beat()
            return
        self._left.append(item)
        if isinstance(came, OutOfSpace | StoreAway):
            self._obstacle = _DISK_SPACE if isinstance(came, OutOfSpace) else _STORE
            _log.warning("picture %d of job %s waits: %s", item.number, self._job_id, came)
        elif not (isinstance(came, Dropped | ShuttingDown) and self._runner.stopping.is_set()):
            self._lost = self._lost or came
            self._dropped.set()

    def _note(self) -> None:
        """Write down what came of pictures, all or nothing."""
        outcomes, self._outcomes, self._note_at = self._outcomes, [], math.inf
        if outcomes:
            self._surely(lambda ledger: ledger.record(self._job_id, outcomes, attempt=self._attempt))
            self._runner.beat()

    def _wait_for(self, obstacle: str) -> None:
        """Wait until there is room, and for a while at least, where the store does not work."""
        _log.warning("job %s waits for %s", self._job_id, obstacle)
        self._surely(lambda ledger: ledger.wait_for(self._job_id, obstacle))
        while not self._runner.stopping.wait(_PAUSE_S):
            self._runner.beat()
            self._require_wanted()
            if not self._missing():
                break
        self._obstacle = None
        self._surely(lambda ledger: ledger.wait_for(self._job_id, None))

    def _surely(self, call: Callable[[Ledger], Result]) -> Result:
        return self._runner.surely(call)

    # From here on in the threads of the pool.

    def _picture(self, item: ItemRow) -> None:
        """Work on a picture, and tell what becomes of it, whatever that is."""
        came: Outcome | BaseException
        try:
            came = self._outcome(item)
        except BaseException as raised:  # noqa: BLE001 - the thread that runs the shard decides
            came = raised
        self._came.put((item, came))

    def _outcome(self, item: ItemRow) -> Outcome:
        self.require_begin()
        return self._runner.pictures.outcome(self._job_id, item, self._asked, _Watch(self, self._runner.beat))

    def require_begin(self) -> None:
        """Raise `Dropped` where no work is to begin any more."""
        if self._dropped.is_set() or self._runner.stopping.is_set():
            raise Dropped

    def require_go_on(self, job: Job[Any, Any]) -> None:
        """Raise `Dropped` where the model is not to go on, as nobody wants it to, or the process is to end before."""
        if self._dropped.is_set() or (self._runner.stopping.is_set() and self._is_late(job)):
            raise Dropped

    def _is_late(self, job: Job[Any, Any]) -> bool:
        """Whether the process should end before the model would be done."""
        return math.isnan(job.started) or time.monotonic() > self._patience_ends


class _Watch:
    """Is called while the model is loaded, has a picture waiting, or works on it."""

    def __init__(self, run: _Run, beat: Callable[[], None]) -> None:
        self._run = run
        self._beat = beat
        self._reported: tuple[int, int] | None = None

    def __call__(self, job: Job[Any, Any]) -> None:
        self._run.require_go_on(job)
        if job.progress != self._reported:
            self._reported = job.progress
            self._beat()

    def loading(self) -> None:
        self._run.require_begin()
        self._beat()
