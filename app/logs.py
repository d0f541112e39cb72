"""One pipeline for every log line: ours, gunicorn's, those of libraries, and warnings.

Code logs by `logging`, with facts in `extra` where there are any; structlog adds the request's id and renders.
"""

import logging
import re
import sys
from typing import Literal

from structlog.contextvars import merge_contextvars
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name
from structlog.typing import EventDict, Processor

Format = Literal["text", "json"]

_FIRST = ("timestamp", "level", "logger", "event", "request_id")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(level: str, format_: Format) -> None:
    """Send what is logged to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(format_))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def formatter(format_: Format) -> logging.Formatter:
    """Return what makes a line of a record: readable `text`, coloured on a terminal, or one `json` object."""
    colors = sys.stderr.isatty()
    text = ConsoleRenderer(colors=colors, pad_event_to=0, sort_keys=False, exception_formatter=plain_traceback)
    render: list[Processor] = [_in_order, JSONRenderer()] if format_ == "json" else [_in_order, _unforgeable, text]
    return ProcessorFormatter(
        foreign_pre_chain=[
            merge_contextvars,
            add_log_level,
            add_logger_name,
            ExtraAdder(),
            TimeStamper(fmt="iso", utc=True),
        ],
        processors=[ProcessorFormatter.remove_processors_meta, format_exc_info, *render],
    )


def _in_order(_logger: object, _level: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in _FIRST if name in event} | dict(event)


def _unforgeable(_logger: object, _level: str, event: EventDict) -> EventDict:
    """Keep a line on its line, whatever a client has put into it, and what follows of a traceback indented."""
    trace = event.pop("exception", None)
    shown = {name: _escaped(value) if isinstance(value, str) else value for name, value in event.items()}
    if trace is not None:
        shown["exception"] = "\n".join(f"    {_escaped(line)}" for line in trace.splitlines())
    return shown


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
