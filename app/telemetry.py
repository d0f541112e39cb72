"""What every request gets: an id, its headers, its place in the metrics and its line in the log."""

import logging
import re
import time
import uuid

from flask import Flask, Response, g, request
from structlog.contextvars import bind_contextvars, clear_contextvars

from app.metrics import Metrics
from app.security import caller_key_id

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger(__name__)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": (
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), "
        "microphone=(), midi=(), payment=(), usb=()"
    ),
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def register(app: Flask, metrics: Metrics) -> None:
    """Give every request an id (the client's own, if it is harmless) and every answer its headers; account for it."""

    @app.before_request
    def begin() -> None:
        wanted = request.headers.get("X-Request-Id", "")
        g.request_id = wanted if _REQUEST_ID.fullmatch(wanted) else uuid.uuid4().hex
        g.started = time.perf_counter()
        clear_contextvars()
        bind_contextvars(request_id=g.request_id)

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-Id"] = g.request_id
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if "frame-ancestors 'self'" in response.headers["Content-Security-Policy"]:
            del response.headers["X-Frame-Options"]  # which knows no list of sites
        _account(response, metrics)
        return response

    @app.teardown_request
    def forget(_error: BaseException | None) -> None:
        clear_contextvars()


def _account(response: Response, metrics: Metrics) -> None:
    """Count the request and log it: neither the path nor the query, which may hold what is secret."""
    seconds = time.perf_counter() - g.started
    route = request.url_rule.rule if request.url_rule else "unmatched"
    method = request.method if request.method in _METHODS else "other"
    metrics.request(route, method, response.status_code, seconds)
    facts = {
        "method": method,
        "route": route,
        "status": response.status_code,
        "seconds": round(seconds, 4),
        "bytes_out": _body_bytes(response),
        "client": request.remote_addr,
        "key": caller_key_id(),
        "model": response.headers.get("X-HeatLens-Model"),
        "explanation": response.headers.get("X-HeatLens-Method"),
    }
    _log.info("request", extra={name: value for name, value in facts.items() if value is not None})


def _body_bytes(response: Response) -> int | None:
    """Return the size of what is sent, or None where only the end of a stream will tell."""
    if request.method == "HEAD" or response.status_code == 304:
        return 0
    if response.content_length is None and response.is_sequence:
        return response.calculate_content_length()
    return response.content_length
