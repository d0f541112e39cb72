"""Write a page that shows one explanation in three ways; `python3 build.py --help` says how to call it."""

import argparse
import base64
import html
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

HERE = Path(__file__).parent


class Refused(Exception):
    """HeatLens made no links; the text says why."""


def embed(heatlens: str, picture: Path, **options: object) -> dict[str, Any]:
    """Ask HeatLens for links to a picture and its explanation, and return its answer."""
    image = {"base64": base64.b64encode(picture.read_bytes()).decode()}
    body = json.dumps({"image": image, **options}).encode()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("HEATLENS_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = Request(f"{heatlens}/v1/embed-links", body, headers)  # noqa: S310
    try:
        with urlopen(request) as answer:  # noqa: S310
            made: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise Refused(_detail(error)) from error
    except URLError as error:
        raise Refused(f"{heatlens} does not answer: {error.reason}") from error
    return made


def build(picture: Path, folder: Path, heatlens: str) -> None:
    """Write `index.html` and its style into a folder; the page works for a day."""
    made = embed(heatlens, picture)
    page = (HERE / "template.html").read_text()
    parts = made["tags"] | {"caption": html.escape(caption(made)), "heatlens": html.escape(heatlens)}
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(page)
    style = shutil.copy(HERE / "style.css", folder)
    with open(style, "a") as file:
        file.write(f":root {{ --width: {made['width']}; --height: {made['height']}; }}\n")


def caption(made: dict[str, Any]) -> str:
    """Say what was explained."""
    target = made["target"]
    versus = f" rather than {made['versus']}" if made["versus"] else ""
    return f"{target['label']}{versus}, {target['probability']:.1%} by {made['model']}; map by {made['method']}"


def _detail(error: HTTPError) -> str:
    """Return what HeatLens says of an error, or its status where somebody else answers."""
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answers {error.code} {error.reason}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a page that shows one explanation in three ways.")
    parser.add_argument("picture", type=Path)
    parser.add_argument("folder", type=Path, help="where the page is written")
    parser.add_argument("heatlens", nargs="?", default="http://127.0.0.1:8000", help="address of HeatLens")
    asked = parser.parse_args()
    try:
        build(asked.picture, asked.folder, asked.heatlens.rstrip("/"))
    except (Refused, OSError, ValueError) as error:  # ValueError: an address that is none
        sys.exit(f"build.py: {error}")
