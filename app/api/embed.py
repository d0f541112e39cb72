"""`/v1/embed-links`, which makes links, and `/embed`, where they lead: for pages of other sites."""

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, render_template, request, send_from_directory
from flask_openapi3 import APIBlueprint, Tag
from markupsafe import Markup

from app.api.answering import patience
from app.api.documents import PROBLEMS, operation_id, picture_operation
from app.api.requests import read_sent
from app.embedding import HEAT, IMAGE, PICTURE, Embedding, Link
from app.errors import BadRequestBody, JobsUnavailable, OutOfSpace, UnknownLink
from app.imaging.colormaps import COLORMAPS
from app.problems import status_of
from app.schemas.embedding import EmbedAnswer, EmbedFacts, EmbedOptions, EmbedTags, EmbedTarget, EmbedUrls, LinkPath
from app.security import caller, require_scope
from app.service import Service
from app.sites import HOST

_WEB = Path(__file__).parents[1] / "web"
_FILES = {"heat-lens.js": "embed", "frame.js": "embed", "frame.css": "embed", "icon.svg": "static"}
"""What is served beside the links, so that readers need to reach nothing else; each in its folder."""
_MOST_PORT = 65535
_CACHED_S = 3600
_CONTROLS_PX = 150
"""What the frame shows below the picture."""
_STOPS = 9
_IMG = Markup('<img src="{}" alt="{}" width="{}" height="{}">')
_FRAME = Markup('<iframe src="{}" title="{}" width="{}" height="{}" loading="lazy"></iframe>')
_COMPONENT = Markup('<script type="module" src="{}"></script>\n<heat-lens src="{}" opacity="{}" alt="{}"></heat-lens>')
"""Tags; what is filled in is escaped."""


def blueprint(embedding: Embedding, service: Service) -> APIBlueprint:
    """Return the route that makes links."""
    api = APIBlueprint(
        "embed",
        __name__,
        url_prefix="/v1",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="embedding")],
        abp_responses=PROBLEMS,
    )

    public_url = service.settings.public_url

    def embed_link() -> Response:
        """Make links that show one explanation in other pages, for a while."""
        sent = read_sent()
        base = public_url or _asked_for()  # before anything is drawn or kept
        if "job" in sent.options:
            require_scope("jobs")
        if len(sent.pictures) > 1:
            msg = f"The request has {len(sent.pictures)} pictures; a link shows one."
            raise BadRequestBody(msg, field="image", limit=1)
        data = sent.pictures[0] if sent.pictures else None
        token, link = embedding.make(sent.options, data, image_id=sent.image_id, owner=caller(), **patience())
        answer = _answer(base, token, link)
        response = Response(answer.model_dump_json(), 201, content_type="application/json")
        response.headers["Cache-Control"] = "no-store"
        return response

    api.post(
        "/embed-links",
        description="Explains a picture, or one of a job, and answers links for pages of other sites, which show that "
        "and nothing else to whoever has them. What they show is drawn now; it ends with the link, with the kept "
        "picture (`image.id`) or the job that it is of. For one of a job the key needs the scope `jobs`, too.",
        openapi_extensions=_operation(service.catalogue.parameter_schemas()),
        responses={201: EmbedAnswer},
    )(embed_link)
    # `curl -T cat.jpg URL` sends a PUT.
    api.put("/embed-links", doc_ui=False)(embed_link)

    @api.delete("/embed-links/<token>", responses={204: None})
    def delete_embed_link(path: LinkPath) -> Response:
        """End a link before its time; a browser may show what it has for up to an hour more."""
        embedding.revoke(path.token)
        return Response(status=204)

    return api


def links(embedding: Embedding, origins: tuple[str, ...]) -> Blueprint:
    """Return the routes to which links lead; pages of `origins` may show them in a frame."""
    pages = Blueprint("embedded", __name__, url_prefix="/embed", template_folder=_WEB / "templates")
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors " + " ".join(["'self'", *origins])
    )

    @pages.after_request
    def allow_others(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @pages.get("/<token>")
    def frame(token: str) -> Response:
        try:
            link = embedding.open(token)
        except (UnknownLink, JobsUnavailable, OutOfSpace) as error:
            page = render_template("embed.html", facts=None, fault=str(error))
            response = Response(page, status_of(type(error)))
            if "retry_after_s" in error.extra:
                response.headers["Retry-After"] = str(error.extra["retry_after_s"])
            return response
        facts = link.facts
        page = render_template("embed.html", facts=facts, token=token, words=_words(facts), stops=_stops(facts))
        return Response(page)

    for name in (IMAGE, PICTURE, HEAT):
        pages.add_url_rule(f"/<token>/{name}", name, _view(embedding, name))

    def file(name: str) -> Response:
        """Answer a part of the frame, or the component, which pages of any site may run: it holds nothing secret."""
        response = send_from_directory(_WEB / _FILES[name], name)
        response.headers["Access-Control-Allow-Origin"] = "*"  # modules are asked for in this way
        return response

    for name in _FILES:
        pages.add_url_rule(f"/{name}", "file", file, defaults={"name": name})
    return pages


def _view(embedding: Embedding, name: str) -> Any:
    def view(token: str) -> Response:
        link = embedding.open(token)
        tag = hashlib.sha256(f"{link.kept.id}/{name}".encode()).hexdigest()[:32]
        if request.if_none_match.contains_weak(tag):
            response = Response(status=304)
        else:
            response = Response(embedding.read(link, name), content_type=_media_type(link.facts, name))
        left_s = int(link.kept.expires_at - time.time())
        response.headers["Cache-Control"] = f"private, max-age={max(0, min(left_s, _CACHED_S))}"
        response.set_etag(tag)
        return response

    return view


def _media_type(facts: EmbedFacts, name: str) -> str:
    return {PICTURE: "image/jpeg", HEAT: "image/png"}.get(name, facts.image_type)


def _asked_for() -> str:
    """Return where the request was sent to, by its own words; raises `BadRequestBody` where they make no URL."""
    host = request.headers.get("Host", "")
    found = HOST.fullmatch(host)
    if not found or int(found["port"] or 0) > _MOST_PORT:
        msg = f"Host is {host[:100]!r}, which makes no address for links; or the operator sets HEATLENS_PUBLIC_URL."
        raise BadRequestBody(msg, field="Host")
    return f"{request.scheme}://{host}"


def _answer(base: str, token: str, link: Link) -> EmbedAnswer:
    frame, facts = f"{base}/embed/{token}", link.facts
    script, words = f"{base}/embed/heat-lens.js", _words(facts)
    return EmbedAnswer(
        token=token,
        expires_at=datetime.fromtimestamp(int(link.kept.expires_at), UTC),
        model=facts.model,
        method=facts.method,
        target=EmbedTarget(index=facts.target, label=facts.label, probability=facts.probability),
        versus=facts.versus,
        width=facts.width,
        height=facts.height,
        urls=EmbedUrls(frame=frame, image=f"{frame}/{IMAGE}", picture=f"{frame}/{PICTURE}", heat=f"{frame}/{HEAT}"),
        tags=EmbedTags(
            img=_IMG.format(f"{frame}/{IMAGE}", words, facts.image_width, facts.image_height),
            frame=_FRAME.format(frame, words, facts.width, facts.height + _CONTROLS_PX),
            component=_COMPONENT.format(script, frame, facts.alpha, words),
        ),
    )


def _words(facts: EmbedFacts) -> str:
    """Say what is seen, in words that are true of every method: not each tells evidence from what only counts."""
    if not facts.class_specific:
        return f"Where {facts.model} looked"
    against = f" rather than {facts.versus}" if facts.versus else ""
    return f"Where {facts.model} looked for {facts.label}{against}"


def _stops(facts: EmbedFacts) -> list[tuple[float, str]]:
    """Return the colours of the legend, each with its place in [0, 1]."""
    table = COLORMAPS[facts.colormap]
    places = [step / (_STOPS - 1) for step in range(_STOPS)]
    return [(place, "#" + bytes(table[round(255 * place)]).hex()) for place in places]


def _operation(parameters: dict[str, Any]) -> dict[str, Any]:
    operation = picture_operation(EmbedOptions, parameters=parameters)
    body = operation["requestBody"]
    body["content"]["application/json"]["schema"]["required"] = []  # `job` and `item` in the place of the picture
    body["content"]["application/json"]["example"] = {"job": "", "item": 0}
    return operation
