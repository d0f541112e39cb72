"""The use case: a picture comes in, and why the model decided so goes out.

The straight walk of a request: find model and method, decode and preprocess (bad input stops here), queue for the
model's owner thread. Laying the maps back on the picture, drawing and encoding is `app.drawing`'s.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import explainers
from app.catalogue import Catalogue
from app.config import Settings, SettingsError
from app.engine import DeadlineExceeded, Watch
from app.errors import LimitExceeded, NoDefaultLayer, UnknownLabel, VersusNotTaken
from app.hosting import Host, Payload
from app.hosts import Hosts
from app.imaging.decode import Picture, decode
from app.imaging.encode import fit, resize
from app.imaging.limits import Limits
from app.metrics import Metrics
from app.schemas.options import ClassName, ExplainOptions, PredictOptions
from explainers import Attribution, Method, Rank, Target
from explainers.errors import close_matches
from models import Registry
from models.loading import LoadedModel
from models.preprocess import Geometry

_SHOWN_PX = 960
"""A large JPEG is decoded reduced, but never below twice what the model sees, so that its input differs by less than
half a grey level on average, and never shorter than this, which nearly fills an answer of the usual 1024 pixels."""
_ENLARGED = 16 / 15
"""By how much a reduced decode may be enlarged for the answer: 960 to 1024 pixels."""
_DECODERS = 4
"""Pictures decoded at once: a large one takes hundreds of megabytes."""

_TOP = re.compile(r"top([0-9]{1,4})")


@dataclass(frozen=True)
class Timings:
    """Where the time went, in seconds; `queue` includes loading the model."""

    decode: float
    queue: float
    model: float


@dataclass(frozen=True)
class Seen:
    """A picture, what the model was shown of it, and what it answered."""

    model: LoadedModel
    picture: Picture
    geometry: Geometry
    scores: NDArray[np.float32]
    timings: Timings

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The scores as probabilities, `(K,)`."""
        return self.model.probabilities(self.scores)

    def most_probable(self, count: int) -> list[int]:
        """The `count` best classes, best first."""
        return [int(index) for index in np.argsort(-self.scores, kind="stable")[:count]]


@dataclass(frozen=True)
class Explained(Seen):
    """What the model answered, and why: one attribution per target."""

    method: Method
    parameters: Mapping[str, object]
    layers: list[str]
    attributions: list[Attribution]
    identity: str | None
    """What `Service.identity` says of this request, of the model that did answer it."""


class _Clock:
    """Laps of one request, and what is left of its time, in seconds; `limit` says how long that is and who set it."""

    def __init__(self, timeout_s: float, source: str) -> None:
        self.limit = f"{timeout_s:g} s ({source})"
        self._lapped = time.perf_counter()
        self._deadline = self._lapped + timeout_s

    def lap(self) -> float:
        now = time.perf_counter()
        lap_s, self._lapped = now - self._lapped, now
        return lap_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._deadline - time.perf_counter())


class Service:
    """Joins models, explainers, the engine and imaging; one per process."""

    def __init__(self, settings: Settings, on_device_lost: Callable[[], None] = lambda: None) -> None:
        if unknown := settings.method_timeouts_s.keys() - explainers.names():
            msg = f"HEATLENS_METHOD_TIMEOUTS_S: there is no method {min(unknown)!r}; see `heatlens methods`."
            raise SettingsError(msg)
        self.settings = settings
        self.metrics = Metrics()
        self.registry = Registry(settings.models_dir)
        self.hosts = Hosts(self.registry, settings, self.metrics, on_device_lost)
        self.catalogue = Catalogue(settings, self.registry, self.hosts)
        self._decoding = threading.BoundedSemaphore(_DECODERS)
        self._limits = Limits(
            max_bytes=settings.max_body_bytes,
            max_pixels=settings.max_image_pixels,
            max_side_px=settings.max_image_side_px,
        )

    def start(self) -> None:
        """Load the models that are to be there from the start; raise why one cannot be."""
        for name in self.settings.preloaded:
            self.hosts.get(name)
        for name in self.settings.preloaded:
            self.hosts.ready(name)  # without limit: a first download takes as long as it takes

    def close(self, *, grace_s: float | None = None) -> None:
        """Take no more work, and finish what was accepted, within HEATLENS_GRACEFUL_TIMEOUT_S by default."""
        self.hosts.close(grace_s=self.settings.graceful_timeout_s if grace_s is None else grace_s)

    def check(self, options: ExplainOptions, parameters: Mapping[str, object]) -> tuple[Method, dict[str, object]]:
        """Return the method and its own parameters, all of them; raise what can be found wrong without the model."""
        method = explainers.get(options.method)
        checked = explainers.check_parameters(method, parameters).model_dump()
        if options.versus is not None and not method.class_specific:
            msg = f"{method.name} gives the same map for every class, so there is nothing to compare; leave versus out."
            raise VersusNotTaken(msg)
        self._check_limits(options)
        return method, checked

    def identity(self, options: ExplainOptions, parameters: Mapping[str, object]) -> str | None:
        """Name all that decides on the maps of a picture: model, weights, method, parameters, targets and layers.

        None while the model is not loaded, and where the same again would not give the same. Raises what is wrong
        with the request.
        """
        method, checked = self.check(options, parameters)
        host = self.hosts.peek(options.model or self.settings.default_model)
        if host is None or host.owner.state != "ready":
            return None
        layers = self._layers(options, method, host)
        return _identity(host.model, method, checked, self._targets(options, host.model), layers)

    def explain(
        self,
        data: bytes,
        options: ExplainOptions,
        parameters: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> Explained:
        """Explain one picture. `parameters` are the method's own; `watch` is called while the model works."""
        method, checked = self.check(options, parameters)
        clock = self._clock(timeout_s, method)
        with self.hosts.using(options.model or self.settings.default_model, timeout_s=clock.remaining_s) as host:
            loaded_s = clock.lap()
            targets = self._targets(options, host.model)
            layers = self._layers(options, method, host)
            with self._decoder(clock):
                picture, inputs, geometry = self._look(data, host, options.max_side)
                picture = _no_larger(picture, options.max_side)
            decode_s = clock.lap()
            job = host.explain(
                Payload(inputs, targets),
                method=method.name,
                layers=layers,
                parameters=checked,
                timeout_s=clock.remaining_s,
                limit=clock.limit,
            )
            answer = job.result(watch)
            model = host.model
        return Explained(
            model=model,
            picture=picture,
            geometry=geometry,
            scores=answer.scores,
            timings=Timings(decode_s, loaded_s + job.queue_s, job.run_s),
            method=method,
            parameters=checked,
            layers=layers,
            attributions=answer.attributions,
            identity=_identity(model, method, checked, targets, layers),
        )

    def predict(
        self, data: bytes, options: PredictOptions, *, timeout_s: float | None = None, watch: Watch | None = None
    ) -> Seen:
        """Classify one picture."""
        clock = self._clock(timeout_s)
        with self.hosts.using(options.model or self.settings.default_model, timeout_s=clock.remaining_s) as host:
            loaded_s = clock.lap()
            with self._decoder(clock):
                picture, inputs, geometry = self._look(data, host, _SHOWN_PX)
            decode_s = clock.lap()
            job = host.predict(Payload(inputs), timeout_s=clock.remaining_s, limit=clock.limit)
            scores = job.result(watch)
            model = host.model
        return Seen(model, picture, geometry, scores, Timings(decode_s, loaded_s + job.queue_s, job.run_s))

    def _look(self, data: bytes, host: Host, max_side: int) -> tuple[Picture, NDArray[np.float32], Geometry]:
        """Decode no larger than needed, and turn the picture into the model's input.

        What the model sees must not depend on the size of the answer, so a larger answer has a decode of its own.
        """
        preprocess = host.model.preprocess
        picture = decode(data, self._limits, enough_px=2 * preprocess.enough_px, longest_px=_SHOWN_PX)
        inputs, geometry = preprocess(picture.samples, (picture.width, picture.height))
        wanted_px = min(max_side, max(picture.width, picture.height))
        if wanted_px > _ENLARGED * max(picture.pixels.shape[:2]):
            picture = decode(data, self._limits, enough_px=1, longest_px=max_side)
        return picture, inputs, geometry

    @contextmanager
    def _decoder(self, clock: _Clock) -> Iterator[None]:
        """Wait for one of the decoders, as long as the request has time; raises `DeadlineExceeded`."""
        if not self._decoding.acquire(timeout=clock.remaining_s):
            raise DeadlineExceeded(f"The request was not answered within {clock.limit}.")
        try:
            yield
        finally:
            self._decoding.release()

    def _clock(self, timeout_s: float | None, method: Method | None = None) -> _Clock:
        """Return the clock of a request that may itself have asked for less time than there is."""
        limit_s, source = self.settings.request_timeout_s, "HEATLENS_REQUEST_TIMEOUT_S"
        if method and method.name in self.settings.method_timeouts_s:
            limit_s, source = self.settings.method_timeouts_s[method.name], "HEATLENS_METHOD_TIMEOUTS_S"
        if timeout_s is not None and timeout_s < limit_s:
            return _Clock(timeout_s, "X-Request-Deadline-S")
        return _Clock(limit_s, source)

    def _check_limits(self, options: ExplainOptions) -> None:
        limit = self.settings.max_output_side_px
        if options.max_side > limit:
            msg = f"max_side is {options.max_side}, the limit is {limit} (HEATLENS_MAX_OUTPUT_SIDE_PX)."
            raise LimitExceeded(msg, field="max_side", limit=limit)

    def _targets(self, options: ExplainOptions, model: LoadedModel) -> tuple[Target, ...]:
        versus = None if options.versus is None else _class(options.versus, model, "versus")
        limit = self.settings.max_targets
        chosen: list[int | Rank] = []
        for name in options.target:
            chosen += _classes(name, model)
            if len(chosen) > limit:
                msg = f"More targets were asked for than the limit of {limit} (HEATLENS_MAX_TARGETS)."
                raise LimitExceeded(msg, field="target", limit=limit)
        return tuple(Target(of, versus) for of in chosen)

    def _layers(self, options: ExplainOptions, method: Method, host: Host) -> list[str]:
        if options.layer or not method.max_layers:
            return list(options.layer)
        default, why_none = host.network.default_layer, host.network.why_no_default_layer
        if default is None:
            msg = f"{host.spec.name!r} has no default layer: {why_none}. Name one with the option layer."
            raise NoDefaultLayer(msg)
        return [default]


def _no_larger(picture: Picture, max_side: int) -> Picture:
    """Keep no more pixels than the answer shows while the picture waits for the model: it may be one of many."""
    size = fit(picture.width, picture.height, max_side)
    if size[0] * size[1] >= picture.pixels.shape[0] * picture.pixels.shape[1]:
        return picture
    pixels = resize(picture.pixels, size)
    pixels.setflags(write=False)
    return replace(picture, pixels=pixels, planes=None)


def _identity(
    model: LoadedModel, method: Method, parameters: Mapping[str, object], targets: Sequence[Target], layers: list[str]
) -> str | None:
    if not method.repeatable:
        return None
    return json.dumps([model.fingerprint, method.name, parameters, repr(targets), layers], sort_keys=True)


def _classes(name: ClassName, model: LoadedModel) -> list[int | Rank]:
    """Resolve one `target`: an index, a label, `predicted`, or `top<n>` (as many as the model has)."""
    if isinstance(name, str) and (top := _TOP.fullmatch(name)) and int(top[1]) > 0:
        return [Rank(place) for place in range(min(int(top[1]), len(model.labels)))]
    return [_class(name, model, "target")]


def _class(name: ClassName, model: LoadedModel, field: str) -> int | Rank:
    if isinstance(name, int):
        return name
    if name == "predicted":
        return Rank(0)
    found = [index for index, label in enumerate(model.labels) if label == name]
    found = found or [index for index, label in enumerate(model.labels) if label.casefold() == name.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        msg = f"{field}: {len(found)} classes are called {name!r}; give the index, one of {', '.join(map(str, found))}."
        raise UnknownLabel(msg, field=field, choices=found)
    part = [label for label in model.labels if name.casefold() in label.casefold()]
    part.sort(key=lambda label: name.casefold() not in label.casefold().split())  # whole words first
    close = part[:3] or close_matches(name, model.labels)
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "see /v1/models/{model}/labels."
    msg = f"{field}: the model has no class {name!r}; {hint}"
    raise UnknownLabel(msg, field=field, close_matches=close)
