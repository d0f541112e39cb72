"""The service as the commands have it: in their own process."""

from typing import TYPE_CHECKING

from app.cli.console import fail
from app.config import load_settings

if TYPE_CHECKING:
    from app.service import Service

_NO_HURRY_S = 7 * 24 * 3600.0


def service_here(*download: str | None, **overrides: object) -> "Service":
    """Return a service in this process, with all cores and no hurry.

    The weights of models in `download` may be fetched: the operator himself asks for them. `overrides` are settings
    that the command needs otherwise.
    """
    from app.service import Service
    from models import ModelError

    settings = load_settings(workers=1)
    changed = {
        "models": (*settings.models, *filter(None, download)),
        "request_timeout_s": _NO_HURRY_S,
        "load_wait_s": _NO_HURRY_S,
    }
    try:
        return Service(settings.model_copy(update={**changed, **overrides}))
    except ModelError as error:  # a file in the models folder
        fail(str(error), code=1)
