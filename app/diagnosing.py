"""Looking inside a model with pictures: gradients, activations, features, and what a unit is sensitive to."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.class_names import class_of
from app.clock import Clock
from app.config import Settings
from app.engine import Watch
from app.errors import BadOption, LimitExceeded
from app.hosting import Host
from app.schemas.diagnostics import ActivationOptions, FlowOptions, SensitivityOptions
from app.schemas.options import ClassName, ExplainOptions
from app.service import Service, Timings, default_layer, layers_of
from app.tasks import (
    Classify,
    Explain,
    Features,
    MeasureActivations,
    MeasureGradientFlow,
    MeasureSensitivity,
    Payload,
    Randomise,
    TakeFeatures,
    Task,
)
from app.viewing import View
from explainers import Rank, Target
from explainers.diagnostics.activations import LayerActivation
from explainers.diagnostics.gradient_flow import GradientFlow, Objective, score_objective
from explainers.diagnostics.sensitivity import Sensitivity, Unit
from explainers.errors import TargetOutOfRange
from explainers.randomisation import Randomisation
from models.loading import LoadedModel


@dataclass(frozen=True)
class Flowed:
    """How the gradient flowed; `classes` are those of the pictures, `is_loss` says what it was the gradient of."""

    model: LoadedModel
    classes: list[int]
    is_loss: bool
    flow: GradientFlow
    timings: Timings


@dataclass(frozen=True)
class Activated:
    """What the layers answered, if that was to be measured; `features` are those of `layer`, where one was named."""

    model: LoadedModel
    views: Sequence[View]
    layers: Sequence[LayerActivation]
    layer: str | None
    features: Features | None
    timings: Timings


@dataclass(frozen=True)
class Sensed:
    """What a unit is sensitive to in a picture."""

    model: LoadedModel
    view: View
    layer: str
    unit: Unit
    found: Sensitivity
    timings: Timings


def check_memory(host: Host, pictures: int, settings: Settings) -> None:
    """Refuse more pictures at once than the layers' answers have room for; one picture is what explaining takes too."""
    shapes = [(info.shape, info.calls) for info in host.network.layers if info.shape]
    each = sum(4 * calls * int(np.prod(shape[1:])) for shape, calls in shapes)
    limit = settings.max_activation_bytes
    if pictures > 1 and pictures * each > limit:
        msg = (
            f"The layers of {host.spec.name!r} answer {pictures} pictures with {pictures * each} bytes, the limit is "
            f"{limit} (HEATLENS_MAX_ACTIVATION_BYTES); send at most {max(1, limit // each)} of them."
        )
        raise LimitExceeded(msg, field="image", limit=limit)


def check_feature_size(host: Host, layer: str, pictures: int, settings: Settings) -> None:
    """Refuse features that are larger than the operator allows, as far as the trace knows their shape.

    Raises `LimitExceeded`.
    """
    shape = next((info.shape for info in host.network.layers if info.name == layer), None)
    if shape is None:
        return
    size_bytes, limit = 4 * pictures * int(np.prod(shape[1:])), settings.max_feature_bytes
    if size_bytes > limit:
        msg = (
            f"The features of {layer!r} take {size_bytes} bytes for {pictures} picture(s), the limit is {limit} "
            "(HEATLENS_MAX_FEATURE_BYTES); choose a coarser layer, or send fewer pictures."
        )
        raise LimitExceeded(msg, field="layer", limit=limit)


class Diagnostics:
    """Asks the models of a service; safe for threads."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def gradient_flow(
        self,
        pictures: Sequence[bytes],
        options: FlowOptions,
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> Flowed:
        """Follow the gradient of the pictures' scores, or of their loss, back through the model."""
        self._check_count(pictures)
        clock = self.service.clock(timeout_s)
        with self._using(options.model, clock) as host:
            asked = _Asked(host, clock, watch)
            field = "label" if options.label else "target"
            names = _for_each(options.label or options.target or ["predicted"], len(pictures), field)
            views = self._views(pictures, host, clock)
            inputs = _stacked(views)
            classes = asked.classes(names, inputs, field)
            if options.label:
                objective: Objective = partial(_loss, host.model, classes)
            else:
                objective = score_objective([Target(index) for index in classes])
            flow = asked.run(MeasureGradientFlow(objective), inputs)
            return Flowed(host.model, classes, bool(options.label), flow, asked.timings())

    def activations(
        self,
        pictures: Sequence[bytes],
        options: ActivationOptions,
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
        measured: bool = True,
    ) -> Activated:
        """Return what the layers answer to the pictures, and of a named layer all of it.

        Without `measured`, of a named layer only what it answers, and no layer's statistics.
        """
        self._check_count(pictures)
        if options.layer is not None:
            self.service.check_side(options.max_side)
        clock = self.service.clock(timeout_s)
        with self._using(options.model, clock) as host:
            asked = _Asked(host, clock, watch)
            views = self._views(pictures, host, clock)
            inputs = _stacked(views)
            features = None
            layer = None if options.layer is None else host.network.listed(options.layer)
            if layer is not None:
                check_feature_size(host, layer, len(pictures), self.service.settings)
                features = asked.run(TakeFeatures(layer), inputs)
            layers: Sequence[LayerActivation] = ()
            if measured or layer is None:
                layers = asked.run(MeasureActivations(layer), inputs)
            return Activated(host.model, views, layers, layer, features, asked.timings())

    def sensitivity(
        self,
        picture: bytes,
        options: SensitivityOptions,
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> Sensed:
        """Return which pixels move a unit of a layer."""
        self.service.check_side(options.max_side)
        clock = self.service.clock(timeout_s)
        with self._using(options.model, clock) as host:
            asked = _Asked(host, clock, watch)
            layer = host.network.listed(options.layer) if options.layer else default_layer(host)
            unit = Unit(options.channel, options.row, options.column)
            view = self.service.viewer.view(picture, host.model.preprocess, clock, max_side=options.max_side)
            found = asked.run(MeasureSensitivity(layer, unit, options.reduction), view.inputs)
            return Sensed(host.model, view, layer, unit, found, asked.timings())

    def randomisation(
        self, pictures: Sequence[bytes], model: str, method: str, *, seed: int = 0, watch: Watch | None = None
    ) -> tuple[Randomisation, Explain, LoadedModel]:
        """Say whether a method's maps change when the model's weights are made up, from the top down.

        Meanwhile the model answers nonsense: only for a process that serves nobody else.
        """
        clock = self.service.clock(None)
        with self._using(model, clock) as host:
            asked = _Asked(host, clock, watch)
            host.require_sound()
            inputs = _stacked(self._views(pictures, host, clock, together=False))
            classes = asked.classes(["predicted"] * len(pictures), inputs, "target")
            asked_for = ExplainOptions(model=model, method=method)
            chosen, parameters = self.service.check(asked_for, {})
            task = Explain.by(method, layers_of(asked_for, chosen, host), parameters)
            targets = [[Target(index)] for index in classes]
            return asked.run(Randomise(task, targets, seed), inputs), task, host.model

    def _using(self, model: str | None, clock: Clock) -> AbstractContextManager[Host]:
        service = self.service
        return service.hosts.using(model or service.settings.default_model, timeout_s=clock.remaining_s)

    def _views(self, pictures: Sequence[bytes], host: Host, clock: Clock, *, together: bool = True) -> list[View]:
        """Decode the pictures; raises `LimitExceeded` for a model that is to take several `together` and cannot."""
        if together and len(pictures) > 1 and not host.network.takes_batches:
            msg = f"{host.spec.name!r} takes one picture at a time, and {len(pictures)} were sent."
            raise LimitExceeded(msg, field="image", limit=1)
        if together:
            check_memory(host, len(pictures), self.service.settings)
        preprocess = host.model.preprocess
        return [self.service.viewer.view(data, preprocess, clock) for data in pictures]

    def _check_count(self, pictures: Sequence[bytes]) -> None:
        limit = self.service.settings.max_diagnostic_pictures
        if len(pictures) > limit:
            msg = f"{len(pictures)} pictures were sent, the limit is {limit} (HEATLENS_MAX_DIAGNOSTIC_PICTURES)."
            raise LimitExceeded(msg, field="image", limit=limit)


class _Asked:
    """What one request asks of one model, task after task, and where its time goes."""

    def __init__(self, host: Host, clock: Clock, watch: Watch | None) -> None:
        self._host = host
        self._clock = clock
        self._watch = watch
        self._loading_s = clock.lap()
        self._queue_s = self._model_s = 0.0

    def run(self, task: Task, inputs: NDArray[np.float32]) -> Any:
        """Do the task in the owner thread and return its answer."""
        job = self._host.submit(task, Payload(inputs), timeout_s=self._clock.remaining_s, limit=self._clock.limit)
        answer = job.result(self._watch)
        self._queue_s += job.queue_s
        self._model_s += job.run_s
        return answer

    def classes(self, names: Sequence[ClassName], inputs: NDArray[np.float32], field: str) -> list[int]:
        """Return the index of each picture's class; what the model predicts is looked up only where it is asked for."""
        chosen = [class_of(name, self._host.model, field) for name in names]
        count = len(self._host.model.labels)
        for index in chosen:
            if not isinstance(index, Rank) and not 0 <= index < count:
                msg = f"{field} asks for class index {index}, but the model has {count} classes: 0 to {count - 1}."
                raise TargetOutOfRange(msg, field=field, minimum=0, maximum=count - 1)
        return [
            self.run(Classify(), picture) if isinstance(index, Rank) else index
            for index, picture in zip(chosen, inputs, strict=True)
        ]

    def timings(self) -> Timings:
        """Return where the time went; what was neither the queue's nor the model's was decoding."""
        decode_s = self._clock.lap() - self._queue_s - self._model_s
        return Timings(max(0.0, decode_s), self._loading_s + self._queue_s, self._model_s)


def _loss(model: LoadedModel, classes: Sequence[int], scores: Any) -> Any:
    return model.cross_entropy(scores, classes)


def _for_each(names: Sequence[ClassName], pictures: int, field: str) -> list[ClassName]:
    """Return one name for each picture: the only one for all, or each its own."""
    if len(names) == 1:
        return [names[0]] * pictures
    if len(names) != pictures:
        msg = f"{field} is given {len(names)} times for {pictures} pictures; give it once, or once for each picture."
        raise BadOption(msg, field=field, limit=pictures)
    return list(names)


def _stacked(views: Sequence[View]) -> NDArray[np.float32]:
    return np.stack([view.inputs for view in views])
