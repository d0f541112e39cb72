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
