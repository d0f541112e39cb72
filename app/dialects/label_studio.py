"""Label Studio's ML backend: heat as brush strokes under `/labelstudio`.

Label Studio gives one second to `/health` and three to `/setup`, so neither waits for a model. Nothing is remembered:
each request brings its labelling configuration, and its `hostname` and `access_token` are not looked at.
"""

import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar

from flask import Response
from flask_openapi3 import APIBlueprint, Tag
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.api.answering import patience
from app.api.bodies import body, json_object
from app.api.documents import operation_id
from app.dialects import brush, label_config
from app.dialects.asking import require_one_class
from app.dialects.label_config import LabelConfig
from app.dialects.speaking import ANSWERS, answer, at_fault
from app.dialects.tasks import TaskPictures
from app.engine import Watch
from app.errors import BadOption
from app.jobs.options import read_options
from app.known_errors import KNOWN_ERRORS
from app.laying import Canvas
from app.problems import speak
from app.schemas.checking import REPEATABLE, bad_option, check, from_text
from app.schemas.options import MapOptions, QuestionOptions
from app.service import Explained, Service

_PATHS = re.compile(r"/labelstudio(/.*)?", re.DOTALL)
_PREFIX = "/labelstudio"
_SIDE_PX = 1024
"""Up to which size a map is laid over its picture; it is then stretched to the picture's own."""
_TASKS = 1000
_TRAINS_NOTHING = "HeatLens explains models; it trains none."

_Body = TypeVar("_Body", bound=BaseModel)


class PredictBody(BaseModel):
    """Body of `POST /labelstudio/predict`, as far as it is looked at."""

    model_config = ConfigDict(extra="ignore")

    tasks: list[dict[str, Any]] = Field(
        max_length=_TASKS, description="What to explain: `data` has the picture where the configuration says."
    )
    label_config: str = Field(description="The project's labelling configuration.")


class SetupBody(BaseModel):
    """Body of `POST /labelstudio/setup`, as far as it is looked at."""

    model_config = ConfigDict(extra="ignore")

    label_config: str = Field("", alias="schema", description="The project's labelling configuration.")


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "label_studio",
        __name__,
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="as Label Studio speaks")],
        abp_responses=ANSWERS,
    )
    backend = _Backend(service)

    def label_studio_health() -> Response:
        """Say that the backend is there; a model may still be loading."""
        return answer({"status": "UP", "model_class": "HeatLens"})

    api.get(f"{_PREFIX}/health")(label_studio_health)
    api.get(_PREFIX, strict_slashes=False, doc_ui=False)(label_studio_health)

    @api.post(f"{_PREFIX}/setup", openapi_extensions=_takes(SetupBody))
    def label_studio_setup() -> Response:
        """Say which model and method a project gets; its configuration may still be empty."""
        asked = _read(SetupBody)
        return answer({"model_version": backend.version(asked.label_config)})

    @api.get(f"{_PREFIX}/versions")
    def label_studio_versions() -> Response:
        """List what a project gets whose configuration asks for nothing else."""
        return answer({"versions": [backend.version("")]})

    @api.post(f"{_PREFIX}/predict", openapi_extensions=_takes(PredictBody))
    def label_studio_predict() -> Response:
        """Explain the pictures of tasks: one result for each, empty with an `error` where that failed."""
        asked = _read(PredictBody)
        return answer({"results": backend.predict(asked, **patience())})

    @api.post(f"{_PREFIX}/webhook")
    def label_studio_webhook() -> Response:
        """Take notice of nothing, but refuse to train."""
        if json_object(body()).get("action") == "START_TRAINING":
            return answer({"error": _TRAINS_NOTHING}, HTTPStatus.NOT_IMPLEMENTED)
        return answer({"status": "ignored", "detail": _TRAINS_NOTHING})

    @api.post(f"{_PREFIX}/train")
    def label_studio_train() -> Response:
        """Refuse to train."""
        return answer({"error": _TRAINS_NOTHING}, HTTPStatus.NOT_IMPLEMENTED)

    api.record(lambda state: speak(state.app, _PATHS, _error))
    return api


class _Backend:
    """Answers for tasks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pictures = TaskPictures(service.settings)
        self._parameters = service.catalogue.parameter_schemas()

    def version(self, text: str) -> str:
        """Say what explains a project's pictures; where it has no tags yet, as a new one, what would by default."""
        config = label_config.parse(text) if "toName" in text else None
        options, parameters = self._options(config)
        read_options(self._service, options.model_dump(exclude_unset=True) | parameters)  # raises what can be foreseen
        return self._version(options, parameters)

    def predict(self, asked: PredictBody, *, timeout_s: float | None, watch: Watch | None) -> list[dict[str, Any]]:
        """Return one prediction for each task. What is wrong with the configuration is wrong with all of them."""
        config = label_config.parse(asked.label_config)
        options, parameters = self._options(config)
        method, _ = self._service.check(options, parameters)
        clock = self._service.clock(timeout_s, method)
        model_version = self._version(options, parameters)
        found = []
        for task in asked.tasks:
            try:
                data = self._pictures.read(_at(task.get("data"), config.key), clock)
                explained = self._service.explain(data, options, parameters, clock=clock, watch=watch)
                prediction = _prediction(config, explained, options.max_side)
            except KNOWN_ERRORS as error:
                if not at_fault(error):
                    raise  # the whole request has it, so that Label Studio keeps no empty prediction
                prediction = {"result": [], "score": 0.0, "error": {"code": error.code, "detail": str(error)}}
            found.append(prediction | {"model_version": model_version})
        return found

    def _options(self, config: LabelConfig | None) -> tuple[MapOptions, dict[str, Any]]:
        """Return what the configuration asks for by `heatlens_...`; raises what is wrong with it."""
        asked = config.options if config else {}
        if empty := sorted(name for name, value in asked.items() if not value):
            msg = f"heatlens_{empty[0][:100]} is empty; give it a value, or leave the attribute out."
            raise BadOption(msg, field=f"heatlens_{empty[0][:100]}")
        given = {name: from_text(name, value) for name, value in asked.items()}
        listed = {name: [value] if name in REPEATABLE else value for name, value in given.items()}
        question, parameters = check(QuestionOptions, listed, parameters=self._parameters)
        require_one_class(question, "heatlens_target: a task gets one map, so name one class.")
        side_px = min(_SIDE_PX, self._service.settings.max_output_side_px)
        return MapOptions(**question.model_dump(exclude_unset=True), max_side=side_px), parameters

    def _version(self, options: MapOptions, parameters: Mapping[str, Any]) -> str:
        """Name what was asked: Label Studio keeps predictions apart by it."""
        name = options.model or self._service.settings.default_model
        self._service.registry.get(name)
        asked = options.model_dump(exclude_unset=True, exclude={"model", "method", "max_side"}) | dict(parameters)
        detail = "".join(f" {key}={value}" for key, value in sorted(asked.items()))
        return f"HeatLens {version('heatlens')} {name} {options.method}{detail}"[:200]


def _prediction(config: LabelConfig, explained: Explained, max_side: int) -> dict[str, Any]:
    """Return what a task gets: the heat as a stroke, the class as a choice, as far as there is a name for it."""
    attribution = explained.attributions[0]
    index = attribution.score.index
    label = explained.model.labels[index]
    size = explained.picture.width, explained.picture.height
    frame = {
        "to_name": config.picture,
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": 0,
        "score": float(explained.probabilities[index]),
    }
    canvas = Canvas(explained.picture, explained.geometry, max_side)
    display = canvas.lay(attribution.raw, explained.method.display_percentile).display
    found: dict[str, Any] = {"result": [], "score": frame["score"], "class": label}
    if config.brush and display.no_positive_evidence:
        detail = f"Nothing in the picture speaks for {label!r}, so there is nothing to draw."
        found["error"] = {"code": "no_positive_evidence", "detail": detail}
    elif config.brush:
        heat = list(brush.encode(brush.levels(display.values, size)))
        found["result"] += [frame | stroke for stroke in _strokes(config, label, heat)]
    if config.choices and (choice := config.choices.choice(label)):
        value = {"choices": [choice]}
        found["result"].append(
            frame | {"id": _id(), "from_name": config.choices.name, "type": "choices", "value": value}
        )
    return found


def _strokes(config: LabelConfig, label: str, heat: list[int]) -> list[dict[str, Any]]:
    """Return the heat as the configuration's tags have it, called by the class if they know it, else by their first."""
    naming = config.labels or config.brush
    if config.brush is None or naming is None:
        return []
    drawn, named = {"format": "rle", "rle": heat}, [naming.choice(label) or naming.choices[0]]
    stroke_id = _id()  # two tags of one region share it
    tags = [config.brush] if config.labels is None else [config.brush, config.labels]
    return [
        {
            "id": stroke_id,
            "from_name": tag.name,
            "type": tag.kind,
            "value": drawn if tag.kind == "brush" else {**drawn, tag.kind: named},
        }
        for tag in tags
    ]


def _at(data: object, key: str) -> object:
    """Return what a task's data has at a key, which may lead into it: `sample.image`."""
    if not isinstance(data, dict):
        return None
    outer, _, inner = key.partition(".")
    return data[key] if key in data else _at(data.get(outer), inner) if inner else None


def _id() -> str:
    return uuid.uuid4().hex[:10]


def _read(model: type[_Body]) -> _Body:
    """Return the body of the current request."""
    try:
        return model.model_validate(json_object(body()))
    except ValidationError as error:
        raise bad_option(error) from error


def _error(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"error": problem["detail"], "code": problem["code"], "request_id": problem["request_id"]}


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
