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
    """Too many requests are being worked on or wait already (`limit`, `retry_after_s`)."""

    code = "queue_full"


class NotReady(EngineError):
    """The model is still being loaded (`retry_after_s`)."""

    code = "model_loading"


class DeadlineExceeded(EngineError):
    """The request was not answered within its time."""

    code = "deadline_exceeded"


class ShuttingDown(EngineError):
    """The model, or the service, is being shut down."""

    code = "shutting_down"


class DeviceLost(EngineError):
    """The device failed for good; the process is about to be replaced (`retry_after_s`)."""

    code = "device_lost"


class ModelStuck(DeviceLost):
    """The model does not come back from its work; the process is about to be replaced (`retry_after_s`)."""

    code = "model_stuck"
