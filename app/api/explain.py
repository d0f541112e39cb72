"""`/v1/explain`, `/v1/predict` and `/v1/methods`."""

import hashlib
from http import HTTPStatus
from typing import cast

from flask import Response, g, request
from flask_openapi3 import APIBlueprint, Tag

from app.api.answering import server_timing
from app.api.connection import require_client
from app.api.documents import IF_NONE_MATCH, PROBLEMS, operation_id, picture_operation, picture_responses
from app.api.negotiation import preferred
from app.api.requests import read_picture, read_timeout_s
from app.drawing import MEDIA_TYPES, Drawn, draw, prediction
from app.result_cache import ResultCache
from app.schemas.answers import ExplainAnswer, MethodList, PredictAnswer, Timings
from app.schemas.checking import check
from app.schemas.options import ExplainOptions, Format, PredictOptions
from app.service import Service


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
    results = ResultCache(service.settings.result_cache_bytes, service.metrics)

    def explain() -> Response:
        """Explain a picture, unless the client has the answer, or somebody had it before."""
        data, raw = read_picture()
        options, parameters = check(ExplainOptions, raw, parameters=of_methods)
        format_, timeout_s = _format(options), read_timeout_s()
        picture = hashlib.sha256(data).hexdigest()
        key = results.key(service.identity(options, parameters), picture, options, format_)
        if _client_has(key):
            return _tagged(Response(status=HTTPStatus.NOT_MODIFIED), key, format_)
        if drawn := results.get(key):
            return _tagged(_response(drawn, None), key, format_)
        watch = require_client(request.environ)
        explained = service.explain(data, options, parameters, timeout_s=timeout_s, watch=watch)
        drawn, timings = draw(explained, options, format_)
        key = results.key(explained.identity, picture, options, format_)  # of the model that did answer
        results.put(key, drawn)
        return _tagged(_response(drawn, timings), key, format_)

    operation = picture_operation(ExplainOptions, parameters=of_methods, headers=[IF_NONE_MATCH])
    api.post(
        "/explain",
        description="Returns a heatmap of where the model saw evidence for a class, as picture, array or JSON. "
        "The option `format`, else the `Accept` header, decides which. The same again has the same `ETag`.",
        openapi_extensions=operation,
        responses=picture_responses(ExplainAnswer, MEDIA_TYPES.values(), cached=True),
    )(explain)
    # `curl -T cat.jpg URL` sends a PUT.
    api.put("/explain", doc_ui=False)(explain)

    def predict() -> Response:
        """Classify a picture: the most probable classes and their scores."""
        data, raw = read_picture()
        options, _ = check(PredictOptions, raw)
        seen = service.predict(data, options, timeout_s=read_timeout_s(), watch=require_client(request.environ))
        answer = prediction(seen, options, g.request_id)
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
    return cast("Format", preferred(offered))


def _client_has(key: str | None) -> bool:
    """Whether `If-None-Match` names the answer; `*` names none.

    RFC 9110 has 304 for GET and HEAD alone, because other methods change what they are sent to. Here nothing is
    changed and the same again is answered the same: it is a POST only because a picture does not fit into a URL.
    """
    return key in request.if_none_match.as_set(include_weak=True)


def _response(drawn: Drawn, timings: Timings | None) -> Response:
    """Return an answer; without timings it is one that was there already, which took no time."""
    spent = timings or Timings(decode=0, queue=0, model=0, render=0)
    response = Response(drawn.body(g.request_id, spent), content_type=drawn.media_type)
    response.headers.update(drawn.headers)
    hit = "cache;desc=hit, " if timings is None else ""
    response.headers["Server-Timing"] = hit + server_timing(spent)
    return response


def _tagged(response: Response, key: str | None, format_: Format) -> Response:
    """Give an answer what the client needs to ask for it again.

    The tag is made of what was asked, so that a rounding that differs between two runs does not change it. JSON
    differs in its request id and timings, so its tag is a weak one. Nobody on the way may keep an answer, which
    shows the client's picture; the client may, but asks each time.
    """
    response.headers["Vary"] = "Accept"
    response.headers["Cache-Control"] = "private, no-cache"
    if key is not None:
        response.set_etag(key, weak=format_ == "json")
    return response
