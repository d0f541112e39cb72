"""Request ids, and security headers that every answer carries."""

import re
import uuid

from flask import Flask, Response, g, request

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def register(app: Flask) -> None:
    """Give every request an id (the client's own, if it is harmless) and every answer its headers."""

    @app.before_request
    def name_request() -> None:
        wanted = request.headers.get("X-Request-Id", "")
        g.request_id = wanted if _REQUEST_ID.fullmatch(wanted) else uuid.uuid4().hex

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-Id"] = g.request_id
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response
