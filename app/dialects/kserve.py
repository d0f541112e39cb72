"""KServe's protocol v1, which is TensorFlow Serving's with `:explain`; `GET /v1/models/{model}` says `ready`."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flask import Response, g
from flask_openapi3 import APIBlueprint, Tag

from app.api.answering import patience
from app.api.bodies import body, from_base64, json_object, only
from app.api.documents import operation_id
from app.api.models import ModelPath
from app.dialects.asking import PICTURE, TRUST, Asking, Explanation, check_list_side, predict_options
from app.dialects.pixels import from_lists
from app.dialects.speaking import ANSWERS, PICTURE_FAULTS, answer, post_alone, require_version
from app.drawing import prediction
from app.errors import BadRequestBody, LimitExceeded
from app.problems import speak
from app.schemas.answers import ClassScore, Prediction
from app.service import Service

_PATHS = re.compile(r"/v1/models/.*:(predict|explain)/?", re.DOTALL)
_SIDE_PX = 256
_NUMBERS = 2**20
"""How many decimal numbers all maps of an answer have together at most; each takes some 20 bytes."""
_IMAGE = ("image", "image_bytes", "b64")
_WAYS = 'an instance has to be {"image": {"b64": "..."}}, or the picture as array of shape (height, width, 3).'
_BODY: Mapping[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "instances": {"type": "array", "minItems": 1, "items": {}},
                        "parameters": {"type": "object"},
                    },
                    "required": ["instances"],
                    "additionalProperties": False,
                },
                "example": {"instances": [{"image": {"b64": ""}}]},
            }
        },
    }
}

Answer = TypeVar("Answer")
_Class = Prediction | ClassScore


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "kserve",
        __name__,
        url_prefix="/v1",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="as KServe speaks")],
        abp_responses=ANSWERS,
    )
    asking = Asking(service, PICTURE | TRUST, _SIDE_PX)
    limit = service.settings.max_diagnostic_pictures

    @api.post("/models/<path:model>:predict", openapi_extensions=dict(_BODY))
    def predict_instances(path: ModelPath) -> Response:
        """Classify the instances: for each the most probable classes, `top` of them."""
        instances, raw = _read(limit)
        require_version(service, path.model)
        options = predict_options(path.model, raw)
        wait = patience()
        clock = service.clock(wait["timeout_s"])

        def predict(picture: bytes) -> Sequence[_Class]:
            seen = service.predict(picture, options, clock=clock, watch=wait["watch"])
            return prediction(seen, options, request_id="").predictions

        return answer({"predictions": [_classes(rows) for rows in _each(instances, predict)]})

    @api.post("/models/<path:model>:explain", openapi_extensions=dict(_BODY))
    def explain_instances(path: ModelPath) -> Response:
        """Explain the instances: for each the raw signed map as nested list, the overlay, and the facts."""
        instances, raw = _read(limit)
        require_version(service, path.model)
        options, parameters = asking.options(path.model, raw)
        check_list_side(options)
        _check_numbers(len(instances), options.max_side)
        method, _ = service.check(options, parameters)
        wait = patience()
        clock = service.clock(wait["timeout_s"], method)

        def explain(picture: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            explained = service.explain(picture, options, parameters, clock=clock, watch=wait["watch"])
            return _answer(Explanation(explained, options))

        predictions, explanations = zip(*_each(instances, explain), strict=True)
        return answer({"predictions": predictions, "explanations": explanations})

    post_alone(api, "/models/<path:model>:predict", "/models/<path:model>:explain")
    api.record(lambda state: speak(state.app, _PATHS, _error))
    return api


def _read(limit: int) -> tuple[list[object], dict[str, Any]]:
    """Return the instances and the options."""
    found = json_object(body())
    only(found, ("instances", "parameters"))
    instances, parameters = found.get("instances"), found.get("parameters", {})
    if not isinstance(instances, list) or not instances:
        raise BadRequestBody(f"instances has to be a list; {_WAYS}", field="instances")
    if len(instances) > limit:
        msg = f"{len(instances)} instances were sent, the limit is {limit} (HEATLENS_MAX_DIAGNOSTIC_PICTURES)."
        raise LimitExceeded(msg, field="instances", limit=limit)
    if not isinstance(parameters, dict):
        raise BadRequestBody("parameters has to be an object: the options by name.", field="parameters")
    return instances, parameters


def _check_numbers(instances: int, max_side: int) -> None:
    if (numbers := instances * max_side**2) > _NUMBERS:
        msg = (
            f"{instances} instances with max_side {max_side} may have {numbers} numbers in their maps; the limit is "
            f"{_NUMBERS} for an answer. Choose a smaller max_side, or send fewer instances."
        )
        raise LimitExceeded(msg, field="max_side", limit=_NUMBERS)


def _each(instances: Sequence[object], ask: Callable[[bytes], Answer]) -> Iterator[Answer]:
    """Ask about one instance after the other; an error has the number of the one at fault with it."""
    for number, instance in enumerate(instances):
        g.instance = number
        yield ask(_picture(instance))
    del g.instance


def _picture(instance: object) -> bytes:
    if isinstance(instance, list):
        return from_lists(instance, "instance")
    if not isinstance(instance, dict) or len(instance) != 1 or next(iter(instance)) not in _IMAGE:
        raise BadRequestBody(_WAYS[0].upper() + _WAYS[1:], field="instances", choices=list(_IMAGE))
    ((name, image),) = instance.items()
    if name == "b64":
        return from_base64(image, "b64")
    if isinstance(image, list):
        return from_lists(image, name)
    if not isinstance(image, dict) or set(image) != {"b64"}:
        raise BadRequestBody(f'{name} has to be {{"b64": "..."}} or an array.', field=name)
    return from_base64(image["b64"], f"{name}.b64")


def _answer(found: Explanation) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what one instance has among `predictions` and among `explanations`."""
    explanation = found.map_facts.model_dump(mode="json") | {
        "heatmap": found.heat.tolist(),
        "picture": {"b64": base64.b64encode(found.picture()).decode()},
    }
    return _classes(found.facts.predictions), explanation


def _classes(rows: Sequence[_Class]) -> list[dict[str, Any]]:
    return [{"index": row.index, "label": row.label, "probability": row.probability} for row in rows]


def _error(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name the instance where it is that one's fault, not what would have met any of them."""
    number, detail = g.get("instance"), problem["detail"]
    of_one = number is not None and problem["code"] in PICTURE_FAULTS | {BadRequestBody.code}
    return {"error": f"instances[{number}]: {detail}" if of_one else detail}
