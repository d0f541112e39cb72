"""A ledger and a store filled by hand, as workers would have filled them, for the tests of what reads them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.config import Settings
from app.jobs.artifacts import Store, result_key
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.ledger import Ledger
from app.jobs.rows import NewItem, Outcome
from app.schemas.answers import ClassScore, ImageInfo, MapFacts, MapInfo, MethodRef, ModelRef, Prediction, Seen

FAULT = {"code": "corrupt_image", "detail": "It is damaged."}
LABELS = ["ant", "bee", "cat"]


@dataclass(frozen=True)
class Book:
    settings: Settings
    ledger: Ledger
    store: Store

    def submit(self, names: Sequence[str], *, owner: str = "127.0.0.1", webhook: str | None = None) -> str:
        job_id = self.ledger.open(owner=owner)
        self.ledger.add(job_id, 0, [NewItem(name, f"store:{name}", size_bytes=10) for name in names])
        return self.ledger.submit(job_id, name="mine", options={"method": "gradcam"}, webhook=webhook).id

    def succeed(self, job_id: str, *numbers: int, targets: Sequence[int] = (2,), probability: float = 0.5) -> None:
        """Explain pictures: the bytes of each file are its own name."""
        outcomes = []
        for number in numbers:
            for name in file_names(number, len(targets)):
                self.store.write(result_key(job_id, name, number), name.encode())
            outcomes.append(Outcome(number, sha256=f"{number:064x}", result=result(number, targets, probability)))
        self.ledger.record(job_id, outcomes)

    def fail(self, job_id: str, *numbers: int) -> None:
        self.ledger.record(job_id, [Outcome(number, error=FAULT) for number in numbers])


@contextmanager
def opened(settings: Settings) -> Iterator[Book]:
    database = Database(settings)
    database.migrate()
    yield Book(settings, Ledger(database, ShardQueue(database), shard_pictures=100), Store(settings))
    database.close()


def file_names(number: int, targets: int = 1) -> list[str]:
    """The names of a picture's files, as the contract between worker and reader has them."""
    places = ["", *(f"-{place}" for place in range(1, targets))]
    return [name for k in places for name in (f"{number:06d}.overlay{k}.jpg", f"{number:06d}.map{k}.png")]


def result(number: int, targets: Sequence[int] = (2,), probability: float = 0.5) -> dict[str, Any]:
    info = MapInfo(
        min=0,
        max=1,
        mean=0.5,
        width=7,
        height=7,
        no_positive_evidence=False,
        normalisation="max",
        completeness_gap=None,
    )
    explanations = [
        MapFacts(
            target=ClassScore(index=index, label=LABELS[index], score=1.5, probability=probability),
            versus=None,
            map=info,
        ).model_dump()
        | {"artifacts": {"overlay": overlay, "map": map_}}
        for index, overlay, map_ in zip(
            targets, file_names(number, len(targets))[::2], file_names(number, len(targets))[1::2], strict=True
        )
    ]
    return {
        "model": ModelRef(name="small", weights_sha256=None, weights="random").model_dump(),
        "method": MethodRef(name="gradcam", parameters={}, class_specific=True).model_dump(),
        "layers": ["second"],
        "image": ImageInfo(width=32, height=24, seen=Seen(left=0, top=0, right=32, bottom=24)).model_dump(),
        "predictions": [Prediction(index=2, label="cat", probability=probability).model_dump()],
        "explanations": explanations,
        "artifacts": {},
    }
