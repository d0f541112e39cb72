"""TorchServe's inference API: `/ping`, `/predictions` and `/explanations`, as its image classifier answers."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from flask import Response, request
from flask_openapi3 import APIBlueprint, Tag

from app.api.answering import patience
from app.api.bodies import require_plain
from app.api.documents import operation_id
from app.api.models import ModelPath
from app.api.requests import read_picture
from app.dialects.asking import MAP, Asking, Explanation, check_list_side, predict_options
from app.dialects.speaking import ANSWERS, VERSIONS, answer, require_version
from app.drawing import prediction
from app.errors import BadRequestBody
from app.jobs.intake import options_of, together
from app.problems import speak
from app.schemas.answers import ClassScore
from app.service import Service

_PATHS = re.compile(r"/(ping|predictions|explanations)(/.*)?", re.DOTALL)
_VERSION = f"<any({', '.join(map(repr, VERSIONS))}):_version>"
_SIDE_PX = 256
_PARTS = ("data", "body")
"""What TorchServe's handlers look for."""
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "InvalidKeyException",
    HTTPStatus.FORBIDDEN: "InvalidKeyException",
    HTTPStatus.NOT_FOUND: "ResourceNotFoundException",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedException",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableException",
}
_OF_MODELS = {"unknown_model": "ModelNotFoundException", "unknown_version": "ModelVersionNotFoundException"}
_PICTURE: Mapping[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The picture, as raw body or as part `data` of a form.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "torchserve",
        __name__,
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="as TorchServe speaks")],
        abp_responses=ANSWERS,
    )
    asking = Asking(service, MAP, _SIDE_PX)

    @api.get("/ping")
    def ping() -> Response:
        """Say whether the models that are loaded at start are ready: Healthy, or 503 and Unhealthy."""
        ready, _ = service.readiness()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return answer({"status": "Healthy" if ready else "Unhealthy"}, status)

    def predictions(path: ModelPath) -> Response:
        """Classify a picture: the five best labels with their probabilities; the option `top` says how many."""
        picture, raw = _read()
        require_version(service, path.model)
        options = predict_options(path.model, raw)
        seen = service.predict(picture, options, **patience())
        return answer(_by_label(prediction(seen, options, request_id="").predictions))

    def explanations(path: ModelPath) -> Response:
        """Explain the predicted class, or `target`: the raw signed map as nested list, rows of numbers."""
        picture, raw = _read()
        require_version(service, path.model)
        options, parameters = asking.options(path.model, raw)
        check_list_side(options)
        explained = service.explain(picture, options, parameters, **patience())
        return answer(Explanation(explained, options).heat.tolist())

    for name, view in (("predictions", predictions), ("explanations", explanations)):
        api.post(f"/{name}/<path:model>", openapi_extensions=dict(_PICTURE))(view)
        api.post(f"/{name}/<path:model>/{_VERSION}", doc_ui=False)(view)
        # TorchServe's own examples say `curl -T`, which sends a PUT.
        api.put(f"/{name}/<path:model>", doc_ui=False)(view)
        api.put(f"/{name}/<path:model>/{_VERSION}", doc_ui=False)(view)
    api.record(lambda state: speak(state.app, _PATHS, _error))
    return api


def _read() -> tuple[bytes, dict[str, Any]]:
    """Return the picture and the options: a raw body as for `/v1/explain`, or a form with `data` or `body`."""
    if request.mimetype != "multipart/form-data":
        return read_picture()
    files = [(name, file) for name, file in request.files.items(multi=True)]
    require_plain()
    if len(files) != 1 or files[0][0] not in _PARTS:
        found = " and ".join(repr(name[:100]) for name, _ in files[:3]) or "no file"
        msg = f"The picture has to be in the part {_PARTS[0]!r} of the form, alone; the form has {found}."
        raise BadRequestBody(msg, field=_PARTS[0])
    picture = files[0][1].read()
    if not picture:
        raise BadRequestBody(f"The part {files[0][0]!r} of the form is empty.", field=files[0][0])
    return picture, together(options_of(request.args.lists()), options_of(request.form.lists()))


def _by_label(rows: Sequence[ClassScore]) -> dict[str, float]:
    """Return the probabilities by label; of classes that share a label, the less probable have their index with it."""
    found: dict[str, float] = {}
    for row in rows:
        found[f"{row.label} ({row.index})" if row.label in found else row.label] = row.probability
    return found


def _error(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    status = problem["status"]
    kind = "BadRequestException" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalServerException"
    kind = _OF_MODELS.get(problem["code"]) or _TYPES.get(status, kind)
    return {"code": status, "type": kind, "message": problem["detail"]}
