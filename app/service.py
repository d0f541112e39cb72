"""The use case: a picture comes in, and why the model decided so goes out.

The straight walk of a request: find model and method, decode and preprocess (bad input stops here), queue for the
model's owner thread. Laying the maps back on the picture, drawing and encoding is `app.drawing`'s.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import explainers
from app import trust
from app.catalogue import Catalogue
from app.class_names import targets_of
from app.clock import Clock
from app.config import Settings, SettingsError
from app.engine import Watch
from app.errors import LimitExceeded, NoDefaultLayer, VersusNotTaken
from app.hosting import Host
from app.hosts import Hosts
from app.imaging.decode import Picture
from app.metrics import Metrics
from app.records import Records
from app.schemas.options import MapOptions, PredictOptions, QuestionOptions
from app.tasks import Explain, Payload, Predict
from app.trust import Trust
from app.viewing import Viewer
from explainers import Attribution, Method, Target
from models import Registry
from models.loading import LoadedModel
from models.preprocess import Geometry


@dataclass(frozen=True)
class Timings:
    """Where the time went, in seconds; `queue` includes loading the model, `model` what went into `trust`."""

    decode: float
    queue: float
    model: float
    trust: float = 0.0


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
    trust: list[Trust]
    """How far to trust each of the attributions, as far as that was asked for."""
    fails_randomisation: bool
    """Whether the method's maps stay much the same when the weights are made up: known of it, or of this model."""
    identity: str | None
    """What `Service.identity` says of this request, of the model that did answer it."""


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
        self.records = Records(settings.data_dir / "records")
        self.catalogue = Catalogue(settings, self.registry, self.hosts, self.records)
        self.viewer = Viewer(settings)

    def start(self) -> None:
        """Load the models that are to be there from the start; raise why one cannot be."""
        for name in self.settings.preloaded:
            self.hosts.get(name)
        for name in self.settings.preloaded:
            self.hosts.ready(name).require_sound()  # without limit: a first download takes as long as it takes

    def readiness(self) -> tuple[bool, dict[str, str]]:
        """Say whether the models that are loaded at start are ready, and where each of them stands."""
        states: dict[str, str] = {name: self.catalogue.state(name) for name in self.settings.preloaded}
        return all(state == "ready" for state in states.values()), states

    def close(self, *, grace_s: float | None = None) -> None:
        """Take no more work, and finish what was accepted, within HEATLENS_GRACEFUL_TIMEOUT_S by default."""
        self.hosts.close(grace_s=self.settings.graceful_timeout_s if grace_s is None else grace_s)

    def check(self, options: MapOptions, parameters: Mapping[str, object]) -> tuple[Method, dict[str, object]]:
        """Return the method and its own parameters, all of them; raise what can be found wrong without the model."""
        method = explainers.get(options.method)
        checked = explainers.check_parameters(method, parameters).model_dump()
        if options.versus is not None and not method.class_specific:
            msg = f"{method.name} gives the same map for every class, so there is nothing to compare; leave versus out."
            raise VersusNotTaken(msg)
        self.check_side(options.max_side)
        self._check_layers(options)
        return method, checked

    def identity(self, options: MapOptions, parameters: Mapping[str, object]) -> str | None:
        """Name all that decides on the maps of a picture, and on what is said of them, beside the picture itself.

        None while the model is not loaded, and where the same again would not give the same. Raises what is wrong
        with the request.
        """
        method, checked = self.check(options, parameters)
        host = self.hosts.peek(options.model or self.settings.default_model)
        if host is None or host.owner.state != "ready":
            return None
        host.require_sound()
        layers = layers_of(options, method, host)
        targets = self._targets(options, host.model)
        return _identity(host.model, method, checked, targets, layers, fails=self._fails(method, host.model))

    def explain(
        self,
        data: bytes,
        options: MapOptions,
        parameters: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
        clock: Clock | None = None,
    ) -> Explained:
        """Explain one picture. `parameters` are the method's own; `watch` is called while the model works.

        `clock`, in place of `timeout_s`, is that of a request of which this is a part.
        """
        method, checked = self.check(options, parameters)
        clock = clock or self.clock(timeout_s, method)
        clock.lap()
        with self.hosts.using(options.model or self.settings.default_model, timeout_s=clock.remaining_s) as host:
            loaded_s = clock.lap()
            host.require_sound()
            targets = self._targets(options, host.model)
            trust.check(options, len(targets), self.settings)
            layers = layers_of(options, method, host)
            view = self.viewer.view(data, host.model.preprocess, clock, max_side=options.max_side)
            decode_s = clock.lap()
            task = Explain.by(method.name, layers, checked)
            job = host.submit(task, Payload(view.inputs, targets), timeout_s=clock.remaining_s, limit=clock.limit)
            answer = job.result(watch)
            clock.lap()
            trusted = trust.measure(host, task, view.inputs, answer.attributions, options, clock, watch)
            trust_s = clock.lap()
            model = host.model
        fails = self._fails(method, model)
        return Explained(
            model=model,
            picture=view.picture,
            geometry=view.geometry,
            scores=answer.scores,
            timings=Timings(decode_s, loaded_s + job.queue_s, job.run_s + trust_s, trust_s),
            method=method,
            parameters=checked,
            layers=layers,
            attributions=answer.attributions,
            trust=trusted,
            fails_randomisation=fails,
            identity=_identity(model, method, checked, targets, layers, fails=fails),
        )

    def predict(
        self,
        data: bytes,
        options: PredictOptions,
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
        clock: Clock | None = None,
    ) -> Seen:
        """Classify one picture; `clock`, in place of `timeout_s`, is that of a request of which this is a part."""
        clock = clock or self.clock(timeout_s)
        clock.lap()
        with self.hosts.using(options.model or self.settings.default_model, timeout_s=clock.remaining_s) as host:
            loaded_s = clock.lap()
            view = self.viewer.view(data, host.model.preprocess, clock)
            decode_s = clock.lap()
            job = host.submit(Predict(), Payload(view.inputs), timeout_s=clock.remaining_s, limit=clock.limit)
            scores = job.result(watch)
            model = host.model
        return Seen(model, view.picture, view.geometry, scores, Timings(decode_s, loaded_s + job.queue_s, job.run_s))

    def clock(self, timeout_s: float | None, method: Method | None = None) -> Clock:
        """Return the clock of a request that may itself have asked for less time than there is."""
        limit_s, source = self.settings.request_timeout_s, "HEATLENS_REQUEST_TIMEOUT_S"
        if method and method.name in self.settings.method_timeouts_s:
            limit_s, source = self.settings.method_timeouts_s[method.name], "HEATLENS_METHOD_TIMEOUTS_S"
        if timeout_s is not None and timeout_s < limit_s:
            return Clock(timeout_s, "X-Request-Deadline-S")
        return Clock(limit_s, source)

    def _fails(self, method: Method, model: LoadedModel) -> bool:
        """Say whether maps of this method do not depend on what the model has learnt."""
        measured = self.records.sanity(model.fingerprint).get(method.name)
        return method.fails_randomisation if measured is None else measured.verdict == "fails"

    def check_side(self, max_side: int) -> None:
        """Raise `LimitExceeded` for an answer larger than the operator allows."""
        limit = self.settings.max_output_side_px
        if max_side > limit:
            msg = f"max_side is {max_side}, the limit is {limit} (HEATLENS_MAX_OUTPUT_SIDE_PX)."
            raise LimitExceeded(msg, field="max_side", limit=limit)

    def _check_layers(self, options: QuestionOptions) -> None:
        """Raise `LimitExceeded` for more layers than the operator allows; what a method takes is its own matter."""
        limit = self.settings.max_layers
        if len(options.layer) > limit:
            msg = f"{len(options.layer)} layers were asked for; the limit is {limit} (HEATLENS_MAX_LAYERS)."
            raise LimitExceeded(msg, field="layer", limit=limit)

    def _targets(self, options: QuestionOptions, model: LoadedModel) -> tuple[Target, ...]:
        return targets_of(options.target, options.versus, model, self.settings.max_targets)


def layers_of(options: QuestionOptions, method: Method, host: Host) -> list[str]:
    """Return the layers that were asked for, or the default one if the method needs one; raises `NoDefaultLayer`."""
    if options.layer or not method.max_layers:
        return [host.network.listed(layer) for layer in options.layer]
    return [default_layer(host)]


def default_layer(host: Host) -> str:
    """Return the model's default layer, or raise `NoDefaultLayer`."""
    default, why_none = host.network.default_layer, host.network.why_no_default_layer
    if default is None:
        msg = f"{host.spec.name!r} has no default layer: {why_none}. Name one with the option layer."
        raise NoDefaultLayer(msg)
    return default


def _identity(
    model: LoadedModel,
    method: Method,
    parameters: Mapping[str, object],
    targets: Sequence[Target],
    layers: list[str],
    *,
    fails: bool,
) -> str | None:
    if not method.repeatable:
        return None
    return json.dumps([model.fingerprint, method.name, parameters, repr(targets), layers, fails], sort_keys=True)
