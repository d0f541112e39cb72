"""The Open Inference Protocol v2, as KServe, Triton and others speak it, with the extension for binary data."""

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import numpy as np
from flask import Response, request
from flask_openapi3 import APIBlueprint, Tag

from app.api.answering import patience
from app.api.bodies import body, only
from app.api.documents import operation_id
from app.api.models import ModelPath
from app.clock import Clock
from app.dialects import tensors
from app.dialects.asking import PICTURE, Asking, Explanation, check_list_side
from app.dialects.speaking import ANSWERS, VERSIONS, answer, error_alone, post_alone, require_version
from app.dialects.tensors import Value, Wanted
from app.errors import BadOption, BadRequestBody
from app.problems import speak
from app.schemas.options import MapOptions
from app.service import Service

LENGTH_HEADER = "Inference-Header-Content-Length"
_PATHS = re.compile(r"/v2(/.*)?", re.DOTALL)
_VERSION = VERSIONS[0]
_SIDE_PX = 512
_OUTPUTS: Mapping[str, tuple[str, list[int], Callable[[Explanation], Value]]] = {
    "heatmap": ("FP32", [-1, -1], lambda found: found.heat),
    "overlay": ("BYTES", [1], lambda found: found.picture()),
    "label": ("BYTES", [1], lambda found: found.map_facts.target.label),
    "probability": ("FP32", [1], lambda found: np.array([found.map_facts.target.probability], np.float32)),
}
"""By name: datatype, shape, and how to get it."""
_OURS = frozenset({"binary_data_output", "timeout"})
"""Parameters of a request that the protocol has; all others are options."""
_WITHOUT = {"priority": (0,), "sequence_id": (0, ""), "sequence_start": (False,), "sequence_end": (False,)}
"""Parameters of Triton's for what there is none of here, and what they are where nothing is asked for."""
_LONGEST_TIMEOUT = 2**63 - 1
_BODY: Mapping[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "parameters": {"type": "object"},
                        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object"}},
                        "outputs": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["inputs"],
                    "additionalProperties": False,
                },
                "example": {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [""]}]},
            }
        },
    }
}


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "open_inference",
        __name__,
        url_prefix="/v2",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="as the Open Inference Protocol speaks")],
        abp_responses=ANSWERS,
    )
    asking = Asking(service, PICTURE, _SIDE_PX)

    @api.get("")
    def server_metadata() -> Response:
        """Say who answers, and in which extensions of the protocol."""
        return answer({"name": "heatlens", "version": version("heatlens"), "extensions": ["binary_tensor_data"]})

    @api.get("/health/live")
    def server_live() -> Response:
        """Say that the process answers."""
        return answer({"live": True})

    @api.get("/health/ready")
    def server_ready() -> Response:
        """Say whether the models that are loaded at start are ready: 200 or 503."""
        return _ready({}, service.readiness()[0])

    def model_metadata(path: ModelPath) -> Response:
        """Describe a model: what goes in and what comes out."""
        require_version(service, path.model)
        return answer(_metadata(service.catalogue.model(path.model).name))

    def model_ready(path: ModelPath) -> Response:
        """Say whether a model is loaded, 200 or 503; one that is not is loaded by the first picture."""
        require_version(service, path.model)
        model = service.catalogue.model(path.model)
        return _ready({"name": model.name}, model.ready)

    def infer(path: ModelPath) -> Response:
        """Explain a picture: the raw signed map, the drawn overlay, the class that was explained."""
        return _infer(service, asking, path.model)

    for ending, view in (("", model_metadata), ("/ready", model_ready)):
        api.get(f"/models/<path:model>{ending}")(view)
        api.get(f'/models/<path:model>/versions/<any("{_VERSION}"):_version>{ending}', doc_ui=False)(view)
    api.post("/models/<path:model>/infer", openapi_extensions=dict(_BODY))(infer)
    api.post(f'/models/<path:model>/versions/<any("{_VERSION}"):_version>/infer', doc_ui=False)(infer)
    post_alone(api, "/models/<path:model>/infer")
    api.record(lambda state: speak(state.app, _PATHS, error_alone))
    return api


def _metadata(name: str) -> dict[str, Any]:
    image = {"name": tensors.INPUT, "datatype": "BYTES", "shape": [1]}
    outputs = [{"name": each, "datatype": kind, "shape": shape} for each, (kind, shape, _) in _OUTPUTS.items()]
    return {"name": name, "versions": [_VERSION], "platform": "heatlens", "inputs": [image], "outputs": outputs}


def _infer(service: Service, asking: Asking, model: str) -> Response:
    sent = tensors.take_apart(body(), request.headers.get(LENGTH_HEADER))
    only(dict(sent.header), ("id", "parameters", "inputs", "outputs"))
    require_version(service, model)
    wanted = tensors.wanted(sent.header, list(_OUTPUTS))
    options, parameters, timeout_s = _asked(asking, model, sent.header)
    if any(want.name == "heatmap" and not want.binary for want in wanted):
        check_list_side(options)
    picture, wait = tensors.read_picture(sent), patience()
    clock = service.clock(wait["timeout_s"], service.check(options, parameters)[0])
    if timeout_s is not None and timeout_s < clock.remaining_s:
        clock = Clock(timeout_s, "the request's parameter timeout")
    explained = service.explain(picture, options, parameters, clock=clock, watch=wait["watch"])
    return _answer(model, sent.header, wanted, Explanation(explained, options))


def _asked(asking: Asking, model: str, header: Mapping[str, Any]) -> tuple[MapOptions, dict[str, Any], float | None]:
    """Return the options, the method's parameters, and the seconds that the client gives."""
    if not isinstance(header.get("id", ""), str):
        raise BadRequestBody("id has to be a string.", field="id")
    raw = dict(header.get("parameters", {}))  # an object, or `tensors.wanted` would have complained
    timeout = raw.get("timeout")
    if timeout is not None and (type(timeout) is not int or not 1 <= timeout <= _LONGEST_TIMEOUT):
        msg = f"timeout has to be a whole number of microseconds, from 1 to {_LONGEST_TIMEOUT}."
        raise BadOption(msg, field="timeout", minimum=1, maximum=_LONGEST_TIMEOUT)
    for name in raw.keys() & _WITHOUT.keys():
        if raw[name] not in _WITHOUT[name]:
            msg = f"{name!r} is not known here: there are no priorities and no sequences; leave it out."
            raise BadOption(msg, field=name)
    ours = _OURS | _WITHOUT.keys()
    options, parameters = asking.options(model, {name: value for name, value in raw.items() if name not in ours})
    return options, parameters, None if timeout is None else timeout / 1e6


def _answer(model: str, header: Mapping[str, Any], wanted: list[Wanted], found: Explanation) -> Response:
    about = {"model_name": model, "model_version": _VERSION} | ({"id": header["id"]} if "id" in header else {})
    content, length = tensors.put_together(about, [(want, _OUTPUTS[want.name][2](found)) for want in wanted])
    response = Response(content, content_type="application/json" if length is None else "application/octet-stream")
    if length is not None:
        response.headers[LENGTH_HEADER] = str(length)
    return response


def _ready(about: Mapping[str, Any], ready: bool) -> Response:
    return answer({**about, "ready": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)
