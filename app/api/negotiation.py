"""Which of several formats the `Accept` header asks for."""

import re
from collections.abc import Mapping

from flask import request
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from app.errors import NotAcceptable

_PARAMETER = re.compile(r";\s*(?!q=)[^;,]*")
"""A parameter of a media type, such as `charset=utf-8`: what is offered has none."""


def preferred(offered: Mapping[str, str]) -> str:
    """Return the format, of those offered by media type, that the client likes best; without a wish the first.

    Raises `NotAcceptable`.
    """
    wanted = parse_accept_header(_PARAMETER.sub("", request.headers.get("Accept", "")), MIMEAccept)
    if not wanted:
        return next(iter(offered.values()))
    best = wanted.best_match(offered)
    if best is None:
        msg = f"None of what the Accept header asks for can be made; valid are {', '.join(offered)}."
        raise NotAcceptable(msg, choices=list(offered))
    return offered[best]
