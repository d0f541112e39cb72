"""The stage and what belongs to it: views, read-out, two classes, suggestions, the grid, the layers, models."""

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Locator, Route, expect

from app.imaging.colormaps import COLORMAPS
from app.imaging.render import fade
from tests.app.visits import Visit, contrast
from tests.conftest import start_server, stop_server
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]

CHELSEA = PICTURES / "chelsea.png"

DRAW = """
async ([values, image, fading]) => {
  const { decode, paint } = await import("/static/console/heat.js");
  const canvas = paint(document.createElement("canvas"), decode(values, image), { fading });
  return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
}
"""


PLAY_STOP_PLAY = """
() => {
  const [name, button] = ["layer-name", "play"].map((id) => document.getElementById(id));
  window.told = [];
  const note = (records) => records.forEach(({ addedNodes: [text] }) => window.told.push(text.data));
  new MutationObserver(note).observe(name, { childList: true });
  for (let press = 0; press < 3; press += 1) button.click();
}
"""


def explain(visit: Visit, **options: object) -> dict[str, Any]:
    """What the server answers to chelsea.png when asked as the page asks."""
    drawn = {"format": "json", "view": "layer", "alpha": 1, "values": "true", **options}
    answer = visit.page.request.post(
        f"{visit.url}/v1/explain",
        params=drawn,  # type: ignore[arg-type]
        data=CHELSEA.read_bytes(),
        headers={"Content-Type": "image/png"},
    )
    assert answer.ok, answer.text()
    found: dict[str, Any] = answer.json()
    return found


def numbers(values: dict[str, Any]) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(values["base64"]), "<f4").reshape(values["height"], values["width"])


def chelsea(visit: Visit) -> None:
    visit.give(CHELSEA)
    visit.await_answer()


def open_part(visit: Visit, name: str) -> Locator:
    part = visit.page.locator(f"#{name}")
    part.locator("> summary").click()
    return part


def test_heat_that_is_drawn_here_is_that_of_the_server(visit: Visit) -> None:
    """But for a value that two ways of rounding put one level apart: there the colours are those of neighbours."""
    answer = explain(visit, max_side=256)
    (explanation,), image = answer["explanations"], answer["image"]
    with Image.open(io.BytesIO(base64.b64decode(explanation["picture"]["base64"]))) as layer:
        server = np.asarray(layer, np.int16)
    height, width = server.shape[:2]
    opaque, fading = (
        np.reshape(visit.page.evaluate(DRAW, [explanation["values"], image, fades]), (height, width, 4))
        for fades in (False, True)
    )
    left, right = (round(image["seen"][side] * width / image["width"]) for side in ("left", "right"))
    top, bottom = (round(image["seen"][side] * height / image["height"]) for side in ("top", "bottom"))
    inside = np.s_[top + 2 : bottom - 2, left + 2 : right - 2]  # off the line that the server draws around it
    colour_step = np.abs(np.diff(COLORMAPS["inferno"].astype(np.int16), axis=0)).max()
    opacity = np.rint(255 * fade(np.linspace(0, 1, 256, dtype=np.float32)))
    assert np.abs(opaque[inside][..., :3] - server[inside][..., :3]).max() <= colour_step
    assert np.abs(fading[inside][..., 3] - server[inside][..., 3]).max() <= np.diff(opacity).max()
    assert (opaque[..., 3] == 255).all()
    assert np.ptp(opaque[inside][..., 0]) > 200  # it is a map, not one colour


def test_original_overlay_and_heat_by_pointer_and_key(visit: Visit) -> None:
    chelsea(visit)
    picture, colours = visit.page.locator("#picture"), visit.page.locator("#colours")

    def shows(*, original: bool, heat: bool, alone: bool) -> None:
        for element, seen in ((picture, original), (visit.heat, heat), (colours, alone)):
            expect(element).to_have_css("visibility", "visible" if seen else "hidden")

    shows(original=True, heat=True, alone=False)
    visit.page.get_by_text("Original", exact=True).click()
    shows(original=True, heat=False, alone=False)
    for key, view in (("3", "Heat"), ("o", "Original"), ("2", "Overlay"), ("h", "Heat")):
        visit.page.keyboard.press(key)
        expect(visit.page.get_by_role("radio", name=view, exact=True)).to_be_checked()
    shows(original=False, heat=False, alone=True)
    visit.classes.first.press("o")  # outside the stage, the keys are somebody else's
    visit.page.get_by_label("Another class").press_sequentially("vo1")  # there it is a text
    expect(visit.page.get_by_role("radio", name="Heat", exact=True)).to_be_checked()
    visit.assert_clean()


def test_the_read_out_tells_pixel_and_value(visit: Visit) -> None:
    answer = explain(visit, target="predicted")
    values, image = numbers(answer["explanations"][0]["values"]), answer["image"]
    chelsea(visit)
    frame, readout = visit.page.locator("#frame"), visit.page.locator("#readout")
    expect(readout).to_contain_text("Point at the picture")
    box = frame.bounding_box()
    assert box
    # 60% and 40% of the sides: within what the model sees, away from its edges.
    frame.hover(position={"x": 0.6 * box["width"], "y": 0.4 * box["height"]})
    expect(readout).to_contain_text("of full heat")
    told = re.search(r"Pixel (\d+), (\d+) \(red (\d+), green (\d+), blue (\d+)\): value (\S+),", readout.inner_text())
    assert told
    column, row = int(told[1]), int(told[2])
    assert [column, row] == pytest.approx([0.6 * image["width"], 0.4 * image["height"]], abs=1)
    height, width = values.shape
    near = values[
        int((row - 1) * height / image["height"]) : int((row + 2) * height / image["height"]) + 1,
        int((column - 1) * width / image["width"]) : int((column + 2) * width / image["width"]) + 1,
    ]
    value = float(told[6].replace("\u2212", "-"))
    assert near.min() - 0.005 * abs(near.min()) <= value <= near.max() + 0.005 * abs(near.max())  # three digits
    with Image.open(CHELSEA) as original:
        assert tuple(map(int, told.groups()[2:5])) == original.convert("RGB").getpixel((column, row))
    # By keyboard, from there to the left edge, which this model does not see.
    frame.focus()
    for _ in range(31):  # 60% of the side, in steps of a fiftieth
        visit.page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text(re.compile(r"^Pixel 0, .*the model did not look here"))
    visit.assert_clean()


def test_the_legend_has_the_scale_in_numbers(visit: Visit) -> None:
    chelsea(visit)
    scale = explain(visit)["explanations"][0]["values"]["scale"]
    told = visit.page.locator("#strong").inner_text()
    assert float(told.split()[0]) == pytest.approx(scale, rel=0.005)  # three digits
    assert told.endswith("strong evidence")


def test_why_this_and_not_that(visit: Visit) -> None:
    chelsea(visit)
    first, second = (visit.classes.nth(place).evaluate("row => row.target") for place in (0, 1))
    against = visit.page.get_by_role("button", name=f"and not {second['label']}")
    against.click()
    expect(visit.page.locator("#asked")).to_have_text(f"Why {first['label']} and not {second['label']}?")
    expect(visit.page.locator("#note")).to_contain_text(f"{first['label']} and not {second['label']}")
    asked = explain(visit, target=first["index"], versus=second["index"])
    assert visit.source().endswith(asked["explanations"][0]["picture"]["base64"])
    visit.classes.nth(1).click()  # that one itself: it is not set against itself
    expect(visit.page.locator("#asked")).to_be_hidden()
    expect(against).to_be_hidden()
    expect(visit.page.locator("#note")).to_contain_text(f"speak for {second['label']}.")
    visit.page.get_by_role("button", name=f"and not {first['label']}").click()
    expect(visit.page.locator("#asked")).to_contain_text(f"and not {first['label']}?")
    visit.page.locator("#how > summary").click()
    visit.page.get_by_role("radio", name="eigencam", exact=True).check()  # asks for no class
    expect(visit.page.locator("#note")).to_contain_text("the same for all")
    expect(visit.page.locator("#asked")).to_be_hidden()
    expect(visit.page.locator(".against:visible")).to_have_count(0)
    visit.assert_clean()


def test_the_last_query_wins_and_a_suggestion_is_chosen_by_keyboard(visit: Visit) -> None:
    chelsea(visit)
    held: list[Route] = []
    visit.page.route(re.compile(r"/labels\?query=sha&"), lambda route: held.append(route))
    field, options = visit.page.get_by_role("combobox", name="Another class"), visit.page.locator("#labels li")
    with visit.page.expect_request(re.compile("query=sha&")):
        field.press_sequentially("sha")
    field.press_sequentially("rk")
    expect(options.filter(has_text="tiger shark")).to_have_count(1)
    late = '{"model": "efficientnet_lite0", "total": 1, "labels": [{"index": 1, "label": "late"}]}'
    held[0].fulfill(status=200, content_type="application/json", body=late)
    field.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == options.first.get_attribute("id")
    expect(options.filter(has_text="late")).to_have_count(0)
    field.press("Escape")
    expect(field).to_have_attribute("aria-expanded", "false")
    field.press("ArrowDown")
    expect(options.filter(has_text="tiger shark")).to_have_count(1)
    visit.assert_accessible()
    label = options.first.inner_text()
    field.press("ArrowDown")
    field.press("Enter")
    expect(visit.classes.last).to_contain_text(label)
    expect(visit.classes.last).to_have_attribute("aria-pressed", "true")
    expect(field).to_have_value("")
    visit.assert_clean()


def test_a_grid_of_methods_and_classes_on_one_scale(visit: Visit) -> None:
    chelsea(visit)
    part = open_part(visit, "compare")
    part.get_by_role("checkbox", name="attention_rollout").check()  # the model has no attention
    part.get_by_role("checkbox", name="eigencam", exact=True).check()  # asks for no class
    part.get_by_role("button", name="Compare").click()
    cells = part.locator("#grid td:has(canvas)")
    expect(part.locator("#grid-state")).to_have_text("5 of 6 maps are there.")
    captions = cells.locator(".small")
    by_row = {row.locator("th").inner_text(): row for row in part.locator("#grid tbody tr").all()}
    assert by_row.keys() == {"gradcam", "layercam", "eigencam", "attention_rollout"}
    expect(by_row["attention_rollout"].locator(".fails")).to_contain_text("no attention")
    assert by_row["eigencam"].locator("td").evaluate_all("cells => cells.map((cell) => cell.colSpan)") == [2]

    def scales() -> list[float]:
        found = [re.search(r"full heat from (\S+)$", text) for text in captions.all_inner_texts()]
        return [float(scale[1]) for scale in found if scale]

    own = scales()
    target = visit.classes.first.evaluate("row => row.target.index")
    expected = explain(visit, target=target, method="layercam")["explanations"][0]["values"]["scale"]
    layercam = by_row["layercam"].locator(".small").first.inner_text().split()[-1]
    assert float(layercam) == pytest.approx(expected, rel=0.005)  # three digits
    assert len(set(own)) > 1
    part.get_by_role("checkbox", name="One scale").check()
    assert scales() == [max(own)] * 5
    visit.assert_accessible()
    visit.assert_clean(errors=1)  # chromium's own line about the 422


def test_a_grid_has_a_limit_and_can_be_stopped(visit: Visit) -> None:
    chelsea(visit)
    part = open_part(visit, "compare")
    expect(part.locator("#grid-classes input")).to_have_count(5)
    for box in part.locator("#grid-classes input").all():
        box.check()
    button, layers = part.get_by_role("button", name="Compare"), part.get_by_label("Layers (none chosen")
    expect(part.locator("#grid-count")).to_have_text("10 maps.")  # gradcam, layercam; 5 classes
    layers.select_option(["bn1", "blocks.0", "bn2"])
    expect(part.locator("#grid-count")).to_have_text("30 maps are more than the 24 that one grid may have.")
    expect(button).to_be_disabled()
    layers.select_option(["blocks.6", "bn2"])  # a map of the 320 channels of the first takes seconds
    part.get_by_role("checkbox", name="gradcam", exact=True).uncheck()
    part.get_by_role("checkbox", name="layercam").uncheck()
    part.get_by_role("checkbox", name="scorecam").check()
    button.click()
    expect(part.locator("#grid-state")).to_have_text("Map 1 of 10…")
    part.get_by_role("button", name="Stop").click()
    expect(button).to_be_focused()
    expect(part.locator("#grid-state")).to_have_text("Stopped: 0 of 10 maps are there.")
    assert part.locator("#grid tbody th .small").all_inner_texts() == ["blocks.6", "bn2"]  # as deep as they lie
    button.click()
    expect(part.locator("#grid-state")).to_have_text("Map 1 of 10…")
    visit.give(PICTURES / "coffee.png")
    expect(visit.classes.first).to_contain_text("espresso")
    visit.await_answer()
    expect(part.locator("#grid-state")).to_have_text("")
    expect(part.get_by_role("button", name="Stop")).to_be_hidden()
    visit.assert_clean()


def test_layers_from_the_first_to_the_last(visit: Visit) -> None:
    listed = visit.page.request.get(f"{visit.url}/v1/models/efficientnet_lite0/layers").json()["layers"]
    spatial = [layer["name"] for layer in listed if layer["spatial"]]
    assert len(spatial) > 16
    chelsea(visit)
    part = open_part(visit, "depth")
    slider, note, name = part.get_by_role("slider", name="Layer"), part.locator("#depth-note"), part.locator("output")
    expect(note).to_have_text(f"{spatial[-1]}: 7 by 7 cells.")
    asked = len(visit.explained)
    slider.press("Home")
    expect(name).to_have_text(f"{spatial[0]}, 1 of 16")
    # 224 pixels behind a stride of 2
    expect(note).to_contain_text("112 by 112 cells")
    assert visit.explained[-1]["layer"] == [spatial[0]]
    assert visit.explained[-1]["target"] == visit.explained[0]["target"][:1]
    slider.press("End")  # seen before
    expect(note).to_contain_text("7 by 7 cells")
    assert len(visit.explained) == asked + 1
    visit.assert_accessible()
    slider.press("ArrowLeft")
    slider.press("ArrowLeft")
    expect(name).to_contain_text("14 of 16")
    visit.page.evaluate(PLAY_STOP_PLAY)
    expect(name).to_contain_text("16 of 16")
    expect(part.get_by_role("button", name="Play")).to_be_visible()  # it has come to its end
    assert [each.split()[-3] for each in visit.page.evaluate("window.told")] == ["14", "14", "15", "16"]
    canvas = part.locator("#depth-map")
    strong = canvas.evaluate("canvas => canvas.toDataURL()")
    visit.page.get_by_label("Opacity", exact=True).fill("10")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != strong
    # Another question: what was drawn for the one before is gone at once.
    assert (
        visit.page.evaluate(
            "document.querySelectorAll('.against')[1].click(), document.getElementById('depth-map').width"
        )
        == 1
    )
    labels = visit.page.locator(".class .label").all_inner_texts()
    expect(note).to_contain_text(f"{labels[0]} and not {labels[1]}")
    visit.page.locator("#how > summary").click()
    visit.page.get_by_role("radio", name="saliency", exact=True).check()
    expect(part.locator("#depth-hint")).to_contain_text("saliency looks at no layer, so gradcam is used")
    visit.assert_clean()


def test_a_model_without_layers_that_keep_the_picture_has_no_depth(visit: Visit) -> None:
    visit.page.route("**/layers", lambda route: route.fulfill(json={"default": None, "layers": []}))
    chelsea(visit)
    part = open_part(visit, "depth")
    expect(part.locator("#depth-note")).to_contain_text("No layer of this model")
    expect(part.get_by_role("button", name="Play")).to_be_disabled()
    expect(part.get_by_role("slider", name="Layer")).to_be_disabled()
    expect(part.locator("#layer-name")).to_have_text("")


def test_a_model_that_is_being_loaded_is_waited_for(visit: Visit) -> None:
    tries: list[str] = []

    def loading(route: Route) -> None:
        tries.append(route.request.url)
        if len(tries) > 1:
            route.fallback()
            return
        problem = '{"code": "model_loading", "detail": "Model \'m\' is still being loaded."}'
        route.fulfill(status=503, headers={"Retry-After": "1"}, content_type="application/problem+json", body=problem)

    visit.page.route("**/v1/predict*", loading)
    visit.give(CHELSEA)
    expect(visit.page.locator("#verdict")).to_have_text("Model 'm' is still being loaded.")
    visit.await_answer()
    assert len(tries) == 2
    visit.assert_clean(errors=1)  # chromium's own line about the 503


@pytest.fixture
def zoo_visit(browser: Browser, models_dir: Path) -> Iterator[Visit]:
    server = start_server(workers="1", torch_threads="1", log_level="warning", models_dir=str(models_dir))
    try:
        with browser.new_context() as context:
            visit = Visit(context.new_page(), server.url)
            visit.page.goto(server.url)
            yield visit
    finally:
        stop_server(server)


def test_another_model_is_chosen_from_those_that_can_answer(zoo_visit: Visit) -> None:
    visit = zoo_visit
    models = visit.page.request.get(f"{visit.url}/v1/models").json()["models"]
    able = [model["name"] for model in models if model["weights"] != "missing"]
    chelsea(visit)
    choice = visit.page.get_by_label("Model", exact=True)
    expect(choice.locator("option")).to_have_text(able)
    assert len(able) > 1
    choice.select_option("always_nan")  # whose answers are refused
    expect(visit.page.get_by_role("alert")).to_contain_text("chelsea.png could not be explained.")
    choice.select_option("small")  # which has four classes
    visit.await_answer()
    visit.page.locator("#how > summary").click()
    visit.page.locator("#fine-tuning > summary").click()
    listed = visit.page.locator("#layers option")

    def layers(model: str) -> list[str]:
        found = visit.page.request.get(f"{visit.url}/v1/models/{model}/layers").json()["layers"]
        return [layer["name"] for layer in reversed(found) if layer["spatial"]]

    expect(listed).to_have_count(len(layers("small")))
    choice.select_option("efficientnet_lite0")
    expect(listed).to_have_count(len(layers("efficientnet_lite0")))
    assert listed.evaluate_all("options => options.map(({ value }) => value)") == layers("efficientnet_lite0")
    choice.select_option("small")
    expect(listed).to_have_count(len(layers("small")))
    visit.await_answer()
    expect(visit.page.get_by_role("alert")).to_be_hidden()
    expect(visit.page.locator("#model-words")).to_contain_text("Its weights are made up")
    expect(visit.classes).to_have_count(4)
    expect(visit.page.locator("#facts")).to_contain_text("Model small, method gradcam")
    assert visit.explained[-1]["model"] == ["small"]
    visit.assert_accessible()
    visit.assert_clean(errors=1)  # chromium's own line about the refused answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_on_a_narrow_screen(visit: Visit, scheme: str) -> None:
    visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    visit.page.set_viewport_size({"width": 380, "height": 760})
    visit.assert_accessible()
    chelsea(visit)
    visit.page.locator("#how > summary").click()
    compare = open_part(visit, "compare")
    compare.get_by_role("button", name="Compare").click()
    open_part(visit, "depth")
    open_part(visit, "share").get_by_role("button", name="curl").click()
    expect(compare.locator("#grid-state")).to_contain_text("4 of 4")
    visit.page.locator(".against").nth(1).click()
    expect(visit.page.locator("#depth-note")).to_contain_text("cells")
    visit.await_answer()
    visit.assert_accessible()
    assert visit.overflow_px() == 0
    for selector in ("#readout", "#asked", ".against", ".against[aria-pressed=true]", "#grid th", "#layer-name"):
        assert contrast(visit.page.locator(selector).first) >= 4.5, selector
    visit.assert_clean()
