"""How many requests a client may make, by Flask-Limiter: counted in this process, or by Redis for all of them."""

import time
from functools import partial
from typing import Any, cast

from flask import Blueprint, Flask, Response, request
from flask_limiter import Limiter, RequestLimit
from flask_limiter.errors import RateLimitExceeded
from limits.errors import StorageError

from app.config import Settings
from app.errors import RateLimited
from app.problems import problem, status_of
from app.security import caller

_BLUEPRINTS = (
    "explain",
    "diagnostics",
    "compare",
    "jobs",
    "images",
    "embed",
    "torchserve",
    "kserve",
    "open_inference",
    "label_studio",
)
"""Those whose POST and PUT routes cost the model's time, or room; all of them share one limit. A job counts once."""
_FREE = frozenset(
    {
        "jobs.cancel_job",
        "label_studio.label_studio_setup",
        "label_studio.label_studio_webhook",
        "label_studio.label_studio_train",
    }
)
"""Routes among them that save it, or cost none."""
_REDIS_TIMEOUT_S = 1
"""Counting must not take longer than explaining."""


def register(app: Flask, settings: Settings) -> None:
    """Limit what one client may ask of the models, if the operator wants that.

    When Redis is away, each process counts for itself until it is back, and logs a warning: a store of counters
    must not take the service down with it.
    """
    if not settings.rate_limit:
        return
    limiter = Limiter(
        caller,
        app=app,
        storage_uri=settings.rate_limit_storage,
        storage_options=_storage_options(settings.rate_limit_storage),
        key_prefix="heatlens",
        in_memory_fallback_enabled=True,
        swallow_errors=True,  # of all threads that find Redis gone at once, only the first falls back
    )
    limit = limiter.shared_limit(
        settings.rate_limit,
        scope="model",
        methods=["POST", "PUT"],
        exempt_when=lambda: request.endpoint in _FREE,
    )
    for name in _BLUEPRINTS:
        limit(cast("Blueprint", app.blueprints[name]))
    app.register_error_handler(RateLimitExceeded, partial(_refuse, limiter))


def _storage_options(uri: str) -> dict[str, Any]:
    if not uri.startswith("redis"):
        return {}
    return {
        "socket_timeout": _REDIS_TIMEOUT_S,
        "socket_connect_timeout": _REDIS_TIMEOUT_S,
        "wrap_exceptions": True,
    }


def _refuse(limiter: Limiter, error: RateLimitExceeded) -> Response:
    limit, current = str(error.limit.limit), limiter.current_limit
    wait_s = _seconds_left(current) if current else error.limit.limit.get_expiry()
    msg = f"More requests than the limit of {limit} for one client (HEATLENS_RATE_LIMIT); try again in {wait_s} s."
    return problem(status_of(RateLimited), RateLimited.code, msg, limit=limit, retry_after_s=wait_s)


def _seconds_left(limit: RequestLimit) -> int:
    """Return when the limit's window ends, in whole seconds, and rather too late than too early."""
    longest = limit.limit.get_expiry()
    try:
        return min(longest, max(1, limit.reset_at - int(time.time())))
    except StorageError:  # Redis went away since it refused
        return longest
