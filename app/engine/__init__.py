"""The engine: jobs go in, each gets exactly one answer. Standard library only; it knows no torch."""

from app.engine.admission import Admission
from app.engine.errors import DeadlineExceeded, DeviceLost, EngineError, ModelStuck, NotReady, QueueFull, ShuttingDown
from app.engine.job import Job, Watch
from app.engine.owner import Owner, Report

__all__ = [
    "Admission",
    "DeadlineExceeded",
    "DeviceLost",
    "EngineError",
    "Job",
    "ModelStuck",
    "NotReady",
    "Owner",
    "QueueFull",
    "Report",
    "ShuttingDown",
    "Watch",
]
