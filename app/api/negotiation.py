"""Which of several formats the `Accept` header asks for."""

from collections.abc import Mapping

from flask import request
from werkzeug.datastructures import MIMEAccept

from app.errors import NotAcceptable


def preferred(offered: Mapping[str, str]) -> str:
    """Return the format, of those offered by media type, that the client likes best; without a wish the first.

    Raises `NotAcceptable`.
    """
    # What is offered has no parameters, as `charset=utf-8` is one.
    wanted = MIMEAccept((kind.partition(";")[0].rstrip(), weight) for kind, weight in request.accept_mimetypes)
    if not wanted:
        return next(iter(offered.values()))
    best = wanted.best_match(offered)
    if best is None:
        msg = f"None of what the Accept header asks for can be made; valid are {', '.join(offered)}."
        raise NotAcceptable(msg, choices=list(offered))
    return offered[best]
