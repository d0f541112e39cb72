"""The page at `/`, `/docs` and `/docs/errors`, in Debian's chromium against a real server."""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Route, expect

from tests.app.visits import Visit, background, contrast, luminance
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]

CATS = {"Egyptian cat", "tabby", "tiger cat"}

GIVE = """
(target, [kind, name, type, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, { type }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
  target.dispatchEvent(event);
}
"""


TWO_FILES = """
() => {
  const transfer = new DataTransfer();
  for (const name of ["first.png", "second.png"]) transfer.items.add(new File([], name, { type: "image/png" }));
  return transfer;
}
"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("no picture")
    return path


@pytest.fixture
def quarters(tmp_path: Path) -> "Quarters":
    return Quarters(tmp_path)


@dataclass
class Quarters:
    """A 48 x 32 picture, red only in its top left quarter, in several files."""

    folder: Path

    def save(self, name: str, *, turned: bool = False, **options: object) -> Path:
        """Save it; `turned`: as a camera held upright does, lying, with EXIF orientation 6 (turn it clockwise)."""
        picture = Image.new("RGB", (48, 32), "blue")
        picture.paste("red", (0, 0, 24, 16))
        if turned:
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif
        picture.save(self.folder / name, **options)  # type: ignore[arg-type]
        return self.folder / name


def test_the_sample_shows_five_classes_the_cats_first(visit: Visit) -> None:
    visit.sample()
    labels = visit.page.locator(".class .label").all_inner_texts()
    shares = [float(text.strip("<> %")) for text in visit.page.locator(".class .probability").all_inner_texts()]
    assert len(labels) == 5
    assert set(labels[:3]) == CATS
    assert shares == sorted(shares, reverse=True)
    expect(visit.page.get_by_role("status")).to_have_text(re.compile(f"Best guess: {labels[0]}, {shares[0]}%"))
    (asked,) = visit.explained
    assert {name: value for name, value in asked.items() if name != "target"} == {
        "format": ["json"],
        "view": ["layer"],
        "alpha": ["1"],
        "values": ["true"],
    }
    assert {"281", "282", "285"} == set(asked["target"][:3])  # the cats
    visit.assert_clean()


def test_bars_are_as_long_as_the_classes_are_probable(visit: Visit) -> None:
    visit.sample()
    track, bar = visit.page.locator(".track").first.bounding_box(), visit.page.locator(".bar").first.bounding_box()
    share = float(visit.page.locator(".probability").first.inner_text().strip("%")) / 100
    assert track
    assert bar
    assert bar["width"] / track["width"] == pytest.approx(share, abs=0.002)  # shown to 0.1%, drawn to part of a pixel


def test_choosing_a_class_shows_its_layer(visit: Visit) -> None:
    visit.sample()
    sources = []
    for index in range(5):
        chosen = visit.classes.nth(index)
        chosen.click()
        expect(chosen).to_have_attribute("aria-pressed", "true")
        expect(visit.page.locator("[aria-pressed=true]")).to_have_count(1)
        expect(visit.page.locator("#note")).to_contain_text(chosen.locator(".label").inner_text())
        sources.append(visit.source())
    assert len(set(sources)) == 5
    assert len(visit.explained) == 1  # all five came with the first answer
    visit.assert_clean()


def test_the_slider_sets_the_opacity_of_the_heat(visit: Visit) -> None:
    visit.sample()
    for percent in ("0", "35", "100"):
        visit.page.get_by_label("Opacity", exact=True).fill(percent)
        expect(visit.heat).to_have_css("opacity", f"{int(percent) / 100:g}")
        expect(visit.page.locator("#opacity-value")).to_have_text(f"{percent}%")


def test_the_legend_runs_through_the_default_colormap(visit: Visit) -> None:
    visit.sample()
    gradient = visit.page.get_by_role("img", name="Legend")
    expect(gradient).to_be_visible()
    colours = re.findall(r"rgb\((\d+), (\d+), (\d+)\)", gradient.evaluate("e => getComputedStyle(e).backgroundImage"))
    # Ends and middle of matplotlib's inferno, _cm_listed.py, in 1/255: entries 0, 127.5 and 255.
    assert [tuple(map(int, colour)) for colour in (colours[0], colours[5], colours[10])] == [
        (0, 0, 4),
        (188, 55, 84),
        (252, 255, 164),
    ]


def test_the_margin_is_named_where_there_is_one(visit: Visit, tmp_path: Path) -> None:
    # efficientnet_lite0 looks at the middle 224/256 of the shorter side: 1/16 is left out at each of its ends.
    visit.sample()
    expect(visit.page.get_by_text("The model did not look at the hatched margin.")).to_be_visible()
    assert visit.heat_opacity(0.01, 0.5) > 127
    one = tmp_path / "one.png"
    Image.new("RGB", (1, 1), "red").save(one)
    visit.give(one)
    expect(visit.page.get_by_role("status")).to_contain_text("one.png")
    visit.await_answer()
    expect(visit.page.get_by_text("The model did not look")).to_be_visible(visible=False)


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_may_be_dropped_or_pasted(visit: Visit, kind: str) -> None:
    picture = (PICTURES / "chelsea.png").read_bytes()
    visit.page.locator("body").evaluate(GIVE, [kind, "cat.png", "image/png", base64.b64encode(picture).decode()])
    visit.await_answer()
    assert visit.shape() == pytest.approx(451 / 300, rel=0.01)
    assert set(visit.page.locator(".class .label").all_inner_texts()[:3]) == CATS
    visit.assert_clean()


def test_a_bad_file_is_explained_and_the_next_good_one_works(visit: Visit, notes: Path) -> None:
    visit.sample()
    visit.give(notes)
    expect(visit.page.locator("#problem")).to_contain_text("notes.txt could not be explained.")
    expect(visit.page.locator("#problem")).to_contain_text("JPEG, PNG, WebP, BMP, TIFF, GIF")
    expect(visit.heat).to_be_hidden()
    expect(visit.classes).to_have_count(0)
    visit.give(PICTURES / "coffee.png")
    visit.await_answer()
    expect(visit.page.locator("#problem")).to_be_hidden()
    expect(visit.classes.first).to_contain_text("espresso")
    visit.assert_clean(errors=1)  # chromium's own line about the 415


def test_an_empty_file_and_a_dropped_link_are_explained(visit: Visit, tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    visit.give(empty)
    expect(visit.page.get_by_role("alert")).to_contain_text("The file is empty.")
    nothing = visit.page.evaluate_handle("new DataTransfer()")
    visit.page.locator("body").dispatch_event("drop", {"dataTransfer": nothing})
    expect(visit.page.get_by_role("alert")).to_contain_text("That was no file.")
    two = visit.page.evaluate_handle(TWO_FILES)
    visit.page.locator("body").dispatch_event("drop", {"dataTransfer": two})
    expect(visit.page.get_by_role("alert")).to_contain_text("first.png could not be explained. The file is empty.")
    expect(visit.page.locator("#several")).to_have_text("Of 2 files, the first is shown here; Batch takes all of them.")
    assert visit.explained == []
    visit.assert_clean()


def test_a_server_that_asks_for_less_haste_can_be_tried_again(visit: Visit) -> None:
    problem = json.dumps({"code": "rate_limited", "detail": "That was too much at once."})

    def refuse(route: Route) -> None:
        route.fulfill(status=429, content_type="application/problem+json", body=problem)

    visit.page.route("**/v1/predict*", refuse, times=1)
    visit.page.get_by_role("button", name="sample").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("That was too much at once.")
    visit.page.get_by_role("button", name="Try again").click()
    visit.await_answer()
    visit.assert_clean(errors=1)


def test_a_server_out_of_reach_can_be_tried_again(visit: Visit) -> None:
    def fail(route: Route) -> None:
        route.abort("connectionrefused")

    visit.page.route("**/v1/predict*", fail)
    visit.page.get_by_role("button", name="sample").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("the server is out of reach")
    visit.page.unroute("**/v1/predict*", fail)
    visit.page.get_by_role("button", name="Try again").click()
    visit.await_answer()
    expect(visit.page.locator("#problem")).to_be_hidden()
    visit.assert_clean(errors=1)


def test_an_answer_that_was_cut_off_can_be_asked_for_again(visit: Visit) -> None:
    def cut_off(route: Route) -> None:
        route.fulfill(content_type="application/json", body='{"image": {')

    visit.page.route("**/v1/predict*", cut_off)
    visit.page.get_by_role("button", name="sample").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("cut off")
    visit.page.unroute("**/v1/predict*", cut_off)
    visit.page.get_by_role("button", name="Try again").click()
    visit.await_answer()
    visit.assert_clean()


def test_the_last_of_two_pictures_wins(visit: Visit) -> None:
    visit.give(PICTURES / "chelsea.png")
    visit.give(PICTURES / "coffee.png")
    visit.await_answer()
    expect(visit.classes.first).to_contain_text("espresso")
    expect(visit.classes).to_have_count(5)
    visit.assert_clean()


def test_another_class_joins_the_list(visit: Visit) -> None:
    visit.sample()
    field = visit.page.get_by_label("Another class")
    field.press_sequentially("tiger s")
    expect(visit.page.locator("#labels [role=option]")).to_have_count(
        1
    )  # of the 1000 labels only "tiger shark" holds it
    field.fill("tiger shark")
    field.press("Enter")
    expect(visit.classes).to_have_count(6)
    expect(visit.classes.last).to_have_attribute("aria-pressed", "true")
    expect(visit.page.locator("#note")).to_contain_text("tiger shark")
    field.fill("tabby")  # one of the five: nothing to add
    field.press("Enter")
    expect(visit.classes.filter(has_text="tabby")).to_have_attribute("aria-pressed", "true")
    expect(visit.classes).to_have_count(6)
    visit.assert_clean()


def test_a_class_that_does_not_exist_leaves_the_answer_alone(visit: Visit) -> None:
    visit.sample()
    visit.page.get_by_label("Another class").fill("tiger shork")
    visit.page.get_by_role("button", name="Show").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("did you mean 'tiger shark'")
    expect(visit.classes).to_have_count(5)
    expect(visit.heat).to_be_visible()
    visit.assert_clean(errors=1)


def test_no_evidence_is_said_in_words(visit: Visit) -> None:
    picture = (PICTURES / "chelsea.png").read_bytes()
    tens = ("&".join(f"target={index}" for index in range(start, start + 10)) for start in range(0, 1000, 10))
    for targets in tens:
        url = f"{visit.url}/v1/explain?format=json&{targets}"
        answer = visit.page.request.post(url, data=picture, headers={"Content-Type": "image/png"}).json()
        found = [e["target"]["label"] for e in answer["explanations"] if e["map"]["no_positive_evidence"]]
        if found:
            break
    visit.give(PICTURES / "chelsea.png")
    visit.await_answer()
    visit.page.get_by_label("Another class").fill(found[0])
    visit.page.get_by_role("button", name="Show").click()
    expect(visit.page.locator("#note")).to_contain_text(f"Nothing in this map speaks for {found[0]}")
    assert visit.heat_opacity(0.5, 0.5) == 0


@pytest.mark.parametrize(
    ("name", "requests"),
    [("turned.jpg", 1), ("turned.png", 1), ("turned.webp", 2), ("turned.tiff", 2)],  # 2: the server has to draw it
)
def test_the_heat_lies_on_the_picture_as_it_is_to_be_seen(
    visit: Visit, quarters: Quarters, name: str, requests: int
) -> None:
    # Turned clockwise, the red top left quarter of a 48 x 32 picture is the top right one of a 32 x 48 picture.
    visit.give(quarters.save(name, turned=True))
    visit.await_answer()
    assert visit.shape() == pytest.approx(32 / 48, rel=0.01)
    red, green, blue = visit.picture_pixel(0.75, 0.25)
    assert red > 200 > 50 > max(green, blue)
    red, green, blue = visit.picture_pixel(0.25, 0.25)
    assert blue > 200 > 50 > max(red, green)
    assert len(visit.explained) == requests
    visit.assert_clean()


def test_a_moving_picture_stands_still(visit: Visit, quarters: Quarters) -> None:
    later = [Image.new("RGB", (48, 32), "lime")]
    visit.give(quarters.save("moving.gif", save_all=True, append_images=later, duration=20, loop=0))
    visit.await_answer()
    red, green, _ = visit.picture_pixel(0.25, 0.25)
    assert red > 200 > 50 > green


def test_transparent_parts_are_white_as_the_model_saw_them(visit: Visit, tmp_path: Path) -> None:
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (32, 32), (0, 0, 0, 0)).save(clear)
    visit.give(clear)
    visit.await_answer()
    assert visit.picture_pixel(0.5, 0.5) == [255, 255, 255]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_on_a_narrow_screen(visit: Visit, notes: Path, scheme: str) -> None:
    visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    visit.page.set_viewport_size({"width": 380, "height": 760})
    assert visit.overflow_px() == 0
    visit.sample()
    assert visit.overflow_px() == 0
    for selector in ("body", "#verdict", "#note", "#facts", ".class", ".legend", ".button", "nav a", "#opacity-value"):
        assert contrast(visit.page.locator(selector).first) >= 4.5, selector  # WCAG 2.2, 1.4.3
    visit.give(notes)
    expect(visit.page.locator("#problem")).to_be_visible()
    assert contrast(visit.page.locator("#problem")) >= 4.5
    assert visit.overflow_px() == 0


def test_the_scheme_follows_the_system(visit: Visit) -> None:
    visit.page.emulate_media(color_scheme="light")
    assert luminance(background(visit.page.locator("body"))) > 0.8
    visit.page.emulate_media(color_scheme="dark")
    assert luminance(background(visit.page.locator("body"))) < 0.05


@pytest.mark.parametrize("size", [(900, 1), (1, 900)])
def test_a_picture_of_any_shape_can_be_looked_at(visit: Visit, tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "thin.png"
    Image.new("RGB", size, "red").save(path)
    visit.give(path)
    visit.await_answer()
    box = visit.page.locator("#picture").bounding_box()
    assert box
    assert min(box["width"], box["height"]) == pytest.approx(24, abs=1)
    assert visit.overflow_px() == 0
    assert box["x"] >= 0  # its beginning is there, the rest scrolls


def test_everything_works_with_the_keyboard_alone(visit: Visit) -> None:
    press = visit.page.keyboard.press

    def focused() -> str | None:
        identity: str | None = visit.page.evaluate("document.activeElement.id || document.activeElement.className")
        return identity

    def tab_to(wanted: str) -> None:
        for _ in range(15):
            press("Tab")
            if focused() == wanted:
                return
        pytest.fail(f"the tab key does not reach {wanted}")

    with visit.page.expect_file_chooser() as chooser:
        tab_to("file")  # in here: right after it is told to, the browser may not intercept the dialog yet
        press("Space")
    chooser.value.set_files(PICTURES / "chelsea.png")
    visit.await_answer()
    tab_to("opacity")
    press("End")
    expect(visit.heat).to_have_css("opacity", "1")
    tab_to("class")
    first = visit.source()
    press("ArrowDown")
    expect(visit.classes.nth(1)).to_be_focused()
    expect(visit.classes.nth(1)).to_have_attribute("aria-pressed", "true")
    assert visit.source() != first
    press("Tab")  # the chosen class cannot be set against itself: the next one follows
    press("Enter")
    expect(visit.classes.nth(2)).to_have_attribute("aria-pressed", "true")
    for _ in range(5):
        press("ArrowUp")
    expect(visit.classes.nth(0)).to_be_focused()
    assert visit.source() == first
    visit.assert_clean()


def test_the_documentation_loads_the_openapi_document(visit: Visit) -> None:
    visit.page.get_by_role("link", name="HTTP interface").click()
    route = visit.page.locator(".opblock-summary-path[data-path='/v1/explain']")
    expect(route).to_be_visible()
    assert f"{visit.url}/openapi.json" in [request.url for request in visit.requests]
    route.click()
    expect(visit.page.get_by_text("Returns a heatmap")).to_be_visible()
    visit.assert_clean()


def test_the_page_of_errors_explains_each_code(visit: Visit) -> None:
    visit.page.goto(f"{visit.url}/docs/errors#unknown_option")
    row = visit.page.locator("#unknown_option")
    expect(row).to_be_in_viewport()
    expect(row).to_contain_text("422")
    visit.page.set_viewport_size({"width": 380, "height": 760})
    assert visit.overflow_px() == 0
    visit.page.get_by_role("link", name="HeatLens").click()
    expect(visit.page.get_by_role("button", name="sample")).to_be_visible()
    visit.assert_clean()


@pytest.mark.parametrize("content_type", ["multipart/form-data", "image/*"])
def test_the_documentation_can_be_tried_out_as_it_stands(visit: Visit, content_type: str) -> None:
    """What the page fills in by itself is a valid request."""
    visit.page.goto(f"{visit.page.url}docs")
    route = visit.page.locator(".opblock", has_text="/v1/explain").first
    route.locator(".opblock-summary").click()
    route.get_by_role("button", name="Try it out").click()
    route.locator(".opblock-section-request-body select").first.select_option(content_type)
    route.locator("input[type=file]").set_input_files(PICTURES / "chelsea.png")
    with visit.page.expect_response("**/v1/explain*") as answer:
        route.get_by_role("button", name="Execute").click()
    assert answer.value.status == 200
