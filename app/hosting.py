"""A model in memory: it is loaded, traced, hooked and run by its one owner thread, and by nobody else."""

import gc
import logging
import math
import os
import site
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple, cast

import torch

from app import devices
from app.config import Settings
from app.engine import DeviceLost, Job, Owner, Report, ShuttingDown
from app.errors import ModelFailed, OutOfMemory
from app.known_errors import KNOWN_ERRORS
from app.metrics import Metrics
from app.network import Network
from app.tasks import Explain, Payload, Predict, Randomise, Task
from explainers import Work
from explainers.work import is_out_of_memory
from models import ModelSpec
from models.loading import LoadedModel

_RETRY_FAILED_S = 10.0
_RETRY_LOST_S = 10
AT_ONCE = {"cpu": 8, "cuda": 32}
"""Pictures in one run of the model, of several requests or changed ones of one. More are no faster on a CPU."""
_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """What the pictures of one batch have in common."""

    shape: tuple[int, ...]
    task: Task


class Host:
    """One model and its owner thread."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        metrics: Metrics,
        *,
        may_download: bool,
        on_loaded: Callable[["Host"], None] = lambda host: None,
        on_lost: Callable[[DeviceLost], None] = lambda lost: None,
    ) -> None:
        self.spec = spec
        self.size_bytes = 0
        """Memory of the parameters, buffers and folded copies, once they are there."""
        self._settings = settings
        self._metrics = metrics
        self._may_download = may_download
        self._on_loaded = on_loaded
        self._on_lost = on_lost
        self._at_once: dict[str, int] = {}
        """What fitted into the memory, by task, where that was less than is usual."""
        self._network: Network | None = None
        self._failed = math.inf
        self.owner: Owner[Payload, Any] = Owner(
            spec.name,
            self._prepare,
            batch_size=self._batch_size,
            wait_s=settings.batch_wait_s,
            ran=self._ran,
            ended=self._leave,
            expected=KNOWN_ERRORS,
        )

    @property
    def is_to_be_replaced(self) -> bool:
        """Whether this host is of no more use; one that failed just now answers with its error for a while."""
        return self.owner.state == "failed" and time.monotonic() - self._failed > _RETRY_FAILED_S

    @property
    def network(self) -> Network:
        """What was loaded; raises `ShuttingDown` once it has gone."""
        if self._network is None:
            raise ShuttingDown(f"Model {self.spec.name!r} was unloaded; try again in a moment.", retry_after_s=1)
        return self._network

    @property
    def model(self) -> LoadedModel:
        """The loaded model; `preprocess` and `probabilities` may be called from any thread."""
        return self.network.model

    def require_sound(self) -> None:
        """Raise `NonFiniteOutput` for a model that answers NaN or infinity: it can only be diagnosed."""
        flaw = self._network.model.flaw if self._network else None  # what is not there, or is lost, has its own error
        if flaw is not None:
            raise flaw.with_traceback(None)

    def submit(self, task: Task, payload: Payload, *, timeout_s: float, limit: str = "its time") -> Job[Payload, Any]:
        """Queue what a task is to be done with; for `limit` and what is raised see `Owner.submit`.

        Raises `NonFiniteOutput` where the task needs scores and the model has none.
        """
        if isinstance(task, Explain | Predict | Randomise):
            self.require_sound()
        return self.owner.submit(Key(payload.inputs.shape, task), payload, timeout_s=timeout_s, limit=limit)

    # From here on everything runs in the owner thread.

    def _prepare(self) -> Any:
        started = time.monotonic()
        _log.info("loading %s", self.spec.name)
        torch.set_num_threads(self._settings.torch_thread_count)
        _see_working_directory()
        device = devices.own_device(self._settings)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # what names no device must not touch another worker's
        try:
            network = Network(self.spec, device, allow_download=self._may_download)
            self._require_device(device)
            self.size_bytes = network.size_bytes
            self._on_loaded(self)
        except Exception as error:
            self.size_bytes = 0
            if not isinstance(error, DeviceLost):
                self._require_device(device, error)  # whatever was made of it, the loss is what counts
            raise
        self._network = network
        self._metrics.loaded(self.spec.name, self.size_bytes)
        _log.info("loaded %s on %s in %.1f s", self.spec.name, device, time.monotonic() - started)
        return self._run

    def _leave(self) -> None:
        """Leave the memory, where a load that failed may have left the most of a model.

        The quick way is a graph, whose parts refer to each other: only a collection frees it.
        """
        if self._network is None:
            self._failed = time.monotonic()
        else:
            self._metrics.unloaded(self.spec.name)
        self._network, self.size_bytes = None, 0
        gc.collect()
        if not self.owner.is_lost:  # a lost device takes no more orders
            torch.cuda.empty_cache()  # nothing, where this process never used one

    def _batch_size(self, key: Hashable) -> int:
        """Return how many pictures run together; a method that runs the model many times fills the device alone."""
        task = cast("Key", key).task
        if not self.network.takes_batches or task.alone:
            return 1
        return self._fitting(task, self._settings.batch_size)

    def _chunk(self, task: Task) -> int:
        """Return how many changed pictures of one run together."""
        return self._fitting(task, self._settings.max_chunk_pictures) if self.network.takes_batches else 1

    def _fitting(self, task: Task, wanted: int) -> int:
        usual = wanted or AT_ONCE[self.model.device.type]
        return min(usual, self._at_once.get(task.name, usual))

    def _run(self, key: Hashable, payloads: Sequence[Payload], report: Report) -> Sequence[Any]:
        key = cast("Key", key)
        try:
            return self._in_parts(key, payloads, report)
        except (*KNOWN_ERRORS, CancelledError):
            raise
        except (Exception, SystemExit) as error:  # the network is foreign code
            if isinstance(error, torch.AcceleratorError):
                self._require_device(self.network.model.device, error)
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise _out_of_memory(key.task) from error
            _log.exception("running %s failed", self.spec.name)
            msg = f"Running model {self.spec.name!r} raised {type(error).__name__}; the server's log says where."
            raise ModelFailed(msg) from error

    def _require_device(self, device: torch.device, error: Exception | None = None) -> None:
        """Raise `DeviceLost`, and have all hosts told, where the device answers no more."""
        if devices.answers(device):
            return
        _log.critical("%s is lost, the process has to be replaced: %s", device, error)
        msg = f"The device {device} failed and the server is being restarted; try again in {_RETRY_LOST_S} s."
        lost = DeviceLost(msg, retry_after_s=_RETRY_LOST_S)
        self._on_lost(lost)
        raise lost from error

    def _in_parts(self, key: Key, payloads: Sequence[Payload], report: Report) -> list[Any]:
        """Answer the payloads, together where memory allows it; where it does not, from then on in smaller parts."""
        answers: list[Any] = []
        while len(answers) < len(payloads):
            part = payloads[len(answers) :][: self._batch_size(key)]
            try:
                answers += self._answer(key, part, report)
            except RuntimeError as error:
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                self._at_once[key.task.name] = len(part) // 2
                _log.warning("%d pictures did not fit into the memory; from now on %d", len(part), len(part) // 2)
        return answers

    def _answer(self, key: Key, payloads: Sequence[Payload], report: Report) -> Sequence[Any]:
        chunk = self._chunk(key.task)
        work = Work(chunk=chunk, limit=self._settings.max_samples, limit_name="HEATLENS_MAX_SAMPLES", on_step=report)
        answers = key.task.run(self.network, payloads, work)
        if work.chunk < chunk:  # memory ran out, and this is what fitted
            self._at_once[key.task.name] = work.chunk
        return answers

    def _ran(self, key: Hashable, jobs: Sequence[Job[Payload, Any]], seconds: float) -> None:
        name = cast("Key", key).task.name
        self._metrics.ran(self.spec.name, name, [job.queue_s for job in jobs], seconds)
        if self.model.device.type == "cuda":
            device = self.model.device
            self._metrics.gpu_memory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))


def _see_working_directory() -> None:
    """Have the operator's own networks found in the working directory, whichever process loads them.

    It comes before what was installed, which may have a package of the same name (`tests`), and behind the standard
    library; our own packages are imported by now.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        installed = set(site.getsitepackages())
        sys.path.insert(next((i for i, entry in enumerate(sys.path) if entry in installed), len(sys.path)), folder)


def _out_of_memory(task: Task) -> OutOfMemory:
    msg = f"{task.name} of one picture did not fit into the memory of the device; {task.remedy}."
    return OutOfMemory(msg)
