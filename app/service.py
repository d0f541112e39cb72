"""The use case: a picture comes in, and why the model decided so goes out.

The straight walk of a request: find model and method, decode and preprocess (bad input stops here), queue for the
model's owner thread. Laying the maps back on the picture, drawing and encoding is `app.drawing`'s.
"""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import explainers
from app.catalogue import Catalogue
from app.config import Settings
from app.engine import Watch
from app.errors import LimitExceeded, NoDefaultLayer, UnknownLabel, VersusNotTaken
from app.hosting import Host, Hosts, Payload
from app.imaging.decode import Picture, decode
from app.imaging.limits import Limits
from app.schemas.options import ClassName, ExplainOptions, PredictOptions
from explainers import Attribution, Method, Rank, Target
from explainers.errors import close_matches
from models import Registry
from models.loading import LoadedModel
from models.preprocess import Geometry

_DECODED_PX = 1024
"""A large JPEG is decoded reduced, but never below this and twice what the model sees: the input then differs by less
than half a grey level on average."""
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


class _Clock:
    """Laps of one request, and what is left of its time, in seconds."""

    def __init__(self, timeout_s: float) -> None:
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

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry(settings.models_dir)
        self.hosts = Hosts(self.registry, settings)
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

    def close(self) -> None:
        """Finish what was accepted, and take no more."""
        self.hosts.close()

    def check(self, options: ExplainOptions, parameters: Mapping[str, object]) -> tuple[Method, dict[str, object]]:
        """Return the method and its own parameters, all of them; raise what can be found wrong without the model."""
        method = explainers.get(options.method)
        checked = explainers.check_parameters(method, parameters).model_dump()
        if options.versus is not None and not method.class_specific:
            msg = f"{method.name} gives the same map for every class, so there is nothing to compare; leave versus out."
            raise VersusNotTaken(msg)
        self._check_limits(options)
        return method, checked

    def explain(
        self, data: bytes, options: ExplainOptions, parameters: Mapping[str, object], watch: Watch | None = None
    ) -> Explained:
        """Explain one picture. `parameters` are the method's own; `watch` is called while the model works."""
        method, checked = self.check(options, parameters)
        clock = _Clock(self.settings.request_timeout_s)
        host = self.hosts.ready(options.model or self.settings.default_model, timeout_s=clock.remaining_s)
        loaded_s = clock.lap()
        targets = self._targets(options, host.model)
        layers = self._layers(options, method, host)
        picture, inputs, geometry = self._look(data, host, options.max_side)
        decode_s = clock.lap()
        payload = Payload(inputs, targets)
        job = host.explain(payload, method=method.name, layers=layers, parameters=checked, timeout_s=clock.remaining_s)
        answer = job.result(watch)
        return Explained(
            model=host.model,
            picture=picture,
            geometry=geometry,
            scores=answer.scores,
            timings=Timings(decode_s, loaded_s + job.queue_s, job.run_s),
            method=method,
            parameters=checked,
            layers=layers,
            attributions=answer.attributions,
        )

    def predict(self, data: bytes, options: PredictOptions) -> Seen:
        """Classify one picture."""
        clock = _Clock(self.settings.request_timeout_s)
        host = self.hosts.ready(options.model or self.settings.default_model, timeout_s=clock.remaining_s)
        loaded_s = clock.lap()
        picture, inputs, geometry = self._look(data, host, max_side=_DECODED_PX)
        decode_s = clock.lap()
        job = host.predict(Payload(inputs), timeout_s=clock.remaining_s)
        scores = job.result()
        return Seen(host.model, picture, geometry, scores, Timings(decode_s, loaded_s + job.queue_s, job.run_s))

    def _look(self, data: bytes, host: Host, max_side: int) -> tuple[Picture, NDArray[np.float32], Geometry]:
        """Decode no larger than needed, and turn the picture into the model's input.

        What the model sees must not depend on the size of the answer, so a larger answer has a decode of its own.
        """
        preprocess = host.model.preprocess
        enough_px = max(_DECODED_PX, 2 * preprocess.enough_px)
        with self._decoding:
            picture = decode(data, self._limits, enough_px=enough_px)
            inputs, geometry = preprocess(picture.samples, (picture.width, picture.height))
            if max_side > enough_px and picture.pixels.shape[:2] != (picture.height, picture.width):
                picture = decode(data, self._limits, enough_px=max_side)
        return picture, inputs, geometry

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
        if host.default_layer is None:
            msg = (
                f"{host.spec.name!r} has no default layer: {host.why_no_default_layer}. Name one with the option layer."
            )
            raise NoDefaultLayer(msg)
        return [host.default_layer]


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
