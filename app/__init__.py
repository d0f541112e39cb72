"""The HeatLens service: HTTP at the edge, one owner thread per model at the core."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask_openapi3 import OpenAPI

    from app.config import Settings


def create_app(settings: "Settings") -> "OpenAPI":
    """Wire the service. Models start to load in their own threads with `app.extensions["heatlens"].start()`."""
    from importlib.metadata import version

    from flask_openapi3 import Info, OpenAPI

    from app import problems, telemetry
    from app.api import documents, explain, health, models
    from app.schemas.answers import ExplainAnswer, Problem
    from app.service import Service
    from app.web import pages

    info = Info(
        title="HeatLens", version=version("heatlens"), description="Shows why an image model decided what it decided."
    )
    app = OpenAPI(
        __name__,
        info=info,
        doc_ui=False,
        static_folder=None,
        validation_error_callback=problems.from_validation,
    )
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_form_bytes
    app.config["MAX_FORM_PARTS"] = settings.max_form_fields + 1  # and the picture
    service = Service(settings)
    app.extensions["heatlens"] = service
    telemetry.register(app)
    problems.register(app)
    for part in (explain, models, health):
        app.register_api(part.blueprint(service))
    app.register_blueprint(pages.blueprint(app))
    app.components_schemas.update(documents.components(Problem, ExplainAnswer))
    return app
