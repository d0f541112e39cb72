"""`/v1/models` and what belongs to a model."""

from flask import Response
from flask_openapi3 import APIBlueprint, Tag
from pydantic import BaseModel, Field

from app.api.documents import PROBLEMS, operation_id
from app.errors import AdminDisabled
from app.schemas.answers import LabelList, LayerList, ModelDetail, ModelList
from app.schemas.options import Name
from app.service import Service


class ModelPath(BaseModel):
    """The model in the path."""

    model: Name = Field(description="Model name, see `/v1/models`.")


class LabelQuery(BaseModel, extra="forbid"):
    """Options of the label search."""

    query: str = Field("", max_length=200, description="Part of a label, whatever the case; empty: all.")
    limit: int = Field(100, ge=1, le=100_000, description="How many labels to list at most.")


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "models",
        __name__,
        url_prefix="/v1",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="models")],
        abp_responses=PROBLEMS,
    )

    @api.get("/models", responses={200: ModelList})
    def models() -> Response:
        """List the models, the default first."""
        return _json(service.catalogue.models())

    @api.get("/models/<path:model>/layers", responses={200: LayerList})
    def layers(path: ModelPath) -> Response:
        """List a model's layers in the order in which they finish; loads the model."""
        return _json(service.catalogue.layers(path.model))

    @api.get("/models/<path:model>/labels", responses={200: LabelList})
    def labels(path: ModelPath, query: LabelQuery) -> Response:
        """Search a model's labels; loads the model."""
        return _json(service.catalogue.labels(path.model, query.query, query.limit))

    @api.post("/models/<path:model>/load", responses={200: ModelDetail})
    def load(path: ModelPath) -> Response:
        """Load a model, if the operator allows it (HEATLENS_MODEL_ADMIN); 503 while that still takes its time."""
        _require_admin(service)
        with service.hosts.using(path.model, timeout_s=service.settings.request_timeout_s):
            pass
        return _json(service.catalogue.model(path.model))

    @api.post("/models/<path:model>/unload", responses={200: ModelDetail})
    def unload(path: ModelPath) -> Response:
        """Let a model finish its queue and leave the memory, if the operator allows it (HEATLENS_MODEL_ADMIN)."""
        _require_admin(service)
        service.hosts.unload(path.model)
        return _json(service.catalogue.model(path.model))

    @api.get("/models/<path:model>", responses={200: ModelDetail})
    def model(path: ModelPath) -> Response:
        """Describe one model."""
        return _json(service.catalogue.model(path.model))

    return api


def _require_admin(service: Service) -> None:
    if not service.settings.model_admin:
        raise AdminDisabled("Loading and unloading by HTTP is switched off (HEATLENS_MODEL_ADMIN).")


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), content_type="application/json")
