"""Models in memory: each is loaded, traced, hooked and run by its one owner thread, and by nobody else."""

import logging
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import explainers
from app.config import Settings
from app.engine import Job, Owner, ShuttingDown
from app.errors import DeviceUnavailable
from explainers import Explanation, Subject, Target
from explainers.batch import ToGrid
from explainers.errors import ExplainError, LayerNotSpatial
from explainers.hooks import observe
from models import ModelSpec, Registry
from models.layers import LayerInfo, LayerTracer
from models.loading import LoadedModel, load, require_weights

_RETRY_FAILED_S = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """What the pictures of one batch have in common; without a method only the scores are asked for."""

    shape: tuple[int, ...]
    method: str | None = None
    layers: tuple[str, ...] = ()
    parameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Payload:
    """One picture as the model takes it, `(C, h, w)` float32, and its targets."""

    inputs: NDArray[np.float32]
    targets: tuple[Target, ...] = ()


class Host:
    """One model and its owner thread. `model`, `layers` and `default_layer` are there once it is ready."""

    model: LoadedModel
    layers: list[LayerInfo]
    default_layer: str | None

    def __init__(self, spec: ModelSpec, settings: Settings, *, may_download: bool) -> None:
        self.spec = spec
        self._settings = settings
        self._may_download = may_download
        self._started = time.monotonic()
        self.owner: Owner[Payload, Any] = Owner(spec.name, self._prepare, capacity=settings.queue_size)

    @property
    def is_to_be_replaced(self) -> bool:
        """Whether this host is of no more use; one that failed just now answers with its error for a while."""
        state = self.owner.state
        return state == "closed" or (state == "failed" and time.monotonic() - self._started > _RETRY_FAILED_S)

    def explain(
        self,
        payload: Payload,
        *,
        method: str,
        layers: Sequence[str],
        parameters: Mapping[str, object],
        timeout_s: float,
    ) -> Job[Payload, Explanation]:
        """Queue one picture for explanation; raises what `Owner.submit` raises."""
        key = Key(payload.inputs.shape, method, tuple(layers), tuple(sorted(parameters.items())))
        return cast("Job[Payload, Explanation]", self.owner.submit(key, payload, timeout_s=timeout_s))

    def predict(self, payload: Payload, *, timeout_s: float) -> Job[Payload, NDArray[np.float32]]:
        """Queue one picture for its scores `(K,)`; raises what `Owner.submit` raises."""
        key = Key(payload.inputs.shape)
        return cast("Job[Payload, NDArray[np.float32]]", self.owner.submit(key, payload, timeout_s=timeout_s))

    # From here on everything runs in the owner thread.

    def _prepare(self) -> Any:
        started = time.monotonic()
        _log.info("loading %s", self.spec.name)
        torch.set_num_threads(self._settings.torch_thread_count)
        self.model = load(self.spec, device=_device(self._settings.device), allow_download=self._may_download)
        self._subject = Subject(self.model.module, self.model.scores)
        sample = self._sample()
        tracer = LayerTracer()
        with torch.inference_mode(), observe(self.model.module, tracer):
            self.model.scores(sample)
        self.layers = tracer.layers
        self._by_name = {layer.name: layer for layer in self.layers}
        if self.spec.layer is not None:
            self._try_layer(self.spec.layer, sample)
        self.default_layer = self.spec.layer or self._choose_layer(tracer.candidates, sample)
        _log.info("loaded %s on %s in %.1f s", self.spec.name, self.model.device, time.monotonic() - started)
        return self._run

    def _sample(self) -> Tensor:
        height, width = self.model.preprocess.input_size
        generator = torch.Generator().manual_seed(0)
        sample = torch.randn((1, self.model.preprocess.channels, height, width), generator=generator)
        return self._to_device(sample)

    def _choose_layer(self, candidates: Sequence[LayerInfo], sample: Tensor) -> str | None:
        """Take the first candidate through whose grid the score's gradient flows.

        Shapes do not tell: after a ViT's last attention only the class token feeds the head, and the map of the
        patch tokens is zero everywhere.
        """
        for candidate in candidates:
            try:
                found = self._try_layer(candidate.name, sample)
            except ExplainError:  # on a branch that the score does not depend on, or not to be hooked
                continue
            if np.any(found.attributions[0].raw):
                return candidate.name
        return None

    def _try_layer(self, layer: str, sample: Tensor) -> Explanation:
        (found,) = self._explain(sample, [[Target()]], "gradcam", [layer], {})
        if isinstance(found, ExplainError):
            raise found
        return found

    def _run(self, key: Hashable, payloads: Sequence[Payload]) -> Sequence[Any]:
        key = cast("Key", key)
        inputs = self._to_device(torch.from_numpy(np.stack([payload.inputs for payload in payloads])))
        if key.method is None:
            return explainers.predict(self._subject, inputs)
        targets = [payload.targets for payload in payloads]
        return self._explain(inputs, targets, key.method, key.layers, dict(key.parameters))

    def _explain(
        self,
        inputs: Tensor,
        targets: Sequence[Sequence[Target]],
        method: str,
        layers: Sequence[str],
        parameters: Mapping[str, object],
    ) -> Sequence[Explanation | ExplainError]:
        return explainers.explain(
            self._subject,
            inputs,
            targets,
            method=method,
            layers=layers,
            to_grid=self._to_grid(layers[0]) if layers else None,
            parameters=parameters,
        )

    def _to_grid(self, layer: str) -> ToGrid | None:
        """Return how a layer's output becomes a grid, as the trace saw it; raise if it saw none."""
        traced = self._by_name.get(layer)
        if traced is None:
            return None  # it did not run, or does not exist: the explainers say which
        if traced.layout is None:
            shape = "no tensor" if traced.shape is None else f"shape {traced.shape}"
            msg = (
                f"Layer {layer!r} returns {shape}, in which no spatial grid was found; choose a layer that is spatial."
            )
            raise LayerNotSpatial(msg)
        return traced.layout.to_grid

    def _to_device(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.model.device, memory_format=self.model.memory_format)


class Hosts:
    """The hosts by model name, the least recently used first.

    The models of the start stay; of the others the least recently used makes room for a new one.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._hosts: dict[str, Host] = {}
        self._lock = threading.Lock()
        self._closed = False

    def get(self, name: str) -> Host:
        """Return the host of a model, starting to load it if need be; a failed load is tried again after a while.

        Raises `UnknownModel`, `WeightsUnavailable` and `ShuttingDown`.
        """
        spec = self._registry.get(name)
        with self._lock:
            if self._closed:
                raise ShuttingDown("The service is being shut down; try again in a moment.", retry_after_s=1)
            host = self._hosts.pop(name, None)
            if host is None or host.is_to_be_replaced:
                host = self._start(spec)
            self._hosts[name] = host
        return host

    def ready(self, name: str, *, timeout_s: float | None = None) -> Host:
        """Return the host of a model once it is loaded, or raise why it cannot be; by default wait without limit."""
        host = self.get(name)
        host.owner.wait_until_ready(timeout_s=timeout_s)
        self._make_room(name)
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

    def close(self) -> None:
        """Take no more work, and wait for what was accepted."""
        with self._lock:
            hosts, self._hosts, self._closed = list(self._hosts.values()), {}, True
        for host in hosts:
            host.owner.stop_accepting()
        deadline = time.monotonic() + self._settings.graceful_timeout_s
        for host in hosts:
            host.owner.close(grace_s=max(0.0, deadline - time.monotonic()))

    def _start(self, spec: ModelSpec) -> Host:
        may_download = spec.name in self._settings.preloaded
        if not may_download:
            require_weights(spec)
        return Host(spec, self._settings, may_download=may_download)

    def _make_room(self, newcomer: str) -> None:
        """Let the least recently used go, once the newcomer is there; one that is loading is left alone."""
        stay = {newcomer, *self._settings.preloaded}
        with self._lock:
            others = [n for n, host in self._hosts.items() if n not in stay and host.owner.state == "ready"]
            surplus = len(others) + (newcomer not in self._settings.preloaded) - self._settings.max_loaded_models
            for name in others[: max(0, surplus)]:
                self._hosts.pop(name).owner.stop_accepting()


def _device(setting: str) -> str:
    if setting.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceUnavailable(f"HEATLENS_DEVICE is {setting}, but torch finds no GPU here; set it to auto or cpu.")
    if setting != "auto":
        return setting
    return "cuda" if torch.cuda.is_available() else "cpu"
