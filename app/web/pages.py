"""`/`, `/batch`, `/models`, `/docs`, `/docs/errors` and `/openapi.json`; no asset comes from another host."""

from pathlib import Path

import flask_openapi3_swagger
from flask import Blueprint, Response, jsonify, render_template
from flask_openapi3 import OpenAPI

from app.api.documents import document
from app.problems import documented_errors

_SWAGGER = Path(flask_openapi3_swagger.__file__).parent / "templates" / "swagger"

# Swagger UI draws its icons as data: URLs and sets style attributes.
_DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def blueprint(app: OpenAPI) -> Blueprint:
    """Return the pages of `app`."""
    pages = Blueprint("pages", __name__, template_folder="templates", static_folder="static", static_url_path="/static")

    @pages.get("/")
    def index() -> str:
        return render_template("index.html")

    @pages.get("/batch")
    def batch() -> str:
        return render_template("batch.html")

    @pages.get("/models")
    def models() -> str:
        return render_template("models.html")

    @pages.get("/docs")
    def docs() -> Response:
        response = Response(render_template("docs.html"))
        response.headers["Content-Security-Policy"] = _DOCS_POLICY
        return response

    @pages.get("/docs/errors")
    def errors() -> str:
        return render_template("errors.html", errors=documented_errors())

    @pages.get("/openapi.json")
    def openapi() -> Response:
        return jsonify(document(app))

    swagger = Blueprint("swagger", __name__, static_folder=str(_SWAGGER), static_url_path="/docs/swagger")
    pages.register_blueprint(swagger)
    return pages
