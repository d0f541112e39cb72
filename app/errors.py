"""The service's own errors. They know no HTTP: `app.problems` has the table."""

from typing import ClassVar


class ServiceError(Exception):
    """Base of the service's errors; see `explainers.errors.ExplainError` for the meaning of the attributes."""

    code: ClassVar[str] = "service_error"
    field: str | None = None

    def __init__(self, detail: str, *, field: str | None = None, **extra: object) -> None:
        super().__init__(detail)
        self.field = field or self.field
        self.extra = extra


class BadRequestBody(ServiceError):
    """The body cannot be read: not JSON, not multipart, no picture in it."""

    code = "bad_request_body"


class JsonTooComplex(ServiceError):
    """A JSON body that is nested too deeply, or holds too many values."""

    code = "json_too_complex"


class BadOption(ServiceError):
    """An option has a value that it cannot have."""

    code = "bad_option"


class UnknownOption(ServiceError):
    """An option that does not exist."""

    code = "unknown_option"


class LimitExceeded(ServiceError):
    """An option beyond a limit that the operator set."""

    code = "limit_exceeded"


class UnknownLabel(ServiceError):
    """The model has no class of this label, or several."""

    code = "unknown_label"
    field = "target"


class VersusNotTaken(ServiceError):
    """`versus` was given to a method whose map does not depend on the class."""

    code = "versus_not_taken"
    field = "versus"


class NotAcceptable(ServiceError):
    """The client accepts nothing that can be made."""

    code = "not_acceptable"
    field = "Accept"


class UnsupportedMediaType(ServiceError):
    """A body of a kind that is not understood."""

    code = "unsupported_media_type"
    field = "Content-Type"


class RateLimited(ServiceError):
    """The client has made as many requests as the operator lets it make in this time."""

    code = "rate_limited"


class AdminDisabled(ServiceError):
    """Loading and unloading by HTTP is switched off."""

    code = "admin_disabled"


class DeviceUnavailable(ServiceError):
    """The operator asked for a GPU that is not there."""

    code = "device_unavailable"


class OutOfMemory(ServiceError):
    """One picture's work did not fit into the memory of the device."""

    code = "out_of_memory"


class ModelTooLarge(ServiceError):
    """The model does not fit beside those that stay in memory."""

    code = "model_too_large"


class ModelFailed(ServiceError):
    """The model raised something while it ran or while its gradient was taken."""

    code = "model_failed"


class NoDefaultLayer(ServiceError):
    """No layer of the model qualifies as the default."""

    code = "no_default_layer"
    field = "layer"


class JobsUnavailable(ServiceError):
    """The database of the jobs does not answer."""

    code = "jobs_unavailable"


class UnknownJob(ServiceError):
    """There is no such job, or it was deleted."""

    code = "unknown_job"


class UnknownItem(ServiceError):
    """The job has no such picture, or the picture no such file."""

    code = "unknown_item"


class JobState(ServiceError):
    """The job is in a state in which this cannot be done."""

    code = "job_state"


class IdempotencyConflict(ServiceError):
    """The key was used for another job."""

    code = "idempotency_conflict"
    field = "Idempotency-Key"


class QuotaExceeded(ServiceError):
    """The client has as many jobs, or as much stored, as the operator lets it have."""

    code = "quota_exceeded"


class OutOfSpace(ServiceError):
    """The disk has no room for what is to be kept."""

    code = "out_of_space"


class BadArchive(ServiceError):
    """An archive that is damaged, or has what it must not have."""

    code = "bad_archive"
    field = "archive"


class ArchiveTooLarge(ServiceError):
    """An archive that unpacks to more than the operator allows."""

    code = "archive_too_large"
    field = "archive"


class NoPictures(ServiceError):
    """A job without pictures."""

    code = "no_pictures"


class TooManyItems(ServiceError):
    """A job of more pictures than the operator allows."""

    code = "too_many_items"


class JobTooLarge(ServiceError):
    """The upload of a job is larger than the operator allows."""

    code = "job_too_large"


class SourceNotAllowed(ServiceError):
    """A source from which the operator lets no job read."""

    code = "source_not_allowed"
    field = "source"


class SourceUnreadable(ServiceError):
    """A source that cannot be listed or read."""

    code = "source_unreadable"
    field = "source"


class BadWebhook(ServiceError):
    """A webhook that cannot or must not be called."""

    code = "bad_webhook"
    field = "webhook"


class TooManyStreams(ServiceError):
    """As many clients watch jobs as the operator allows."""

    code = "too_many_streams"


class UnknownImage(ServiceError):
    """No such picture is kept: it never was, was deleted, or its time is over."""

    code = "unknown_image"
    field = "image"


class ImagesFull(ServiceError):
    """As many pictures are kept as the operator allows."""

    code = "images_full"
    field = "image"


class UnknownLink(ServiceError):
    """No such embed link: it never was, is over, or what it showed is gone."""

    code = "unknown_link"


class BadLabelConfig(ServiceError):
    """A labelling configuration of Label Studio that cannot be read, or that asks for nothing that is made here."""

    code = "bad_label_config"
    field = "label_config"


class PictureUnavailable(ServiceError):
    """The picture of a task of Label Studio cannot be had from where the operator lets it be fetched."""

    code = "picture_unavailable"


class LabelStudioUnavailable(ServiceError):
    """The Label Studio from which tasks' pictures are fetched does not answer, or lets nobody in."""

    code = "label_studio_unavailable"


class UnknownVersion(ServiceError):
    """The model has no such version."""

    code = "unknown_version"


class Unauthorized(ServiceError):
    """This needs an API key, and none came, or one that is wrong, over or revoked."""

    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__(
            "This needs a valid API key, sent as Authorization: Bearer KEY or as X-API-Key: KEY; "
            "whoever runs this server makes one with `heatlens keys create`."
        )


class Forbidden(ServiceError):
    """The API key is not for this, or a page of another site asks, or the server is asked under a name not its own."""

    code = "forbidden"


class KeysUnavailable(ServiceError):
    """The database of the API keys does not answer, so nobody can be let in."""

    code = "keys_unavailable"


class DatabaseTooNew(ServiceError):
    """The jobs' database was made by a later HeatLens; nothing is done with it, and no request is answered so."""


class BodyTooSlow(ServiceError):
    """The body comes in more slowly than the operator allows, or no more of it came."""

    code = "body_too_slow"


class TooManyUploads(ServiceError):
    """As many threads wait for bodies of slow clients as may, so that some are left for all others."""

    code = "too_many_uploads"
