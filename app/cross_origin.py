"""Which other sites' pages may call the service from a browser, by Flask-CORS."""

import logging
import re

from flask import Flask, Response, request
from flask_cors import CORS

from app.config import Settings

_BELOW = "/v1/"
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
_ALLOWED = [
    "Authorization",
    "X-API-Key",
    "Content-Type",
    "Idempotency-Key",
    "X-Request-Id",
    "X-Request-Deadline-S",
    "If-None-Match",
    "Last-Event-ID",
]
_EXPOSED = [
    "X-HeatLens-Model",
    "X-HeatLens-With-Model",
    "X-HeatLens-Method",
    "X-HeatLens-Layer",
    "X-HeatLens-Target",
    "X-HeatLens-Label",
    "X-HeatLens-Score",
    "X-HeatLens-Weights",
    "X-HeatLens-Faithfulness",
    "X-HeatLens-Stability",
    "X-Request-Id",
    "Idempotency-Replayed",
    "ETag",
    "Location",
    "Retry-After",
    "Server-Timing",
    "WWW-Authenticate",
]
_MAX_AGE_S = 600


def register(app: Flask, settings: Settings) -> None:
    """Allow the sites of HEATLENS_CORS_ORIGINS to call what lies below `/v1/`; without cookies, for there are none."""
    if not settings.cors_origins:
        return
    logging.getLogger("flask_cors").setLevel(logging.WARNING)  # it would log paths, which may hold what is secret
    CORS(
        app,
        resources=[re.compile(_BELOW)],
        # Compiled, since it takes a word with a bracket, as an IPv6 address has, for an expression.
        origins=[re.compile(re.escape(origin) + r"\Z", re.IGNORECASE) for origin in settings.cors_origins],
        methods=_METHODS,
        allow_headers=_ALLOWED,
        expose_headers=_EXPOSED,
        max_age=_MAX_AGE_S,
        supports_credentials=False,
        always_send=False,
        vary_header=False,
        intercept_exceptions=False,
    )

    @app.after_request
    def vary(response: Response) -> Response:
        """Also for those whose origin is none of them, or a cache would give their answers to the others."""
        if request.path.startswith(_BELOW):
            response.vary.add("Origin")
        return response
