"""One picture of a job, from its bytes to what is kept of it: the seam between the jobs and the service."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from app import service
from app.config import LONGEST_S, Settings
from app.drawing import Drawing
from app.engine import Job, NotReady, Owner
from app.hosting import AT_ONCE
from app.jobs.options import Asked, JobOptions
from app.schemas.options import Format
from app.service import Service

_NO_HURRY_S = 1e8
"""What a picture of a job may take: a day is fine, and what hangs is ended by HEATLENS_JOB_STALL_S."""
_LONGEST_LOAD_S = LONGEST_S
"""How long loading a model, with its download, is taken for work: as long as for a server that starts."""
_LOAD_LOOK_S = 1.0
_DRAWN_AT_ONCE = 4
_ENDINGS: Mapping[Format, str] = {"jpeg": "jpg", "png": "png", "webp": "webp"}


@dataclass(frozen=True)
class Explained:
    """What the ledger keeps of a picture, and the artifacts by name."""

    result: Mapping[str, Any]
    artifacts: Mapping[str, bytes]


class Watching(Protocol):
    """Hears how the work on one picture goes; what it raises ends the work."""

    def __call__(self, job: Job[Any, Any], /) -> None:
        """Be called now and then while the model works on the picture, or has it waiting."""
        ...

    def loading(self) -> None:
        """Be called each second while the model is being loaded."""
        ...


class Explain(Protocol):
    """Explains one picture; many threads do so at once, and their pictures share the model's batches."""

    def __call__(self, picture: bytes, asked: Asked, number: int, watch: Watching) -> Explained:
        """Return what is kept of the picture with that number; raises what is wrong with it."""
        ...


class ServiceExplain:
    """Explains by the models of this process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._drawing = threading.BoundedSemaphore(_DRAWN_AT_ONCE)
        self._load_ends: WeakKeyDictionary[Owner[Any, Any], float] = WeakKeyDictionary()

    def __call__(self, picture: bytes, asked: Asked, number: int, watch: Watching) -> Explained:
        """Return what is kept of the picture with that number; raises what is wrong with it."""
        self._wait_for_model(asked.options.model or self._service.settings.default_model, watch)
        explained = self._service.explain(picture, asked.options, asked.parameters, watch=watch)
        with self._drawing:  # a batch is answered at once; each of its pictures drawn with all others would be slower
            return draw(explained, asked.options, number)

    def _wait_for_model(self, name: str, watch: Watching) -> None:
        """Return once the model is loaded; raises why it cannot be, and `NotReady` where that takes far too long."""
        owner = self._service.hosts.get(name).owner
        ends = self._load_ends.setdefault(owner, time.monotonic() + _LONGEST_LOAD_S)  # for all its pictures together
        while True:
            try:
                return owner.wait_until_ready(timeout_s=_LOAD_LOOK_S)
            except NotReady:
                if time.monotonic() >= ends:
                    raise
                watch.loading()


def draw(explained: service.Explained, options: JobOptions, number: int) -> Explained:
    """Return what is kept of an explanation: facts, and the artifacts that were asked for."""
    drawing = Drawing(explained, options)
    artifacts: dict[str, bytes] = {}
    explanations = []
    for place, facts in enumerate(drawing.map_facts()):
        names = {}
        if "overlay" in options.artifacts:
            names["overlay"] = artifact_name(number, "overlay", place, _ENDINGS[options.picture_format])
            artifacts[names["overlay"]] = drawing.picture(place, options.picture_format)
        if "map" in options.artifacts:
            names["map"] = artifact_name(number, "map", place, "png")
            artifacts[names["map"]] = drawing.levels(place)
        explanations.append(facts.model_dump(mode="json") | {"artifacts": names})
    together = {}
    if "arrays" in options.artifacts:
        together["arrays"] = f"{number:06d}.npz"
        artifacts[together["arrays"]] = drawing.arrays()
    result = drawing.facts().model_dump(mode="json") | {"explanations": explanations, "artifacts": together}
    return Explained(result, artifacts)


def artifact_name(number: int, kind: str, place: int, ending: str) -> str:
    """Return the name of an artifact of one target, the same whenever the picture is explained."""
    return f"{number:06d}.{kind}{f'-{place}' if place else ''}.{ending}"


def worker_settings(settings: Settings) -> Settings:
    """Return the settings of a service that explains for jobs: no hurry, room for whatever waits, nothing cached."""
    kind = "cpu" if settings.devices == ("cpu",) else "cuda"
    return settings.model_copy(
        update={
            "request_timeout_s": _NO_HURRY_S,
            "method_timeouts_s": {},
            "load_wait_s": _NO_HURRY_S,
            "batch_size": settings.batch_size or AT_ONCE[kind],
            "batch_wait_s": 0.05,
            "queue_size": 10_000,
            "queue_total": 10_000,
            "result_cache_bytes": 0,
        }
    )
