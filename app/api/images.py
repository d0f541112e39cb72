"""`/v1/images`: pictures that are sent once and named afterwards."""

from datetime import UTC, datetime

from flask import Response, request
from flask_openapi3 import APIBlueprint, Tag
from flask_openapi3.types import ResponseDict

from app.api.documents import PROBLEMS, operation_id, picture_operation
from app.api.requests import read_picture
from app.images import Images
from app.jobs.shelf import Kept
from app.schemas.checking import check
from app.schemas.embedding import ImageAnswer, ImageOptions, ImagePath, ShownQuery
from app.security import caller

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_SHOWN: ResponseDict = {
    "200": {"description": "The picture.", "content": {"image/jpeg": _BINARY, "image/png": _BINARY}},
    "304": {"description": "The client has it: `If-None-Match` names its `ETag`."},
}


def blueprint(images: Images) -> APIBlueprint:
    """Return the routes."""
    api = APIBlueprint(
        "images",
        __name__,
        url_prefix="/v1/images",
        operation_id_callback=operation_id,
        abp_tags=[Tag(name="embedding")],
        abp_responses=PROBLEMS,
    )

    def keep_image() -> Response:
        """Keep a picture for a while; its id goes wherever a picture goes in JSON: `{"image": {"id": ...}}`."""
        data, raw = read_picture()
        options, _ = check(ImageOptions, raw)
        kept = images.keep(data, owner=caller(), expires_in_s=options.expires_in_s)
        response = _answer(kept, 201)
        response.headers["Location"] = f"/v1/images/{kept.id}"
        return response

    api.post("", openapi_extensions=picture_operation(ImageOptions), responses={201: ImageAnswer})(keep_image)
    # `curl -T cat.jpg URL` sends a PUT.
    api.put("", doc_ui=False)(keep_image)

    @api.get("/<id>", responses={200: ImageAnswer})
    def image_facts(path: ImagePath) -> Response:
        """Describe a picture that is kept."""
        return _answer(images.get(path.id), 200)

    @api.get("/<id>/picture", responses=_SHOWN)
    def image_picture(path: ImagePath, query: ShownQuery) -> Response:
        """Return a picture that is kept, encoded anew: without what else was in its file."""
        kept = images.get(path.id)
        tag = f"{kept.facts['sha256'][:32]}-{query.max_side}-{query.format}"
        if request.if_none_match.contains_weak(tag):
            response = Response(status=304)
        else:
            content = images.shown(path.id, max_side=query.max_side, format_=query.format)
            response = Response(content, content_type=f"image/{query.format}")
        response.headers["Cache-Control"] = "private, no-cache"
        response.set_etag(tag)
        return response

    @api.delete("/<id>", responses={204: None})
    def delete_image(path: ImagePath) -> Response:
        """Delete a picture that is kept; embed links that were made of it by its id end with it."""
        images.delete(path.id)
        return Response(status=204)

    return api


def _answer(kept: Kept, status: int) -> Response:
    answer = ImageAnswer(
        id=kept.id,
        expires_at=datetime.fromtimestamp(kept.expires_at, UTC),
        width=kept.facts["width"],
        height=kept.facts["height"],
        size_bytes=kept.size_bytes,
    )
    response = Response(answer.model_dump_json(), status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
