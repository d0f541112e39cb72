"""Models in memory: each is loaded, traced, hooked and run by its one owner thread, and by nobody else."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import explainers
from app.config import Settings
from app.engine import Job, Owner, Report, ShuttingDown
from app.errors import KNOWN_ERRORS, DeviceUnavailable, ModelFailed, OutOfMemory
from app.layer_choice import Choice, choose_layer
from explainers import Explanation, Subject, Target, Work
from explainers.batch import ToGrid
from explainers.errors import ExplainError, LayerNotSpatial
from explainers.hooks import observe
from explainers.work import is_out_of_memory
from models import ModelSpec, Registry
from models.layers import LayerInfo, LayerTracer
from models.loading import LoadedModel, load, require_weights
from models.order import OrderCheck, mixes
from models.preprocess import Preprocess

_RETRY_FAILED_S = 10.0
_CHUNK = {"cpu": 8, "cuda": 32}
"""Changed pictures in one run of the model. Larger chunks are no faster on a CPU (benchmarks/methods.py)."""
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
    why_no_default_layer: str | None

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
        self._subject = Subject(self.model.module, self.model.scores, black=_black(self.model.preprocess))
        sample = self._sample()
        tracer = LayerTracer(sample.shape)
        self._observe(tracer, sample)
        self._chunk = self._settings.max_chunk_pictures or _CHUNK[self.model.device.type]
        check = self._check_order(tracer.layers)
        self.layers = check.layers
        self._by_name = {layer.name: layer for layer in self.layers}
        self._token_grids = _token_grids(self.layers)
        choice = self._default_layer(tracer.candidates, check, sample)
        self.default_layer, self.why_no_default_layer = choice.layer, choice.why_none
        _log.info("loaded %s on %s in %.1f s", self.spec.name, self.model.device, time.monotonic() - started)
        return self._run

    def _check_order(self, layers: Sequence[LayerInfo]) -> OrderCheck:
        """Return what a second forward pass says of the grids; a network may take one picture at a time only."""
        check = OrderCheck(layers)
        try:
            self._observe(check, mixes(self.model.preprocess.channels, self.model.preprocess.input_size))
        except Exception:  # noqa: BLE001 - foreign code, which has answered one picture before
            _log.info("%s takes one picture at a time, so the order of its tokens is not checked", self.spec.name)
            self._chunk = 1
            return OrderCheck(layers)
        return check

    def _observe(self, on_output: Callable[[str, nn.Module, object], None], pictures: Tensor) -> None:
        with torch.inference_mode(), observe(self.model.module, on_output):
            self.model.scores(self._to_device(pictures))

    def _sample(self) -> Tensor:
        height, width = self.model.preprocess.input_size
        generator = torch.Generator().manual_seed(0)
        sample = torch.randn((1, self.model.preprocess.channels, height, width), generator=generator)
        return self._to_device(sample)

    def _default_layer(self, candidates: Sequence[LayerInfo], check: OrderCheck, sample: Tensor) -> Choice:
        """Return the layer that the specification names, if it can be explained, or the one that is found."""

        def raw_map(method: str, layers: Sequence[str]) -> NDArray[np.float32]:
            (found,) = self._explain(sample, [[Target()]], method, layers, {}, Work())
            if isinstance(found, ExplainError):
                raise found
            return found.attributions[0].raw

        if self.spec.layer is None:
            return choose_layer(candidates, check, raw_map)
        raw_map("gradcam", [self.spec.layer])
        return Choice(self.spec.layer)

    def _run(self, key: Hashable, payloads: Sequence[Payload], report: Report) -> Sequence[Any]:
        key = cast("Key", key)
        try:
            return self._answer(key, payloads, report)
        except (*KNOWN_ERRORS, CancelledError):
            raise
        except Exception as error:  # the network is foreign code
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise _out_of_memory(key) from error
            _log.exception("running %s failed", self.spec.name)
            msg = f"Running model {self.spec.name!r} raised {type(error).__name__}; the server's log says where."
            raise ModelFailed(msg) from error

    def _answer(self, key: Key, payloads: Sequence[Payload], report: Report) -> Sequence[Any]:
        inputs = self._to_device(torch.from_numpy(np.stack([payload.inputs for payload in payloads])))
        if key.method is None:
            return explainers.predict(self._subject, inputs)
        targets = [payload.targets for payload in payloads]
        work = Work(
            chunk=self._chunk,
            limit=self._settings.max_samples,
            limit_name="HEATLENS_MAX_SAMPLES",
            on_step=report,
        )
        return self._explain(inputs, targets, key.method, key.layers, dict(key.parameters), work)

    def _explain(
        self,
        inputs: Tensor,
        targets: Sequence[Sequence[Target]],
        method: str,
        layers: Sequence[str],
        parameters: Mapping[str, object],
        work: Work,
    ) -> Sequence[Explanation | ExplainError]:
        return explainers.explain(
            self._subject,
            inputs,
            targets,
            method=method,
            layers=layers,
            to_grid={layer: to_grid for layer in layers if (to_grid := self._to_grid(layer))},
            token_grids=self._token_grids,
            parameters=parameters,
            work=work,
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


def _token_grids(layers: Sequence[LayerInfo]) -> dict[int, ToGrid]:
    """Return how a transformer's tokens lie in the picture, by their number, as the trace saw it."""
    tokens = [layer for layer in layers if layer.shape and layer.layout and layer.layout.kind == "tokens"]
    return {layer.shape[1]: layer.layout.to_grid for layer in tokens if layer.shape and layer.layout}


def _black(preprocess: Preprocess) -> tuple[float, ...]:
    """Return what a black pixel is in the model's input, per channel."""
    return tuple(-mean / std for mean, std in zip(preprocess.mean, preprocess.std, strict=True))


def _out_of_memory(key: Key) -> OutOfMemory:
    if key.method is None:
        return OutOfMemory("This picture's scores did not fit into the memory of the device.")
    return OutOfMemory(
        "This picture's explanation did not fit into the memory of the device; ask for fewer targets or layers, or "
        "have HEATLENS_MAX_CHUNK_PICTURES lowered."
    )


def _device(setting: str) -> str:
    if setting.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceUnavailable(f"HEATLENS_DEVICE is {setting}, but torch finds no GPU here; set it to auto or cpu.")
    if setting != "auto":
        return setting
    return "cuda" if torch.cuda.is_available() else "cpu"
