"""`heatlens diagnose randomisation`: whether maps show what the model has learnt."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import tables
from app.cli.console import fail, watched
from app.cli.options import AsJson
from app.cli.pictures import methods_of, pictures_of, read
from app.cli.service import service_here

if TYPE_CHECKING:
    from app.engine import Watch
    from app.records import SanityRecord
    from app.service import Service

_SAMPLES = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
"""Pictures of scikit-image that show something which classifiers know."""


def randomisation(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model name, see `heatlens models list`.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method name, see `heatlens methods`; repeatable; all: every one. Default: gradcam."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder with pictures; default: five of scikit-image's.", file_okay=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many pictures at most, drawn at random.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the made-up weights and of the drawn pictures.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say whether a method's maps change when the model forgets what it has learnt; if not, they do not show it.

    The weights are made up layer by layer, from the score downwards, in this process alone.

    What is found is remembered in HEATLENS_DATA_DIR, and shown with the model.
    """
    from app.known_errors import KNOWN_ERRORS

    names = methods_of(method or ["gradcam"])
    pictures = _samples() if images is None else [images / name for name in pictures_of(images, limit, seed)]
    service = service_here(model, method_timeouts_s={})
    found: dict[str, SanityRecord] = {}
    failed: dict[str, str] = {}
    with closing(service):
        data = read(pictures)
        try:
            service.records.prepare()
        except OSError as error:
            fail(f"What is found cannot be kept in HEATLENS_DATA_DIR: {error}", code=1)
        for name, watch in watched(names, "randomising"):
            try:
                found[name], fingerprint = _sanity(service, model, name, data, seed, watch)
                service.records.remember(fingerprint, name, found[name])
            except KNOWN_ERRORS as error:
                failed[name] = str(error)
            except OSError as error:  # what was found is told all the same
                failed[name] = f"What was found is not remembered: {error}"
    if as_json:
        tables.print_json({"model": model, "sanity": found, "failed": failed})
    else:
        tables.print_sanity(found, failed)
    raise typer.Exit(1 if failed else 0)


def _samples() -> list[Path]:
    import skimage

    return [Path(skimage.__file__).parent / "data" / name for name in _SAMPLES]


def _sanity(
    service: "Service", model: str, method: str, pictures: Sequence[bytes], seed: int, watch: "Watch"
) -> "tuple[SanityRecord, str]":
    """Return what was found of one method, and the model's fingerprint."""
    from app.diagnosing import Diagnostics
    from app.records import SanityRecord, StageRecord

    answer, task, loaded = Diagnostics(service).randomisation(pictures, model, method, seed=seed, watch=watch)
    record = SanityRecord(
        verdict=answer.verdict,
        words=answer.words,
        stages=tuple(StageRecord(layers=stage.layers, similarity=stage.similarity) for stage in answer.stages),
        pictures=answer.pictures,
        seed=seed,
        parameters=dict(task.parameters),
        layers=tuple(task.layers),
        measured_at=datetime.now(UTC),
        version=version("heatlens"),
    )
    return record, loaded.fingerprint
