"""The page /models in a real browser: which there are, their layers, and what happens inside of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.app.fading import DEPTH
from tests.app.visits import ANSWER_MS, Visit
from tests.conftest import Server, start_server, stop_server

pytestmark = [pytest.mark.browser, pytest.mark.server]

FADING = """arch = "python:tests.app.fading:Fading"
weights = "random"
[preprocess]
input_size = 32
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the embedded model and one whose gradient vanishes."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "fading.toml").write_text(FADING)
    running = start_server(models_dir=str(folder), workers="1", torch_threads="1", log_level="warning")
    yield running
    stop_server(running)


@pytest.fixture
def page(visit: Visit) -> Visit:
    visit.page.goto(f"{visit.url}/models")
    expect(visit.page.locator("#layers-words")).to_contain_text("layers in the order")
    return visit


def ask(visit: Visit, path: str) -> Any:
    answer = httpx2.get(f"{visit.url}/v1/{path}", timeout=60)
    assert answer.status_code == 200
    return answer.json()


def layer(visit: Visit, path: str) -> Locator:
    """The line of a layer in the tree."""
    return visit.page.locator(f'#tree [title="{path}"]').locator("..")


def column(visit: Visit, table: str, title: str) -> list[str]:
    """What a table shows below a title, from the top."""
    rows = visit.page.locator(f"#{table}-table")
    place = rows.locator("thead th").all_inner_texts().index(title)
    return rows.locator(f"tbody tr > :nth-child({place + 1})").all_inner_texts()


def look_with_sample(visit: Visit, model: str) -> None:
    visit.page.get_by_role("button", name="sample").click()
    expect(visit.page.locator("#look-words")).to_have_text(f"cat.jpg, {model}.", timeout=2 * ANSWER_MS)


def test_a_model_and_its_layers(page: Visit) -> None:
    models = ask(page, "models")["models"]
    missing = sum(model["weights"] == "missing" for model in models)
    shown = page.page
    expect(shown.get_by_role("heading", name="efficientnet_lite0")).to_be_visible()
    expect(shown.locator("#facts")).to_contain_text("ready on cpu")
    expect(shown.locator("#list li")).to_have_count(len(models) - missing)
    expect(shown.locator("#more-count")).to_have_text(f"{missing} more")

    listing = ask(page, "models/efficientnet_lite0/layers")
    names = {row["name"] for row in listing["layers"]}
    expect(layer(page, listing["default"])).to_contain_text("default layer")
    expect(layer(page, "conv_stem")).to_contain_text("Conv2dSame 32 \u00d7 112 \u00d7 112")
    assert names <= {title.get_attribute("title") for title in shown.locator("#tree .layer-name").all()}
    inner = layer(page, "blocks.0.0.conv_dw")
    expect(inner).to_be_hidden()
    for outer in ("blocks", "blocks.0", "blocks.0.0"):  # by the keyboard alone
        layer(page, outer).focus()
        shown.keyboard.press("Enter")
    expect(inner).to_be_visible()
    shown.get_by_role("button", name="Close all").click()
    expect(inner).to_be_hidden()
    shown.get_by_role("button", name="Open all").click()
    expect(inner).to_be_visible()
    page.assert_accessible()
    page.assert_clean()


def test_what_happens_inside_with_a_picture(page: Visit) -> None:
    look_with_sample(page, "efficientnet_lite0")
    shown = page.page
    cat = Path("app/web/static/cat.jpg").read_bytes()
    answers = {
        route: httpx2.post(
            f"{page.url}/v1/diagnostics/{route}", content=cat, headers={"Content-Type": "image/jpeg"}, timeout=60
        ).json()
        for route in ("gradient-flow", "activations")
    }
    flow, activations = answers["gradient-flow"], answers["activations"]
    assert flow["verdict"]["kind"] == "ok"
    expect(shown.locator("#flow-verdict")).to_have_text("The gradient reaches every layer, and nothing stands out.")
    for chart in ("flow-chart", "activations-chart"):
        assert shown.locator(f"#{chart}").evaluate("async (image) => (await image.decode(), image.naturalWidth)") > 0
    expect(shown.get_by_role("img", name="nothing stands out")).to_be_visible()

    for summary in shown.locator("summary", has_text="Table").all():
        summary.click()
    assert column(page, "flow", "Layer") == [row["name"] for row in flow["layers"]]
    dead = shown.get_by_role("button", name="Dead channels")
    dead.click()
    dead.click()
    expect(shown.locator("#activations-table th[aria-sort=descending]")).to_have_text("Dead channels")
    known = [row["dead_channels"] for row in activations["layers"]]
    falling = sorted((count for count in known if count is not None), reverse=True)
    assert column(page, "activations", "Dead channels") == [*map(str, falling), *["\u2013"] * known.count(None)]
    page.assert_accessible()
    page.assert_clean()


def test_a_gradient_that_vanishes_is_marked(page: Visit) -> None:
    shown = page.page
    shown.get_by_role("link", name="fading").click()
    expect(shown.locator("#model-title")).to_be_focused()
    expect(shown.locator("#facts")).to_contain_text("made up, not trained")
    shown.get_by_role("button", name="Load the model").click()
    expect(shown.locator("#layers-title")).to_be_focused()  # the pressed button is gone
    expect(layer(page, "blocks")).to_contain_text("Sequential")
    expect(shown.locator("#facts")).to_contain_text("ready on cpu")
    look_with_sample(page, "fading")
    expect(shown.locator("#flow-verdict")).to_contain_text("The gradient vanishes")
    expect(shown.locator("#flow-reasons li")).not_to_have_count(0)
    shown.locator("#flow summary", has_text="Table").click()
    marked = shown.locator("#flow-table .wrong-row")
    expect(marked.filter(has_text="vanishing")).not_to_have_count(0)
    expect(marked.filter(has_text=f"blocks.{DEPTH - 1}.1")).to_have_count(
        0
    )  # a Sigmoid has no weights that hardly learn
    page.assert_clean()


def test_what_does_not_work_is_said(page: Visit, tmp_path: Path) -> None:
    shown = page.page
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    shown.locator("#file").set_input_files(broken)
    expect(shown.locator("#look-problem")).to_contain_text("broken.png could not be looked at.")
    expect(shown.locator("#flow")).to_be_hidden()

    shown.goto(f"{page.url}/models#model=nothing")
    expect(shown.locator("#model-problem")).to_contain_text("nothing")
    expect(shown.locator("#look")).to_be_hidden()
    page.assert_accessible()
    shown.goto(f"{page.url}/models#model=resnet50")
    expect(shown.locator("#facts")).to_contain_text("not here")
    expect(shown.get_by_role("link", name="resnet50", exact=True)).to_be_visible()  # its list has opened
    expect(shown.locator("#look")).to_be_hidden()
    page.assert_clean(errors=2)


def test_narrow_and_dark(browser: Browser, server: Server) -> None:
    with browser.new_context(color_scheme="dark", viewport={"width": 380, "height": 800}) as context:
        visit = Visit(context.new_page(), server.url)
        visit.page.goto(f"{server.url}/models")
        look_with_sample(visit, "efficientnet_lite0")
        for summary in visit.page.locator("summary", has_text="Table").all():
            summary.click()
        visit.page.get_by_role("button", name="Open all").click()
        assert visit.overflow_px() == 0
        visit.assert_accessible()
        visit.assert_clean()
