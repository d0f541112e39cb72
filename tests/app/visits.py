"""What the tests of the page share: a page under observation, and what WCAG says of its colours."""

import base64
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Locator, Page, Request, expect

ANSWER_MS = 30_000

COUNT_POLICY_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@dataclass
class Visit:
    """A page under observation. `console` holds its errors, `requests` all that it asked for."""

    page: Page
    url: str
    console: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(ANSWER_MS)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("console", lambda message: self.console.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.add_init_script(COUNT_POLICY_VIOLATIONS)

    @property
    def classes(self) -> Locator:
        return self.page.get_by_role("list", name="Classes").locator(".class")

    @property
    def heat(self) -> Locator:
        return self.page.locator("#heat")

    @property
    def explained(self) -> list[dict[str, list[str]]]:
        """The options of each request to /v1/explain."""
        urls = [urlsplit(request.url) for request in self.requests]
        return [parse_qs(url.query) for url in urls if url.path == "/v1/explain"]

    def give(self, path: Path) -> None:
        self.page.locator("#file").set_input_files(path)

    def await_answer(self) -> None:
        expect(self.page.locator("#app")).to_have_attribute("data-state", "done")
        expect(self.heat).to_be_visible()

    def sample(self) -> None:
        self.page.get_by_role("button", name="sample").click()
        self.await_answer()

    def shape(self) -> float:
        """Return width / height of the picture as it is shown; the heat has to lie exactly on it."""
        picture, heat = self.page.locator("#picture").bounding_box(), self.heat.bounding_box()
        assert picture
        assert picture == heat
        return picture["width"] / picture["height"]

    def picture_pixel(self, x: float, y: float) -> list[int]:
        """Return RGB of the picture that is shown, at a place given in shares of its sides."""
        script = """(canvas, [x, y]) => [...canvas.getContext("2d").getImageData(
            Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data].slice(0, 3)"""
        pixel: list[int] = self.page.locator("#picture").evaluate(script, [x, y])
        return pixel

    def heat_opacity(self, x: float, y: float) -> int:
        """Return the opacity in [0, 255] of the chosen layer itself, at a place given in shares of its sides."""
        with Image.open(io.BytesIO(base64.b64decode(self.source().partition(",")[2]))) as layer:
            assert layer.mode == "RGBA"
            return int(layer.getpixel((int(x * layer.width), int(y * layer.height)))[3])  # type: ignore[index]

    def source(self) -> str:
        source = self.heat.get_attribute("src")
        assert source
        return source

    def overflow_px(self) -> int:
        overflow: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return overflow

    def assert_accessible(self) -> None:
        """Nothing that axe calls serious or critical, of the page as it is now."""
        found = Axe().run(self.page).response["violations"]
        grave = [violation for violation in found if violation["impact"] in ("serious", "critical")]
        told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in grave]
        assert told == []

    def assert_clean(self, *, errors: int = 0) -> None:
        """Nothing from another host, nothing against the policy, and `errors` failed requests in the console."""
        foreign = [r.url for r in self.requests if not r.url.startswith((self.url, "data:image/", "blob:"))]
        assert foreign == []
        assert self.page.evaluate("window.violations") == []
        assert len(self.console) == errors, self.console


def background(element: Locator) -> tuple[int, ...]:
    """Return RGB of what lies under an element's text: its own ground or the nearest one around it."""
    found: str = element.evaluate(
        """(element) => {
          const own = (e) => getComputedStyle(e).backgroundColor;
          while (own(element) === "rgba(0, 0, 0, 0)") element = element.parentElement;
          return own(element);
        }"""
    )
    return tuple(map(int, re.findall(r"\d+", found)[:3]))


def luminance(colour: tuple[int, ...]) -> float:
    """Return the relative luminance of an sRGB colour, by WCAG 2.2's definition."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(element: Locator) -> float:
    """Return the contrast ratio of an element's text to its ground, by WCAG 2.2's definition."""
    ink: str = element.evaluate("(element) => getComputedStyle(element).color")
    pair = (luminance(tuple(map(int, re.findall(r"\d+", ink)[:3]))), luminance(background(element)))
    return (max(pair) + 0.05) / (min(pair) + 0.05)
