"""`/healthz` and `/readyz`, for load balancers and orchestrators."""

from http import HTTPStatus

from flask import Response
from flask_openapi3 import APIBlueprint, Tag

from app.api.documents import operation_id
from app.schemas.answers import Health
from app.service import Service


def blueprint(service: Service) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint("health", __name__, operation_id_callback=operation_id, abp_tags=[Tag(name="health")])

    @api.get("/healthz", responses={200: Health})
    def healthz() -> Response:
        """Say that the process answers."""
        return Response(Health(status="ok", models={}).model_dump_json(), content_type="application/json")

    @api.get("/readyz", responses={200: Health, 503: Health})
    def readyz() -> Response:
        """Say whether the models that are loaded at start are ready: 200 or 503."""
        ready, states = service.readiness()
        health = Health(status="ready" if ready else "not_ready", models=states)
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(health.model_dump_json(), status, content_type="application/json")

    return api
