"""One description of the parameters that methods share by name, each with its own default and bounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

_BOUNDS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "minimum": min,
    "exclusiveMinimum": min,
    "maximum": max,
    "exclusiveMaximum": max,
}


def merged(methods: Mapping[str, Mapping[str, Schema]]) -> dict[str, Schema]:
    """Return, for the parameters of all methods by name, a schema that admits what any of the methods admits.

    Its description says which methods take the parameter, and what it means, allows and defaults to in each of them.
    """
    takers: dict[str, dict[str, Schema]] = {}
    for method, parameters in methods.items():
        for name, schema in parameters.items():
            takers.setdefault(name, {})[method] = schema
    return {name: _merged(schemas) for name, schemas in takers.items()}


def allowed(schema: Schema) -> str:
    """Say in a few words what a parameter may be: its choices, or its bounds."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    low = [f"above {schema['exclusiveMinimum']}"] if "exclusiveMinimum" in schema else []
    low += [f"from {schema['minimum']}"] if "minimum" in schema else []
    high = [f"below {schema['exclusiveMaximum']}"] if "exclusiveMaximum" in schema else []
    high += [f"to {schema['maximum']}"] if "maximum" in schema else []
    return " ".join(low + high)


def shown(value: object) -> str:
    """Return a value in a few characters: one seventh has too many digits to be looked at."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _merged(schemas: Mapping[str, Schema]) -> Schema:
    widest = _widest(list(schemas.values()))
    return widest | {"description": _words(schemas, known=widest.get("enum"))}


def _widest(schemas: Sequence[Schema]) -> Schema:
    widest: Schema = {key: schemas[0][key] for key in ("title", "type", "anyOf") if key in schemas[0]}
    for bound, choose in _BOUNDS.items():
        if all(bound in schema for schema in schemas):
            widest[bound] = choose([schema[bound] for schema in schemas])
    if all("enum" in schema for schema in schemas):
        widest["enum"] = list(dict.fromkeys(choice for schema in schemas for choice in schema["enum"]))
    return widest


def _words(schemas: Mapping[str, Schema], known: object) -> str:
    """Return one paragraph for all methods that agree in meaning, bounds and default, and so on.

    Choices are told only where they are not those that everybody knows.
    """
    alike: dict[str, list[str]] = {}
    for method, schema in schemas.items():
        limits = allowed(schema) if known is None or schema.get("enum") != known else ""
        default = f"; default {shown(schema['default'])}" if "default" in schema else ""
        words = f"{schema.get('description', '')}{f' ({limits})' if limits else ''}{default}."
        alike.setdefault(words, []).append(method)
    return "\n\n".join(f"{', '.join(methods)}: {words}" for words, methods in alike.items())
