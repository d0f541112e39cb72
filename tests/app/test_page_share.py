"""What leaves the page: commands, programs, tags, files, and a link that brings the view back."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Route, expect

from tests.app.visits import Visit
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]

CHELSEA = PICTURES / "chelsea.png"


class Share:
    """The open part of the page where things are copied and downloaded."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.page = visit.page
        self.text = self.page.get_by_label("To copy")
        self.words = self.page.locator("#snippet-words")

    def copy(self, kind: str, expected: re.Pattern[str]) -> str:
        self.page.get_by_role("button", name=kind, exact=True).click()
        expect(self.text).to_have_value(expected)
        return self.text.input_value()


@pytest.fixture
def share(visit: Visit, tmp_path: Path) -> Share:
    picture = tmp_path / "my cat's.png"  # a name that a shell has to be told apart
    picture.write_bytes(CHELSEA.read_bytes())
    visit.give(picture)
    visit.await_answer()
    visit.page.locator("#share > summary").click()
    return Share(visit)


def fail(route: Route) -> None:
    route.abort("connectionrefused")


def set_up(visit: Visit) -> list[str]:
    """Choose another method, the second class and what it is set against; returns the labels of the two."""
    visit.page.locator("#how > summary").click()
    visit.page.get_by_role("radio", name="layercam", exact=True).check()
    visit.classes.nth(1).click()
    visit.page.locator(".against").nth(2).click()
    labels = [visit.classes.nth(place).locator(".label").inner_text() for place in (1, 2)]
    expect(visit.page.locator("#note")).to_contain_text(f"{labels[0]} and not {labels[1]}")
    return labels


def test_the_command_and_the_program_do_what_the_page_shows(share: Share, tmp_path: Path) -> None:
    set_up(share.visit)
    share.page.get_by_label("Opacity", exact=True).fill("50")
    command = share.copy("curl", re.compile("^curl"))
    for option in ("method=layercam", "alpha=0.5", "target=", "versus="):
        assert option in command
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    by_curl = tmp_path / "my cat's.heat.jpg"
    with Image.open(by_curl) as made:
        assert (made.format, made.size) == ("JPEG", (451, 300))
    expected = by_curl.read_bytes()
    by_curl.unlink()
    program = share.copy("Python", re.compile("^from app.client import HeatLens"))
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env={"PYTHONPATH": str(Path.cwd())})
    assert by_curl.read_bytes() == expected
    share.visit.assert_accessible()
    share.visit.assert_clean()


def test_files_hold_what_is_shown(share: Share) -> None:
    def downloaded(name: str) -> tuple[str, bytes]:
        with share.page.expect_download() as download:
            share.page.get_by_role("button", name=name).click()
        return download.value.suggested_filename, download.value.path().read_bytes()

    for name, format_, extension in (("JPEG", "JPEG", "jpg"), ("PNG", "PNG", "png")):
        suggested, content = downloaded(name)
        assert suggested == f"my cat's.heat.{extension}"
        with Image.open(io.BytesIO(content)) as picture:
            assert (picture.format, picture.size) == (format_, (451, 300))
    words = share.page.locator("#download-words")
    expect(words).to_have_text("Download the overlay:")
    share.page.locator("#frame").press("3")
    expect(words).to_have_text("Download the heat alone:")
    downloaded("PNG")
    assert share.visit.explained[-1]["view"] == ["heatmap"]
    _, content = downloaded("npz")
    target = share.visit.classes.first.evaluate("row => row.target.index")
    with np.load(io.BytesIO(content)) as arrays:
        assert arrays["maps"].shape == (1, 300, 451)
        assert arrays["targets"] == [target]
    suggested, content = downloaded("JSON")
    assert suggested.endswith(".heat.json")
    assert json.loads(content)["explanations"][0]["target"]["index"] == target
    share.visit.assert_clean()


def test_a_link_brings_the_view_back_until_the_picture_is_deleted(share: Share, browser: Browser) -> None:
    labels = set_up(share.visit)
    share.page.get_by_label("Opacity", exact=True).fill("35")
    share.page.locator("#frame").press("3")
    link = share.copy("Link to this view", re.compile("#image="))
    assert "?" not in link  # all of it is in the fragment, which no server sees
    expect(share.words).to_contain_text("whoever has this sees it, until")
    expect(share.text).to_be_visible()
    with browser.new_context() as context:
        other = Visit(context.new_page(), share.visit.url)
        other.page.goto(link)
        expect(other.page.locator("#colours")).to_be_visible()  # the heat alone
        expect(other.page.locator("#asked")).to_have_text(f"Why {labels[0]} and not {labels[1]}?")
        expect(other.page.locator("#method-name")).to_have_text("layercam")
        expect(other.classes).to_have_count(5)
        assert other.source() == share.visit.source()
        expect(other.heat).to_have_css("opacity", "0.35")
        expect(other.page.get_by_role("radio", name="Heat", exact=True)).to_be_checked()
        other.assert_clean()
        share.page.get_by_role("button", name="Delete the picture").click()
        expect(share.words).to_contain_text("is deleted")
        expect(share.text).to_be_hidden()
        expect(share.page.get_by_role("button", name="Link to this view")).to_be_focused()
        other.page.reload()
        expect(other.page.get_by_role("alert")).to_contain_text("has expired, or was deleted")
        expect(other.page.get_by_role("button", name="Try again")).to_be_hidden()
        other.assert_accessible()
        other.give(CHELSEA)
        expect(other.page.locator("#app")).to_have_attribute("data-state", "done")
        assert "#" not in other.page.url  # the address is not that of this picture
        other.assert_clean(errors=1)  # chromium's own line about the 404
    share.visit.assert_clean()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("model=nope", "This server has no model “nope”"),
        ("method=nope", "This server has no method “nope”."),
        ("samples=3", "Method gradcam has no parameter “samples”."),
        ("layer=nope", "Model efficientnet_lite0 has no layer “nope”"),
        ("method=saliency&layer=bn2", "Method saliency looks at no layers."),
        ("method=smoothgrad&samples=abc", "Parameter samples of method smoothgrad cannot be “abc”."),
        ("alpha=7", "an opacity or a view that there is not"),
        ("target=", "no class by its number"),
        ("target=tabby", "no class by its number"),
        ("target=5000", "5000"),
    ],
)
def test_a_link_that_cannot_be_honoured_says_why(visit: Visit, wanted: str, words: str) -> None:
    headers = {"Content-Type": "image/png"}
    kept = visit.page.request.post(f"{visit.url}/v1/images", data=CHELSEA.read_bytes(), headers=headers).json()
    visit.page.goto(f"{visit.url}/#image={kept['id']}&{wanted}")
    expect(visit.page.get_by_role("alert")).to_contain_text(words)
    expect(visit.page.get_by_role("button", name="Try again")).to_be_hidden()
    expect(visit.page.locator("#app")).to_have_attribute("data-state", "empty")


def test_a_class_beyond_the_best_is_brought_back_as_well(share: Share, browser: Browser, tmp_path: Path) -> None:
    field = share.page.get_by_label("Another class")
    field.fill("tiger shark")
    field.press("Enter")
    expect(share.visit.classes).to_have_count(6)
    link = share.copy("Link to this view", re.compile("#image="))
    with browser.new_context() as context:
        other = Visit(context.new_page(), share.visit.url)
        other.page.route("**/v1/predict*", fail)
        other.page.goto(link)
        expect(other.page.get_by_role("alert")).to_contain_text("the server is out of reach")
        other.page.unroute("**/v1/predict*", fail)
        # As of a model with so many classes that not all of them are listed.
        other.page.route("**/v1/predict*", lambda route: route.continue_(url=route.request.url.replace("1000", "5")))
        other.page.get_by_role("button", name="Try again").click()
        other.await_answer()
        expect(other.classes).to_have_count(6)
        expect(other.classes.last).to_contain_text("tiger shark")
        expect(other.classes.last).to_have_attribute("aria-pressed", "true")
        assert other.source() == share.visit.source()
        other.page.locator("#share > summary").click()
        received = Share(other)
        command = received.copy("curl", re.compile("^curl"))
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
        by_curl = (tmp_path / "picture.heat.jpg").read_bytes()
        program = received.copy("Python", re.compile("urlopen"))
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env={"PYTHONPATH": str(Path.cwd())})
        assert (tmp_path / "picture.heat.jpg").read_bytes() == by_curl
        received.copy("Link to this view", re.compile("#image="))
        other.page.get_by_role("button", name="Delete the picture").click()
        expect(other.page.get_by_role("alert")).to_contain_text("has expired, or was deleted")
        expect(other.page.locator("#app")).to_have_attribute("data-state", "empty")
        assert "#" not in other.page.url
        other.assert_clean(errors=1)  # chromium's own line about the first try


def test_tags_for_other_pages(share: Share) -> None:
    tag = share.copy("Embed tag", re.compile("<img "))
    expect(share.words).to_contain_text("sees it, until")
    source = re.search(r'src="([^"]+)"', tag)
    assert source
    answer = share.page.request.get(source[1])
    assert (answer.status, answer.headers["content-type"]) == (200, "image/jpeg")
    kinds = share.page.get_by_label("Kind of tag")
    kinds.select_option("component")
    expect(share.text).to_have_value(re.compile("<heat-lens "))
    kinds.select_option("frame")
    expect(share.text).to_have_value(re.compile("<iframe "))
    share.page.get_by_role("button", name="Copy", exact=True).click()
    expect(share.page.locator("#copied")).to_have_text(re.compile(r"^(Copied\.|Selected: press Ctrl\+C to copy it\.)$"))
    share.page.get_by_role("button", name="Withdraw the tag").click()
    expect(share.words).to_contain_text("is withdrawn")
    assert share.page.request.get(source[1]).status == 404
    share.copy("Embed tag", re.compile("<iframe "))
    share.visit.classes.nth(1).click()  # the tag is of another view now
    expect(share.text).to_be_hidden()
    share.visit.assert_clean()


def test_what_fails_is_said_where_it_was_asked(share: Share) -> None:
    share.page.route("**/v1/images*", lambda route: route.abort("connectionrefused"))
    share.page.get_by_role("button", name="Link to this view").click()
    expect(share.page.locator("#share-problem")).to_contain_text("the server is out of reach")
    share.visit.assert_accessible()
    share.visit.assert_clean(errors=1)
