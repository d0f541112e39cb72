"""The options of a job: those of `POST /v1/explain`, what to keep of each picture, a name and a webhook."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from app.config import Settings
from app.errors import BadWebhook, LimitExceeded
from app.schemas import checking
from app.schemas.checking import check
from app.schemas.options import Format, MapOptions
from app.service import Service
from explainers.errors import TargetOutOfRange
from explainers.explain import check_layers
from explainers.hooks import find_layer
from models.loading import require_weights

Artifact = Literal["overlay", "map", "arrays"]

REPEATABLE = checking.REPEATABLE | {"artifacts"}
"""Options that may be given several times."""

_OWN_COLUMNS = frozenset({"name", "webhook"})
"""What the ledger keeps beside the options."""


class JobOptions(MapOptions):
    """Options of `POST /v1/jobs`. A method's own parameters are given beside them, see `/v1/methods`."""

    format: Format | None = Field(
        None,
        description="Format of the overlays: jpeg, png or webp; absent: JPEG, or PNG for view=layer. Arrays are an "
        "artifact of their own.",
    )
    artifacts: list[Artifact] = Field(
        ["overlay"],
        min_length=1,
        max_length=3,
        fail_fast=True,
        description="What is kept of each picture, repeatable: overlay, the picture that view and format describe; "
        "map, the heat alone as 8-bit gray PNG; arrays, raw and placed maps with all scores as npz.",
    )
    name: str = Field("", max_length=200, description="What you call the job.")
    webhook: str | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="URL that is told by a POST when the job is over, signed as Standard Webhooks says.",
    )

    @field_validator("format")
    @classmethod
    def _picture_format(cls, value: Format | None) -> Format | None:
        if value in ("npy", "npz", "json"):
            msg = "a job's pictures are jpeg, png or webp; for arrays ask for artifacts=arrays"
            raise PydanticCustomError("no_picture_format", msg)
        return value

    @field_validator("artifacts")
    @classmethod
    def _once(cls, value: list[Artifact]) -> list[Artifact]:
        return list(dict.fromkeys(value))

    @property
    def picture_format(self) -> Format:
        """The format of the overlays."""
        return self.format or ("png" if self.view == "layer" else "jpeg")


class Asked(NamedTuple):
    """What is asked of every picture of a job; `parameters` are the method's own, as given."""

    options: JobOptions
    parameters: Mapping[str, Any]


def read_options(service: Service, given: Mapping[str, Any]) -> Asked:
    """Check options that came by form, query or JSON; raise whatever is known to be wrong before a picture is seen.

    That is all that `POST /v1/explain` would refuse too, except what only the model can tell while it is not loaded
    here: then each picture says it.
    """
    given = {name: _as_list(value) if name in REPEATABLE else value for name, value in given.items()}
    options, parameters = check(JobOptions, given, parameters=service.catalogue.parameter_schemas())
    limit = service.settings.max_targets
    if len(options.target) > limit:
        msg = f"{len(options.target)} targets were asked for; the limit is {limit} (HEATLENS_MAX_TARGETS)."
        raise LimitExceeded(msg, field="target", limit=limit)
    if options.webhook is not None:
        _check_webhook(options.webhook, service.settings)
    _foresee(service, options, parameters)
    return Asked(options, parameters)


def _foresee(service: Service, options: JobOptions, parameters: Mapping[str, Any]) -> None:
    """Raise what is wrong with what is asked for, as far as that shows without a picture."""
    method, _ = service.check(options, parameters)
    name = options.model or service.settings.default_model
    spec = service.registry.get(name)
    if name not in service.settings.preloaded:
        require_weights(spec)
    if options.layer:
        check_layers(method, options.layer)
    service.identity(options, parameters)  # knows the labels, once the model is loaded
    host = service.hosts.peek(name)
    if host is None or host.owner.state != "ready":
        return
    for layer in options.layer:
        find_layer(host.model.module, layer)
    for index in options.target:
        _check_index(index, len(host.model.labels), "target")
    _check_index(options.versus, len(host.model.labels), "versus")


def _check_index(index: object, classes: int, field: str) -> None:
    if isinstance(index, int) and not 0 <= index < classes:
        msg = f"{field} asks for class index {index}; the model has {classes} classes: valid are 0 to {classes - 1}."
        raise TargetOutOfRange(msg, field=field, minimum=0, maximum=classes - 1)


def to_json(asked: Asked) -> dict[str, Any]:
    """Return what was asked for, without defaults, as it is stored and shown."""
    own = asked.options.model_dump(mode="json", exclude_unset=True, exclude=set(_OWN_COLUMNS))
    return own | dict(asked.parameters)


def from_json(stored: Mapping[str, Any]) -> Asked:
    """Return what `to_json` stored; name and webhook are the ledger's."""
    known = JobOptions.model_fields
    options = JobOptions.model_validate({name: value for name, value in stored.items() if name in known})
    return Asked(options, {name: value for name, value in stored.items() if name not in known})


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _check_webhook(webhook: str, settings: Settings) -> None:
    """Raise `BadWebhook` for what can never be called; who answers there is seen when it is called."""
    if not settings.webhook_secret.get_secret_value():
        raise BadWebhook("webhook: the server sends none, as HEATLENS_WEBHOOK_SECRET is not set.")
    schemes = ["https", "http"] if settings.webhook_private else ["https"]
    try:
        url = urlsplit(webhook)
        usable = url.scheme in schemes and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none, brackets without end
        usable = False
    if not usable or url.username is not None or not webhook.isprintable():
        why = "" if settings.webhook_private else " (http too where HEATLENS_WEBHOOK_PRIVATE is set)"
        msg = f"webhook has to be an {' or '.join(schemes)} URL without user name{why}, not {webhook[:100]!r}."
        raise BadWebhook(msg, choices=schemes)
