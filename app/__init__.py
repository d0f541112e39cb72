"""The HeatLens service: HTTP at the edge, one owner thread per model at the core."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask_openapi3 import OpenAPI

    from app.config import Settings


def create_app(settings: "Settings", on_device_lost: "Callable[[], None]" = lambda: None) -> "OpenAPI":
    """Wire the service. Models start to load in their own threads with `app.extensions["heatlens"].start()`.

    `on_device_lost` is called, from the thread that noticed, when no model can run in this process any more.
    """
    from importlib.metadata import version

    from flask_openapi3 import Info, OpenAPI
    from werkzeug.middleware.proxy_fix import ProxyFix

    from app import cross_origin, problems, rate_limit, security, telemetry
    from app.api import compare, diagnostics, documents, embed, explain, health, metrics, models, tickets
    from app.api import images as image_routes
    from app.api import jobs as job_routes
    from app.api.events import Streams
    from app.dialects import kserve, label_studio, open_inference, torchserve
    from app.embedding import Embedding
    from app.images import Images
    from app.jobs.jobs import Jobs
    from app.jobs.shelf import Shelf
    from app.keys import Keys
    from app.schemas.answers import ExplainAnswer, Problem
    from app.schemas.diagnostics import ActivationAnswer, CompareAnswer, GradientFlowAnswer, SensitivityAnswer
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
    app.url_map.merge_slashes = False  # or `//` is answered by a redirect, with a page of its own
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.max_form_bytes
    app.config["MAX_FORM_PARTS"] = settings.max_form_fields + 1  # and the picture
    app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
        app.wsgi_app, x_for=settings.trusted_proxies, x_proto=settings.trusted_proxies, x_host=0
    )
    service = Service(settings, on_device_lost)
    app.extensions["heatlens"] = service
    telemetry.register(app, service.metrics)
    problems.register(app)
    jobs, streams = Jobs(settings, service), Streams(settings.event_streams)
    keys = Keys(settings, jobs.database)
    cross_origin.register(app, settings)
    security.register(app, settings, keys)
    app.extensions |= {"heatlens_jobs": jobs, "heatlens_streams": streams}
    shelf = Shelf(jobs.database, jobs.store, settings)
    images = Images(settings, service, shelf, security.only_of)
    embedding = Embedding(settings, service, jobs, shelf, security.only_of)
    app.extensions |= {"heatlens_images": images, "heatlens_keys": keys}
    for part in (explain, diagnostics, compare, models, health):
        app.register_api(part.blueprint(service))
    for dialect in (torchserve, kserve, open_inference, label_studio):
        app.register_api(dialect.blueprint(service))
    app.register_api(metrics.blueprint(service, jobs))
    app.register_api(job_routes.blueprint(jobs, service, streams))
    app.register_api(tickets.blueprint())
    app.register_api(image_routes.blueprint(images))
    app.register_api(embed.blueprint(embedding, service))
    app.register_blueprint(embed.links(embedding, settings.embed_origins))
    rate_limit.register(app, settings)
    app.register_blueprint(pages.blueprint(app))
    answers = (Problem, ExplainAnswer, GradientFlowAnswer, ActivationAnswer, SensitivityAnswer, CompareAnswer)
    app.components_schemas.update(documents.components(*answers))
    return app
