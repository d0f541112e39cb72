"""`/v1/explain`, `/v1/predict` and `/v1/methods`."""

import hashlib
import re

from flask import Response, g, request
from flask_openapi3 import APIBlueprint, Tag
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from app.api.connection import require_client
from app.api.documents import PROBLEMS, operation_id, picture_operation, picture_responses
from app.api.requests import read_picture
from app.drawing import MEDIA_TYPES, Drawing, prediction
from app.errors import NotAcceptable
from app.schemas.answers import ExplainAnswer, MethodList, PredictAnswer
from app.schemas.checking import check
from app.schemas.options import ExplainOptions, Format, PredictOptions
from app.service import Explained, Service

_PARAMETER = re.compile(r";\s*(?!q=)[^;,]*")
"""A parameter of a media type, such as `charset=utf-8`: what is offered has none."""


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "explain",
        __name__,
        url_prefix="/v1",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="explanations")],
        abp_responses=PROBLEMS,
    )
    of_methods = service.catalogue.parameter_schemas()

    def explain() -> Response:
        """Explain a picture."""
        data, raw = read_picture()
        options, parameters = check(ExplainOptions, raw, parameters=of_methods)
        format_ = _format(options)
        explained = service.explain(data, options, parameters, watch=require_client(request.environ))
        drawing = Drawing(explained, options)
        body = drawing.body(format_, g.request_id)
        response = Response(body.content, content_type=body.media_type)
        response.headers.update(drawing.headers)
        response.headers["Server-Timing"] = _server_timing(explained, body.render_s)
        response.headers["Vary"] = "Accept"
        if format_ != "json":
            response.set_etag(hashlib.sha256(body.content).hexdigest()[:32])
        return response

    operation = picture_operation(ExplainOptions, parameters=of_methods)
    api.post(
        "/explain",
        description="Returns a heatmap of where the model saw evidence for a class, as picture, array or JSON. "
        "The option `format`, else the `Accept` header, decides which.",
        openapi_extensions=operation,
        responses=picture_responses(ExplainAnswer, MEDIA_TYPES.values()),
    )(explain)
    # `curl -T cat.jpg URL` sends a PUT.
    api.put("/explain", doc_ui=False)(explain)

    def predict() -> Response:
        """Classify a picture: the most probable classes and their scores."""
        data, raw = read_picture()
        options, _ = check(PredictOptions, raw)
        answer = prediction(service.predict(data, options), options, g.request_id)
        return Response(answer.model_dump_json(), content_type="application/json")

    operation = picture_operation(PredictOptions)
    api.post("/predict", openapi_extensions=operation, responses={200: PredictAnswer})(predict)
    api.put("/predict", doc_ui=False)(predict)

    @api.get("/methods", responses={200: MethodList})
    def methods() -> Response:
        """List the explanation methods, what each is good for, its weakness, its cost and its parameters."""
        return Response(service.catalogue.methods().model_dump_json(), content_type="application/json")

    return api


def _format(options: ExplainOptions) -> Format:
    if options.format is not None:
        return options.format
    transparent = options.view == "layer"
    offered = {media: format_ for format_, media in MEDIA_TYPES.items() if not (transparent and format_ == "jpeg")}
    wanted = parse_accept_header(_PARAMETER.sub("", request.headers.get("Accept", "")), MIMEAccept)
    if not wanted:
        return next(iter(offered.values()))
    best = wanted.best_match(offered)
    if best is None:
        msg = f"None of what the Accept header asks for can be made; valid are {', '.join(offered)}."
        raise NotAcceptable(msg, choices=list(offered))
    return offered[best]


def _server_timing(explained: Explained, render_s: float) -> str:
    timings = explained.timings
    parts = {"decode": timings.decode, "queue": timings.queue, "model": timings.model, "render": render_s}
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in parts.items())
