"""Embed links: one picture with one explanation, drawn when the link is made, for whoever has the link while it lives.

The token is signed and can be read, so it names neither the picture nor the job, which would open more than the link
is for: it names a row, which knows. Nothing in the URL says what is shown, so nothing there can be changed.
"""

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

import explainers
from app.class_names import most_classes
from app.config import Settings
from app.drawing import Drawing
from app.engine import Watch
from app.errors import (
    BadOption,
    BadRequestBody,
    JobState,
    LimitExceeded,
    SourceUnreadable,
    UnknownItem,
    UnknownJob,
    UnknownLink,
)
from app.imaging import encode
from app.jobs import sources
from app.jobs.artifacts import STORED, result_key
from app.jobs.jobs import Jobs
from app.jobs.options import from_json
from app.jobs.rows import ItemRow, JobRow
from app.jobs.shelf import Kept, Shelf
from app.schemas.checking import check
from app.schemas.embedding import EmbedFacts, EmbedOptions
from app.schemas.options import MapOptions
from app.service import Explained, Service
from app.signing import Signer

PICTURE, IMAGE, HEAT = "picture", "image", "heat"
"""The files of a link: the picture, the picture with its heat, the heat alone."""

_DAY_S = 24 * 3600.0
_OF_DRAWING = frozenset({"colormap", "alpha", "max_side"})
_OF_JOBS = frozenset({"model", "method", "layer"}) | _OF_DRAWING
_OWN = frozenset({"lifetime_s", "job", "item"})
_MEDIA_TYPES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp"}


@dataclass(frozen=True)
class Source:
    """What is to be shown: a picture, where it is from, and how it looked there, with its media type."""

    data: bytes
    image_id: str | None = None
    job_id: str | None = None
    overlay: tuple[bytes, str] | None = None


@dataclass(frozen=True)
class Link:
    """A link that is good."""

    kept: Kept
    facts: EmbedFacts


class Embedding:
    """Makes links and opens them. Where `only_of` returns an owner, others' jobs and links are none to that one."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        jobs: Jobs,
        shelf: Shelf,
        only_of: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._service = service
        self._jobs = jobs
        self._shelf = shelf
        self._only_of = only_of
        self._signer = Signer(settings)

    def make(
        self,
        given: Mapping[str, Any],
        data: bytes | None,
        *,
        image_id: str | None,
        owner: str,
        timeout_s: float | None,
        watch: Watch | None,
    ) -> tuple[str, Link]:
        """Explain a picture, or one of a job, and return the token of a link that shows it.

        Raises what is wrong with the options `given`, what `Service.explain` does, and what `Shelf.put` does.
        """
        options, parameters = self._check(given)
        lifetime_s = self._lifetime_s(options)
        if options.job is None:
            if data is None or options.item is not None:
                msg = 'A link shows a picture, or one of a job: {"job": "...", "item": 0}.'
                raise BadRequestBody(msg, field="job" if options.item is not None else "image")
            source = Source(data, image_id=image_id)
        else:
            if data is not None:
                raise BadRequestBody("A link shows a picture or one of a job, not both.", field="job")
            source, given = self._of_job(options, given)
            options, parameters = self._check(given)
        asked = _asked(options, self._settings.default_model)
        explained = self._service.explain(source.data, asked, parameters, timeout_s=timeout_s, watch=watch)
        files, facts = drawn(explained, asked, source.overlay)
        kept = self._shelf.put(
            "link", files, facts.model_dump(), owner=owner, lifetime_s=lifetime_s,
            image_id=source.image_id, job_id=source.job_id,
        )  # fmt: skip
        return self._signer.sign(kept.id, kept.expires_at), Link(kept, facts)

    def open(self, token: str) -> Link:
        """Return what a token opens; raises `UnknownLink`, which does not say why: forged, over, or gone."""
        kept = self._shelf.get("link", self._signer.link_of(token))  # also of a forged one: no answer comes sooner
        if kept is None or (kept.job_id is not None and not self._is_there(kept.job_id)):
            raise _unknown()
        return Link(kept, EmbedFacts.model_validate(kept.facts))

    def read(self, link: Link, name: str) -> bytes:
        """Return one of the link's files; raises `UnknownLink` where it has gone meanwhile."""
        data = self._shelf.read(link.kept, name)
        if data is None:
            raise _unknown()
        return data

    def revoke(self, token: str) -> None:
        """End a link before its time; raises `UnknownLink` as `open` does."""
        kept = self.open(token).kept
        if self._only_of() not in (None, kept.owner) or not self._shelf.delete("link", kept.id):
            raise _unknown()

    def _check(self, given: Mapping[str, Any]) -> tuple[EmbedOptions, dict[str, Any]]:
        options, parameters = check(EmbedOptions, given, parameters=self._service.catalogue.parameter_schemas())
        if len(options.target) > 1 or most_classes(options.target[0]) > 1:
            raise BadOption("target: a link shows one target; make one link for each.", field="target", limit=1)
        return options, parameters

    def _lifetime_s(self, options: EmbedOptions) -> float:
        limit = self._settings.embed_retention_s
        if options.lifetime_s is None:
            return min(_DAY_S, limit)
        if options.lifetime_s > limit:
            msg = f"lifetime_s is {options.lifetime_s:.15g}, the limit is {limit:.15g} (HEATLENS_EMBED_RETENTION_S)."
            raise LimitExceeded(msg, field="lifetime_s", limit=limit)
        return options.lifetime_s

    def _is_there(self, job_id: str) -> bool:
        try:
            self._jobs.ledger.job(job_id)
        except UnknownJob:
            return False
        return True

    def _of_job(self, options: EmbedOptions, given: Mapping[str, Any]) -> tuple[Source, dict[str, Any]]:
        """Return a job's picture, and what is asked of it: what the job was asked, unless `given` says otherwise."""
        if options.item is None:
            raise BadRequestBody("Say which picture of the job is shown: item, from 0.", field="item")
        job = self._jobs.ledger.job(str(options.job), owner=self._only_of())
        item = self._jobs.ledger.item(job.id, options.item)
        explanation = _explanation(item, given.get("target", [0])[0])
        other = {name: value for name, value in given.items() if name not in _OWN | {"target"}}
        asked = _asked_of_job(job, item, explanation, method=other.get("method"), model=other.get("model"))
        overlay = None if other else self._overlay(job, item, explanation)
        return Source(self._picture(item), job_id=job.id, overlay=overlay), asked | other

    def _picture(self, item: ItemRow) -> bytes:
        """Return what the job explained, and nothing that took its place since."""
        try:
            if item.input.startswith(STORED):
                data = self._jobs.store.read(item.input.removeprefix(STORED))
            else:
                data = sources.read(item.input, self._settings)
        except OSError as error:
            raise SourceUnreadable("The picture of the job cannot be read any more.", field="item") from error
        if hashlib.sha256(data).hexdigest() != item.sha256:
            raise SourceUnreadable("The picture of the job has changed since it was explained.", field="item")
        return data

    def _overlay(self, job: JobRow, item: ItemRow, explanation: Mapping[str, Any]) -> tuple[bytes, str] | None:
        name = explanation["artifacts"].get("overlay")
        if name is None:
            return None
        try:
            return self._jobs.store.read(result_key(job.id, name, item.number)), _MEDIA_TYPES[name.rpartition(".")[2]]
        except OSError as error:
            raise SourceUnreadable("The overlay of the job cannot be read any more.", field="item") from error


def drawn(
    explained: Explained, options: MapOptions, overlay: tuple[bytes, str] | None = None
) -> tuple[dict[str, bytes], EmbedFacts]:
    """Return the files of a link and what is told of them; `overlay` takes the place of the one that would be drawn."""
    drawing = Drawing(explained, options)
    layer = Drawing(explained, options.model_copy(update={"view": "layer", "alpha": 1.0}))
    size = encode.fit(explained.picture.width, explained.picture.height, options.max_side)
    image, image_type = overlay or (drawing.picture(0, "jpeg"), "image/jpeg")
    files = {
        PICTURE: encode.encode(encode.resize(explained.picture.pixels, size), "jpeg"),
        IMAGE: image,
        HEAT: layer.picture(0, "png"),
    }
    return files, _facts(drawing, options, size, image, image_type)


def _facts(drawing: Drawing, options: MapOptions, size: tuple[int, int], image: bytes, image_type: str) -> EmbedFacts:
    (of_map,), facts = drawing.map_facts(), drawing.facts()
    seen = facts.image.seen
    with Image.open(io.BytesIO(image)) as opened:
        image_size = opened.size
    return EmbedFacts(
        model=facts.model.name,
        method=facts.method.name,
        target=of_map.target.index,
        label=of_map.target.label,
        probability=of_map.target.probability,
        versus=of_map.versus.label if of_map.versus else None,
        width=size[0],
        height=size[1],
        image_width=image_size[0],
        image_height=image_size[1],
        image_type=image_type,
        colormap=options.colormap,
        alpha=options.alpha,
        class_specific=facts.method.class_specific,
        no_positive_evidence=of_map.map.no_positive_evidence,
        fails_randomisation=facts.method.fails_randomisation,
        not_seen=(seen.left, seen.top, seen.right, seen.bottom) != (0, 0, facts.image.width, facts.image.height),
    )


def _asked(options: EmbedOptions, default_model: str) -> MapOptions:
    """Return the options of the explanation."""
    asked = options.model_dump(exclude=set(_OWN))
    return MapOptions.model_validate(asked | {"model": options.model or default_model})


def _explanation(item: ItemRow, place: object) -> Mapping[str, Any]:
    """Return one target of a job's picture, by its place; raises `UnknownItem` where there is none."""
    if item.status == "waiting":
        msg = f"Picture {item.number} waits to be explained; make the link when it is done."
        raise JobState(msg, field="item")
    explanations = item.result["explanations"] if item.result else []
    if not explanations:
        raise UnknownItem(f"Picture {item.number} is {item.status}, so there is nothing to show.", field="item")
    if not isinstance(place, int) or not 0 <= place < len(explanations):
        msg = f"Picture {item.number} has no target {str(place)[:100]!r}; it has {len(explanations)}, from 0."
        raise UnknownItem(msg, field="target")
    found: Mapping[str, Any] = explanations[place]
    return found


def _asked_of_job(
    job: JobRow, item: ItemRow, explanation: Mapping[str, Any], *, method: str | None, model: str | None
) -> dict[str, Any]:
    """Return what a job asked of one target.

    With another `method`, its parameters and layers are no part of that. With another `model` its layers are none,
    and classes are told by their labels: the same index may be any class there.
    """
    asked = from_json(job.options)
    said = asked.options.model_dump(include=set(_OF_JOBS), exclude_unset=True)
    versus = explanation["versus"]
    if method is not None and not explainers.get(method).class_specific:
        versus = None  # which such a method does not take
    own = (item.result or {})["model"]["name"]
    by = "index" if model in (None, own) else "label"
    said |= {"target": [explanation["target"][by]], "versus": versus and versus[by], "model": own}
    if by == "label":
        said.pop("layer", None)
    if method in (None, asked.options.method):
        return said | dict(asked.parameters)
    return {name: value for name, value in said.items() if name not in ("method", "layer")}


def _unknown() -> UnknownLink:
    return UnknownLink("This link is not valid, or its time is over, or what it showed was deleted.")
