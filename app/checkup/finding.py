"""One thing that is wrong."""

from dataclasses import dataclass
from typing import Literal

from app.config import PREFIX


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `setting` is the variable at fault, `what` happens, and `advice` says what to do.

    An "error" keeps the server from starting, or from something that it is asked for; a "warning" may be meant so.
    """

    level: Literal["error", "warning"]
    setting: str
    what: str
    advice: str


def error(setting: str, what: str, advice: str) -> Finding:
    """Return a finding about a setting, by its name in `Settings`."""
    return Finding("error", PREFIX + setting.upper(), what, advice)


def warning(setting: str, what: str, advice: str) -> Finding:
    """Return a finding that may be meant so."""
    return Finding("warning", PREFIX + setting.upper(), what, advice)
