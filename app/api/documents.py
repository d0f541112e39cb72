"""The OpenAPI document of routes that take a picture in three ways, and of the errors that every route can give.

flask-openapi3 describes a route with one kind of body; here the pydantic models that validate the options are
written out for all three.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from flask_openapi3 import OpenAPI
from flask_openapi3.models import Schema
from flask_openapi3.types import ResponseDict
from pydantic import BaseModel

from app.api.requests import TIMEOUT_HEADER
from app.schemas.answers import Problem
from app.schemas.checking import REPEATABLE
from app.security import API_KEY_HEADER, gate

_BINARY = {"type": "string", "format": "binary"}
_PROBLEM = {
    "description": "An error, as RFC 9457 problem details.",
    "content": {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
}
PROBLEMS: ResponseDict = {"default": _PROBLEM, "422": _PROBLEM}
"""Responses of every route."""

_SCHEMES: Mapping[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, as `heatlens keys create` makes it."},
    "api_key": {"type": "apiKey", "in": "header", "name": API_KEY_HEADER, "description": "The same, in other words."},
}
_REFUSALS: Mapping[str, Any] = {
    "401": _PROBLEM | {"description": "Where keys are needed: there is none, or one that is wrong, over or revoked."},
    "403": _PROBLEM | {"description": "The key is for other things, or the server does not allow this at all."},
}
_CONVERTER = re.compile(r"<(?:[^<>]+:)?(\w+)>")

IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The `ETag` of an answer that the client has; if it would be the same again, 304 without a body.",
    "schema": {"type": "string"},
}
_TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "Seconds from now that the client is willing to wait, 504 after them; the server's own limit holds "
    "as well.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def picture_operation(
    options: type[BaseModel],
    *,
    parameters: Mapping[str, Any] | None = None,
    headers: Sequence[Mapping[str, Any]] = (),
    several: bool = False,
) -> dict[str, Any]:
    """Return `parameters` and `requestBody` of a route that takes a picture, or `several`, and these options.

    `parameters` are the JSON Schemas, by name, of what the methods take beside the options; `headers` are what the
    route reads beside those that all such routes read.
    """
    own: dict[str, Any] = options.model_json_schema()["properties"]
    fields = {name: _field(field) for name, field in (own | dict(parameters or {})).items()}
    filled_in = {name: field | _filling(own.get(name, {})) for name, field in fields.items()}
    repeated = {name: {"style": "form", "explode": True} for name in sorted(REPEATABLE & own.keys())}
    image: dict[str, Any] = {"oneOf": [_by("base64"), _by("id")]}
    part: dict[str, Any] = _BINARY
    if several:
        image = {"oneOf": [*image["oneOf"], {"type": "array", "minItems": 1, "items": image}]}
        part = {"type": "array", "minItems": 1, "items": _BINARY}
    return {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": False,
                "description": field.get("description", ""),
                "schema": field,
            }
            for name, field in fields.items()
        ]
        + [_TIMEOUT, *headers],
        "requestBody": {
            "required": True,
            "description": "The picture: JPEG, PNG, WebP, BMP, TIFF or GIF."
            + (" Several: as parts `image`, or as a list in JSON." if several else ""),
            "content": {
                "image/*": {"schema": _BINARY},
                "application/octet-stream": {"schema": _BINARY},
                "multipart/form-data": {"schema": _object(filled_in, image=part), "encoding": repeated},
                "application/json": {"schema": _object(fields, image=image), "example": {"image": {"base64": ""}}},
            },
        },
    }


def _by(name: str) -> dict[str, Any]:
    """Return the schema of a picture in JSON: `base64`, or the `id` of one that `POST /v1/images` keeps."""
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def _field(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an option's schema without its default and without null.

    Clients made from the document would send the defaults of every method, and null as a word; absent is enough.
    """
    field = {name: value for name, value in schema.items() if name != "default"}
    if "anyOf" in field:
        kinds = [kind for kind in field.pop("anyOf") if kind != {"type": "null"}]
        field |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if schema.get("default") is not None:
        field["description"] = f"{field.get('description', '')} Default: {json.dumps(schema['default'])}.".strip()
    return field


def _filling(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a form made from the document is to show in a field: the default, or nothing."""
    return {"default": schema["default"]} if schema.get("default") is not None else {"example": ""}


def picture_responses(answer: type[BaseModel], media_types: Iterable[str], *, cached: bool) -> ResponseDict:
    """Return the success responses of a route that answers a JSON model or a binary format; 304 if it is `cached`."""
    content: dict[str, Any] = {media_type: {"schema": _BINARY} for media_type in media_types}
    content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}
    found: ResponseDict = {"200": {"description": "The answer.", "content": content}}
    not_modified = {"description": "The client has this explanation: `If-None-Match` names its `ETag`."}
    return found | {"304": not_modified} if cached else found


def components(*answers: type[BaseModel]) -> dict[str, Schema]:
    """Return the schemas of models that no route names by itself, and of what they consist of."""
    schemas: dict[str, Any] = {}
    for answer in answers:
        schema = answer.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {answer.__name__: schema}
    return {name: Schema(**schema) for name, schema in schemas.items()}


def operation_id(*, name: str, **_where: object) -> str:
    """Name an operation after its view: clients made from the document call their functions so."""
    return name


def document(app: OpenAPI) -> dict[str, Any]:
    """Return the OpenAPI document of `app`, which says what key each route needs, if keys are needed now."""
    spec: dict[str, Any] = deepcopy(app.api_doc)  # which is made once
    spec["components"]["securitySchemes"] = _SCHEMES
    needed = gate().are_keys_needed()
    for rule in app.url_map.iter_rules():
        path = spec["paths"].get(_CONVERTER.sub(r"{\1}", rule.rule), {})
        for method in (rule.methods or set()) & {name.upper() for name in path}:
            _describe_access(path[method.lower()], gate().alternatives(rule.endpoint), needed=needed)
    return spec


def _describe_access(operation: dict[str, Any], alternatives: list[list[str]], *, needed: bool) -> None:
    if alternatives:
        operation["responses"] |= _REFUSALS
    if needed:
        operation["security"] = [{scheme: scopes} for scopes in alternatives for scheme in _SCHEMES]


def _object(fields: Mapping[str, Any], *, image: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"image": dict(image), **fields},
        "required": ["image"],
        "additionalProperties": False,
    }
