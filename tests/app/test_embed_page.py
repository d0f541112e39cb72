"""The example page of another site, in Debian's chromium: picture, frame and component from a real server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, Page, expect

from tests.app.visits import Visit, contrast
from tests.conftest import Server, start_server, stop_server

pytestmark = [pytest.mark.browser, pytest.mark.server]

EXAMPLE = Path(__file__).parents[2] / "examples" / "review-page"
SAMPLE = Path(__file__).parents[2] / "app" / "web" / "static" / "cat.jpg"
OPACITY = "(image) => Number(getComputedStyle(image).opacity)"
UNUSED_PX = "(last) => innerHeight - last.getBoundingClientRect().bottom"
LOADED = "(image) => image.complete && image.naturalWidth > 0"


@dataclass
class Site:
    """A site of its own origin, whose policy allows HeatLens what the example's README says, and nothing else."""

    url: str
    folder: Path
    heatlens: str = ""


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    site = Site("", folder)

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            allowed = f"img-src {site.heatlens}; script-src {site.heatlens}; frame-src {site.heatlens}"
            self.send_header("Content-Security-Policy", f"default-src 'none'; style-src 'self'; {allowed}")
            super().end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}"
        yield site
        server.shutdown()
        thread.join()


@dataclass
class Sites:
    heatlens: str
    listed: Site
    other: Site


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """HeatLens, a site that may show its frames, and another one; both have the example's page."""
    folder = tmp_path_factory.mktemp("review")
    with serving(folder) as listed, serving(folder) as other:
        data = str(tmp_path_factory.mktemp("embed"))
        server: Server = start_server(
            workers="1", torch_threads="1", embed_origins=listed.url, data_dir=data, log_level="warning"
        )
        listed.heatlens = other.heatlens = server.url
        command = [sys.executable, str(EXAMPLE / "build.py"), str(SAMPLE), str(folder), server.url]
        subprocess.run(command, check=True)
        yield Sites(server.url, listed, other)
        stop_server(server)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def visited(page: Page, site: Site) -> Visit:
    visit = Visit(page, site.url)
    page.goto(site.url)
    return visit


def require_loaded(images: Locator) -> None:
    for image in images.all():
        expect(image).to_have_js_property("complete", value=True)
    assert images.evaluate_all(f"(images) => images.length === 2 && images.every({LOADED})")


def slider_moves_the_heat(within: Page | FrameLocator | Locator, heat: Locator) -> None:
    slider = within.get_by_role("slider", name="Heat")
    assert heat.evaluate(OPACITY) == pytest.approx(0.7)
    slider.press("ArrowLeft")
    assert heat.evaluate(OPACITY) == pytest.approx(0.69)
    slider.press("Home")
    assert heat.evaluate(OPACITY) == 0
    assert slider.get_attribute("aria-valuetext") == "0 %"


def test_another_site_shows_an_explanation_in_three_ways(page: Page, sites: Sites) -> None:
    visit = visited(page, sites.listed)
    still = page.locator("main > section > img")
    expect(still).to_have_js_property("complete", value=True)
    assert still.evaluate(LOADED)
    assert "efficientnet_lite0 looked for" in str(still.get_attribute("alt"))

    component = page.locator("heat-lens")
    expect(component.locator("img.heat")).to_have_js_property("complete", value=True)
    require_loaded(component.locator("img"))
    picture, heat = (component.locator("img").nth(place).bounding_box() for place in (0, 1))
    assert picture == pytest.approx(heat, abs=0.1)  # the heat lies on the picture
    slider_moves_the_heat(component, component.locator("img.heat"))
    component.evaluate("(element) => element.setAttribute('opacity', '0.25')")
    expect(component.get_by_role("slider")).to_have_value("25")

    page.locator("iframe").scroll_into_view_if_needed()
    frame = page.frame_locator("iframe")
    expect(frame.locator("#heat")).to_have_js_property("complete", value=True)
    require_loaded(frame.locator(".frame img"))
    slider_moves_the_heat(frame, frame.locator("#heat"))
    expect(frame.get_by_text("efficientnet_lite0; map by gradcam")).to_be_visible()
    expect(frame.get_by_role("img", name="Legend: from weak to strong")).to_be_visible()

    captions = page.locator("main > section .caption").all_inner_texts()
    assert len(captions) == 2  # beside what the frame says itself
    for text in captions:
        assert text.endswith("% by efficientnet_lite0; map by gradcam")
    unused_px = frame.locator("figcaption").evaluate(UNUSED_PX)
    assert 0 <= unused_px < 50  # room for two lines more of words
    visit.assert_accessible()
    assert visit.console == []
    assert page.evaluate("window.violations") == []
    assert page.context.cookies() == []
    from_heatlens = [request for request in visit.requests if request.url.startswith(f"{sites.heatlens}/")]
    assert len(from_heatlens) >= 7  # still, component and its two pictures, frame and its two
    assert not any("cookie" in request.headers for request in from_heatlens)
    _look(page, "listed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_frame_is_legible_and_fits_a_narrow_page(browser: Browser, sites: Sites, scheme: str) -> None:
    frame = str(httpx.get(f"{sites.listed.url}/index.html").text).split('<iframe src="')[1].split('"')[0]
    with browser.new_context(color_scheme=scheme, viewport={"width": 320, "height": 480}) as context:
        visit = Visit(context.new_page(), sites.heatlens)
        visit.page.goto(frame)
        expect(visit.page.locator("#heat")).to_have_js_property("complete", value=True)
        assert visit.overflow_px() <= 0
        assert contrast(visit.page.locator(".words .small")) >= 4.5
        visit.assert_accessible()
        visit.assert_clean()
        assert [request.url for request in visit.requests if "referer" in request.all_headers()] == []
        _look(visit.page, f"frame-{scheme}")


def test_a_site_that_is_not_listed_has_no_frame_but_the_rest(page: Page, sites: Sites) -> None:
    visit = visited(page, sites.other)
    expect(page.locator("heat-lens img.heat")).to_have_js_property("complete", value=True)
    assert page.locator("heat-lens img.heat").evaluate(LOADED)
    page.locator("iframe").scroll_into_view_if_needed()
    expect(page.frame_locator("iframe").locator("#heat")).to_have_count(0)
    assert page.frame_locator("iframe").get_by_role("slider").count() == 0
    assert any("frame-ancestors" in line for line in visit.console), visit.console


def test_a_link_that_is_over_is_told_in_words(page: Page, sites: Sites) -> None:
    page.goto(sites.listed.url)
    component = page.locator("heat-lens")
    good = component.get_attribute("src")
    component.evaluate("(element) => element.setAttribute('src', element.getAttribute('src') + 'x')")
    expect(component.get_by_role("alert")).to_contain_text("its link has expired, or the server does not answer")
    expect(component.get_by_role("slider")).to_have_count(0)
    component.evaluate("(element, src) => element.setAttribute('src', src)", good)
    expect(component.get_by_role("slider")).to_be_visible()
    expect(component.get_by_role("alert")).to_have_count(0)
    page.goto(f"{sites.heatlens}/embed/nothing")
    expect(page.get_by_role("alert")).to_contain_text("This link is not valid, or its time is over")


def test_the_page_is_not_built_without_a_word(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("no picture")
    for arguments, words in (
        ([], "usage: build.py"),
        ([tmp_path / "words.txt", tmp_path, sites.heatlens], "The content is not a picture in a supported format"),
        ([SAMPLE, tmp_path, "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        ([tmp_path / "nothing.jpg", tmp_path], "nothing.jpg"),
        ([SAMPLE, tmp_path, "words"], "words"),
    ):
        done = subprocess.run([sys.executable, EXAMPLE / "build.py", *arguments], capture_output=True, text=True)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "index.html").exists()


def _look(page: Page, name: str) -> None:
    """Keep a screenshot where somebody wants to look at it."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)
