"""A service that needs keys, in this process, and its routes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from app.config import Settings
from app.keys import Keys

_SAMPLES = {"model": "small", "id": "nothing", "token": "nothing", "number": "0", "_version": "1", "name": "a.jpg"}
_VARIABLE = re.compile(r"<(?:[^<>]+:)?(\w+)>")


@dataclass
class Guarded:
    """An app whose data folder has keys, by name; `texts` are what they were shown as."""

    app: Flask
    keys: Keys
    texts: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def make(self, name: str, *scopes: str, lifetime_s: float | None = None) -> None:
        key, self.texts[name] = self.keys.create(name, scopes, lifetime_s=lifetime_s)
        self.ids[name] = key.id

    def client(self, key: str | None = None) -> FlaskClient:
        client = self.app.test_client()
        if key is not None:
            client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {self.texts[key]}"
        return client


def guarded(folder: Path, **settings: object) -> Guarded:
    """An app with one key for each scope, named after it."""
    chosen = Settings(data_dir=folder, torch_threads=1, **({"load_wait_s": 60} | settings))
    app = create_app(chosen)
    made = Guarded(app, app.extensions["heatlens_keys"])  # which knows at once what it made and revoked
    for scope in ("explain", "jobs", "admin"):
        made.make(scope, scope)
    return made


def routes(app: Flask) -> Iterator[tuple[str, str, str]]:
    """Every method and path, with something in the place of each variable, and its endpoint; not what Flask adds."""
    for rule in app.url_map.iter_rules():
        samples = _SAMPLES | {"filename": "css/swagger-ui.css" if "swagger" in rule.rule else "style.css"}
        path = _VARIABLE.sub(lambda found, of=samples: of[found[1]], rule.rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            yield method, path, rule.endpoint


def error_code(response: TestResponse) -> str | None:
    """The code of a problem; None for what is none."""
    return response.json.get("code") if response.is_json and isinstance(response.json, dict) else None
