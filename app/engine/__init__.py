"""The engine: jobs go in, each gets exactly one answer. Standard library only; it knows no torch."""

from app.engine.errors import DeadlineExceeded, EngineError, QueueFull, ShuttingDown
from app.engine.owner import Job, Owner, Report, Watch

__all__ = ["DeadlineExceeded", "EngineError", "Job", "Owner", "QueueFull", "Report", "ShuttingDown", "Watch"]
