"""`/v1/diagnostics/*`."""

from collections.abc import Callable
from typing import cast

from flask import Response
from flask_openapi3 import APIBlueprint, Tag

from app import diagnostic_answers as answers
from app.api.answering import add_route, answered, chosen_format, patience
from app.api.documents import PROBLEMS, operation_id
from app.api.requests import read_picture, read_pictures
from app.charts import ChartFormat
from app.charts.canvas import turn
from app.clock import Clock
from app.diagnosing import Activated, Diagnostics
from app.drawing import MEDIA_TYPES
from app.engine.errors import DeadlineExceeded
from app.facts import spent
from app.schemas.checking import check
from app.schemas.diagnostics import (
    ActivationAnswer,
    ActivationOptions,
    FlowOptions,
    GradientFlowAnswer,
    SensitivityAnswer,
    SensitivityOptions,
)
from app.service import Service

_CHARTS = ("json", "svg", "png")
_FEATURES = ("json", "npz", "png", "jpeg", "webp")


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "diagnostics",
        __name__,
        url_prefix="/v1/diagnostics",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="diagnostics")],
        abp_responses=PROBLEMS,
    )
    diagnostics = Diagnostics(service)

    def gradient_flow() -> Response:
        """Say whether the gradient reaches every layer, layer by layer, and what is wrong where it does not."""
        pictures, raw = read_pictures()
        options, _ = check(FlowOptions, raw)
        format_ = chosen_format(options.format, _CHARTS)
        asked = patience()
        clock = service.clock(asked["timeout_s"])
        flowed = diagnostics.gradient_flow(pictures, options, **asked)
        return answered(
            format_,
            [flowed.model.spec.name],
            spent(flowed.timings),
            lambda: answers.flow_answer(flowed),
            lambda: _charted(clock, lambda: answers.flow_chart(flowed, cast("ChartFormat", format_))),
        )

    add_route(api, "/gradient-flow", gradient_flow, FlowOptions, GradientFlowAnswer, _CHARTS, several=True)

    def activations() -> Response:
        """Say what every layer answers, in numbers; of one layer, all of it: feature maps, arrays, embeddings."""
        pictures, raw = read_pictures()
        options, _ = check(ActivationOptions, raw)
        format_ = chosen_format(options.format, _CHARTS if options.layer is None else _FEATURES)
        measured = options.layer is None or format_ == "json"
        asked = patience()
        clock = service.clock(asked["timeout_s"])
        activated = diagnostics.activations(pictures, options, measured=measured, **asked)
        return answered(
            format_,
            [activated.model.spec.name],
            spent(activated.timings),
            lambda: answers.activation_answer(activated),
            lambda: _activations(activated, options, format_, clock),
        )

    formats = tuple(dict.fromkeys(_CHARTS + _FEATURES))
    add_route(api, "/activations", activations, ActivationOptions, ActivationAnswer, formats, several=True)

    def sensitivity() -> Response:
        """Say which pixels move a unit inside the network: a channel, a place or both of a layer."""
        picture, raw = read_picture()
        options, _ = check(SensitivityOptions, raw)
        opaque = [name for name in MEDIA_TYPES if not (options.view == "layer" and name == "jpeg")]
        format_ = chosen_format(options.format, opaque)
        sensed = diagnostics.sensitivity(picture, options, **patience())
        return answered(
            format_,
            [sensed.model.spec.name],
            spent(sensed.timings),
            lambda: answers.SensitivityDrawing(sensed, options).answer(),
            lambda: answers.SensitivityDrawing(sensed, options).binary(format_),
        )

    add_route(api, "/sensitivity", sensitivity, SensitivityOptions, SensitivityAnswer, tuple(MEDIA_TYPES))
    return api


def _activations(activated: Activated, options: ActivationOptions, format_: str, clock: Clock) -> bytes:
    features = activated.features
    if features is None:
        return _charted(clock, lambda: answers.activation_chart(activated, cast("ChartFormat", format_)))
    return answers.feature_arrays(features) if format_ == "npz" else answers.feature_picture(features, options, format_)


def _charted(clock: Clock, draw: Callable[[], bytes]) -> bytes:
    """Draw a chart, one at a time; raises `DeadlineExceeded` where the others take too long."""
    try:
        with turn(clock.remaining_s):
            return draw()
    except TimeoutError as error:
        msg = f"The request was not answered within {clock.limit}: other charts were being drawn."
        raise DeadlineExceeded(msg) from error
