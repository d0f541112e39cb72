"""`/metrics`, for Prometheus."""

from flask import Response
from flask_openapi3 import APIBlueprint, Tag
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from app.api.documents import operation_id
from app.jobs.jobs import Jobs
from app.jobs.metrics import page
from app.service import Service


def blueprint(service: Service, jobs: Jobs) -> APIBlueprint:
    """Return the route."""
    api = APIBlueprint("metrics", __name__, operation_id_callback=operation_id, abp_tags=[Tag(name="health")])
    text = {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @api.get("/metrics", responses={200: text})
    def metrics() -> Response:
        """Tell Prometheus what all workers together have counted, and what there is of jobs."""
        text = service.metrics.page() + page(jobs.ledger)
        return Response(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)

    return api
