"""Why a job was not accepted, or not answered."""

from typing import ClassVar


class EngineError(Exception):
    """Base of the engine's errors; see `explainers.errors.ExplainError` for the meaning of the attributes."""

    code: ClassVar[str] = "engine_error"
    field: str | None = None

    def __init__(self, detail: str, **extra: object) -> None:
        super().__init__(detail)
        self.extra = extra


class QueueFull(EngineError):
    """Too many requests wait for this model already (`limit`, `retry_after_s`)."""

    code = "queue_full"


class DeadlineExceeded(EngineError):
    """The request was not answered within its time."""

    code = "deadline_exceeded"


class ShuttingDown(EngineError):
    """The model, or the service, is being shut down."""

    code = "shutting_down"
