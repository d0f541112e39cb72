"""The models in memory, and how many requests may be at them."""

import logging
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from weakref import WeakSet

from app import devices
from app.config import Settings
from app.engine import Admission, DeviceLost, EngineError, ModelStuck, ShuttingDown
from app.errors import ModelTooLarge
from app.hosting import Host
from app.metrics import Metrics
from models import ModelSpec, Registry
from models.loading import require_weights

_RETRY_STUCK_S = 10
_ENDING_S = 1.0
"""For threads whose work is refused already: one that is about to end is let end, one that hangs is left."""
_log = logging.getLogger(__name__)


class Hosts:
    """The hosts by model name, the least recently used first.

    The models of the start stay; of the others the least recently used makes room for a new one, unless a request is
    at it. `on_lost` is called once when the device is lost, from the thread that lost it.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        metrics: Metrics | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._on_lost = on_lost
        self._hosts: dict[str, Host] = {}
        self._living: WeakSet[Host] = WeakSet()  # also those that were let go, and work still
        self._lock = threading.RLock()
        self._refusal: EngineError | None = None
        self._admission = Admission(
            each=settings.queue_size,
            total=settings.queue_total,
            limits=("HEATLENS_QUEUE_SIZE", "HEATLENS_QUEUE_TOTAL"),
            entered=self._metrics.entered,
            left=self._metrics.left,
        )

    @property
    def inside(self) -> int:
        """How many requests hold a place."""
        return self._admission.inside()

    def get(self, name: str) -> Host:
        """Return the host of a model, starting to load it if need be; a failed load is tried again after a while.

        Raises `UnknownModel`, `WeightsUnavailable`, `ShuttingDown` and `DeviceLost`.
        """
        return self._get(name, self._loadable(name))

    @contextmanager
    def using(self, name: str, *, timeout_s: float) -> Iterator[Host]:
        """Hold a place at a model, which stays in memory meanwhile; loading is waited for only a moment.

        Raises what `get` raises, `QueueFull`, `NotReady`, and why the model cannot be loaded.
        """
        spec = self._loadable(name)  # what cannot be had is no reason to be refused a place
        with ExitStack() as stack:
            with self._lock:
                known = self._hosts.get(name)
                seconds_each = known.owner.seconds_each if known else 0.0
                stack.enter_context(self._admission.place(name, seconds_each=seconds_each))
                host = self._get(name, spec)
            host.owner.wait_until_ready(timeout_s=min(timeout_s, self._settings.load_wait_s))
            self._make_room()
            yield host

    def ready(self, name: str) -> Host:
        """Return the host of a model once it is loaded, however long that takes, or raise why it cannot be."""
        host = self.get(name)
        host.owner.wait_until_ready(timeout_s=None)
        self._make_room()
        return host

    def peek(self, name: str) -> Host | None:
        """Return the host of a model if there is one."""
        with self._lock:
            return self._hosts.get(name)

    def unload(self, name: str) -> bool:
        """Let a model finish its queue and go; say whether it was there."""
        with self._lock:
            host = self._hosts.pop(name, None)
        if host is not None:
            host.owner.stop_accepting()
        return host is not None

    def close(self, *, grace_s: float) -> None:
        """Take no more work, wait `grace_s` seconds at most for what was accepted, and refuse the rest."""
        if self._refusal:
            grace_s = min(grace_s, _ENDING_S)
        refusal = ShuttingDown("The service is being shut down; try again in a moment.", retry_after_s=1)
        hosts = self._empty(refusal)
        deadline = time.monotonic() + grace_s
        working = [host for host in hosts if host.owner.state != "loading"]  # that is not worth waiting for
        for host in hosts:
            host.owner.stop_accepting()
        for host in hosts:
            host.owner.close(grace_s=max(0.0, deadline - time.monotonic()) if host in working else 0.0)

    def watch(self) -> None:
        """Give the process up if a model does not come back from its work; to be called now and then."""
        limit_s = self._settings.model_stall_s
        with self._lock:
            living = [] if self._refusal else list(self._living)
        stuck = next((host for host in living if host.owner.overdue_s > limit_s), None)
        if limit_s and stuck:
            name = stuck.spec.name
            msg = (
                "%s still runs %.0f s after all whom it works for were told that it is too late "
                "(HEATLENS_MODEL_STALL_S); the process has to be replaced"
            )
            _log.critical(msg, name, stuck.owner.overdue_s)
            told = f"Model {name!r} does not come back from its work, and its process is being replaced"
            self._lose(ModelStuck(f"{told}; try again in {_RETRY_STUCK_S} s.", retry_after_s=_RETRY_STUCK_S))

    def _lose(self, error: DeviceLost) -> None:
        """Answer all that was accepted; no model of this process will run again."""
        known = isinstance(self._refusal, DeviceLost)
        for host in self._empty(error):
            host.owner.lose(error)
        if not known:
            self._on_lost()

    def _empty(self, refusal: EngineError) -> list[Host]:
        """Let all go and take nobody in any more; return them, with those that were let go before and still work."""
        with self._lock:
            hosts, self._hosts = list(self._living), {}
            self._refusal = self._refusal or refusal
        return hosts

    def _loadable(self, name: str) -> ModelSpec:
        """Return a model that is there, or can be loaded; reads files, so it is not for who holds the lock."""
        spec = self._registry.get(name)
        host = self.peek(name)
        if spec.name not in self._settings.preloaded and (host is None or host.is_to_be_replaced):
            require_weights(spec)
        return spec

    def _get(self, name: str, spec: ModelSpec) -> Host:
        with self._lock:
            if self._refusal:
                raise self._refusal.with_traceback(None)
            host = self._hosts.pop(name, None)
            if host is None or host.is_to_be_replaced:
                host = self._start(spec)
            self._hosts[name] = host
        return host

    def _start(self, spec: ModelSpec) -> Host:
        host = Host(
            spec,
            self._settings,
            self._metrics,
            may_download=spec.name in self._settings.preloaded,
            on_loaded=self._welcome,
            on_lost=self._lose,
        )
        self._living.add(host)
        return host

    @cached_property
    def _budget_bytes(self) -> int:
        return devices.model_memory_bytes(self._settings, devices.own_device(self._settings))

    def _welcome(self, newcomer: Host) -> None:
        """Let others go for a model that was loaded; raises `ModelTooLarge`, before they go, if that cannot help."""
        pinned = self._settings.preloaded
        with self._lock:
            pinned_bytes = self._size_bytes(pinned)
        if newcomer.spec.name not in pinned and pinned_bytes + newcomer.size_bytes > self._budget_bytes:
            msg = (
                f"Model {newcomer.spec.name!r} takes {newcomer.size_bytes} bytes, and the models of the start, which "
                f"stay, {pinned_bytes}: together more than {self._budget_bytes} (HEATLENS_MODEL_MEMORY_BYTES)."
            )
            raise ModelTooLarge(msg, limit=self._budget_bytes)
        self._make_room()

    def _make_room(self) -> None:
        """Let the least recently used go while all together are too large, unless a request is at them."""
        with self._lock:
            for name, host in list(self._hosts.items()):
                if self._size_bytes() <= self._budget_bytes:
                    return
                if self._may_go(host):
                    self._hosts.pop(name).owner.stop_accepting()

    def _size_bytes(self, names: Container[str] | None = None) -> int:
        return sum(host.size_bytes for name, host in self._hosts.items() if names is None or name in names)

    def _may_go(self, host: Host) -> bool:
        name = host.spec.name
        idle = host.owner.state == "ready" and not self._admission.inside(name)
        return idle and name not in self._settings.preloaded
