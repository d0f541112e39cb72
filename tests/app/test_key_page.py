"""The pages with an API key: asked for when it is needed, kept in memory only, and sent with everything."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app.config import Settings
from app.jobs.database import Database
from app.keys import Keys
from tests.app.visits import ANSWER_MS, Visit
from tests.conftest import Server, start_server, stop_server
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]

CHELSEA = PICTURES / "chelsea.png"
WRONG = f"hl_{'A' * 12}_{'b' * 43}"
STORES = """async () => JSON.stringify([
    {...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state, window.name,
    (await indexedDB.databases()).map(({ name }) => name), await caches.keys(),
    document.documentElement.outerHTML, [...document.querySelectorAll("input, textarea")].map(({ value }) => value),
])"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyed")


@pytest.fixture(scope="module")
def keys(folder: Path) -> dict[str, str]:
    """The texts of two keys, by name: `all` may do what people do, `jobs` no explanations."""
    settings = Settings(data_dir=folder)
    database = Database(settings)
    database.migrate()
    made = Keys(settings, database)
    texts = {"all": made.create("all", ["explain", "jobs"])[1], "jobs": made.create("jobs", ["jobs"])[1]}
    database.close()
    return texts


@pytest.fixture(scope="module")
def keyed(folder: Path, keys: dict[str, str]) -> Iterator[Server]:
    """A server that has keys, and so asks for one; with a worker for jobs."""
    running = start_server(data_dir=str(folder), workers="1", job_workers="1", torch_threads="1", log_level="warning")
    yield running
    stop_server(running)


@pytest.fixture
def visitor(browser: Browser, keyed: Server) -> Iterator[Visit]:
    with browser.new_context() as context:
        yield Visit(context.new_page(), keyed.url)


def why(page: Page) -> str:
    """What the dialog says."""
    expect(page.get_by_role("dialog", name="API key")).to_be_visible()
    return page.locator("#access-why").inner_text()


def enter(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use key").click()


def open_with(visit: Visit, path: str, key: str) -> None:
    visit.page.goto(f"{visit.url}{path}")
    why(visit.page)
    enter(visit.page, key)
    expect(visit.page.get_by_role("button", name="Forget the key")).to_be_visible()


def assert_kept_in_memory_only(visit: Visit, key: str) -> None:
    """The key is in a header of each request to the interface made since, and nowhere else."""
    secret = key.split("_", 2)[2]  # which may have such lines of its own
    assert secret not in visit.page.evaluate(STORES)
    assert visit.page.context.cookies() == []
    for request in visit.requests:
        assert secret not in request.url
        assert secret not in (request.post_data_buffer or b"").decode("latin-1")
        told = {name for name, value in request.all_headers().items() if secret in value}
        assert told <= {"authorization"}
    assert any(secret in request.headers.get("authorization", "") for request in visit.requests)


def test_a_picture_is_explained_once_there_is_a_key(visitor: Visit, keys: dict[str, str]) -> None:
    page, key = visitor.page, keys["all"]
    page.goto(visitor.url)
    assert why(page) == "This server asks for an API key."
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    visitor.assert_accessible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Enter a key")).to_be_visible()

    page.get_by_role("button", name="sample").click()  # which needs one: it is asked again
    why(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#problem")).to_contain_text("It needs an API key.")
    page.get_by_role("button", name="Try again").click()
    why(page)
    enter(page, "schlüssel")
    expect(page.locator("#access-why")).to_contain_text("That is no key")
    enter(page, WRONG)
    expect(page.locator("#access-why")).to_contain_text(
        "does not take this key: it is wrong, has expired, or was revoked"
    )
    expect(page.get_by_label("Key", exact=True)).to_have_value("")
    enter(page, key)
    visitor.await_answer()
    expect(page.locator("#how")).to_be_visible()  # the methods, which could not be listed at first
    visitor.assert_accessible()
    assert_kept_in_memory_only(visitor, key)
    refused = len(visitor.console)
    assert all("401" in line for line in visitor.console)
    visitor.assert_clean(errors=refused)

    page.get_by_role("button", name="Forget the key").click()
    assert why(page) == "This server asks for an API key."
    expect(page.locator("#app")).to_have_attribute("data-state", "empty")
    expect(page.get_by_role("button", name="Forget the key")).to_be_hidden()


def test_what_is_copied_names_a_variable_and_not_the_key(visitor: Visit, keys: dict[str, str], tmp_path: Path) -> None:
    page, key = visitor.page, keys["all"]
    open_with(visitor, "/", key)
    picture = tmp_path / "cat.png"
    picture.write_bytes(CHELSEA.read_bytes())
    visitor.give(picture)
    visitor.await_answer()
    page.locator("#share > summary").click()
    snippet = page.get_by_label("To copy")
    environment = {**os.environ, "HEATLENS_KEY": key, "PYTHONPATH": str(Path.cwd())}

    page.get_by_role("button", name="curl", exact=True).click()
    expect(snippet).to_have_value(re.compile(r'^curl -H "Authorization: Bearer \$HEATLENS_KEY"'))
    command = snippet.input_value()
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, env=environment)
    by_curl = tmp_path / "cat.heat.jpg"
    made = by_curl.read_bytes()
    assert made.startswith(b"\xff\xd8")
    by_curl.unlink()
    page.get_by_role("button", name="Python", exact=True).click()
    expect(snippet).to_have_value(re.compile(r'api_key=environ\["HEATLENS_KEY"\]'))
    subprocess.run([sys.executable, "-c", snippet.input_value()], cwd=tmp_path, check=True, env=environment)
    assert by_curl.read_bytes() == made
    by_curl.unlink()

    page.get_by_role("button", name="Link to this view").click()
    expect(snippet).to_have_value(re.compile("#image="))
    link = snippet.input_value()
    assert key not in link
    page.goto("about:blank")
    page.goto(link)  # another page, which knows no key
    why(page)
    enter(page, key)
    visitor.await_answer()
    page.locator("#share > summary").click()
    page.get_by_role("button", name="Python", exact=True).click()
    expect(snippet).to_have_value(
        re.compile("^from os import environ\nfrom urllib.request import Request, urlopen\n\n")
    )
    subprocess.run([sys.executable, "-c", snippet.input_value()], cwd=tmp_path, check=True, env=environment)
    assert (tmp_path / "picture.heat.jpg").read_bytes().startswith(b"\xff\xd8")
    assert_kept_in_memory_only(visitor, key)


def test_a_job_from_its_upload_to_its_zip(visitor: Visit, keys: dict[str, str], tmp_path: Path) -> None:
    page, key = visitor.page, keys["all"]
    for name in ("chelsea.png", "coffee.png"):
        shutil.copy(PICTURES / name, tmp_path)
    page.goto(f"{visitor.url}/batch")
    why(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#jobs-problem")).to_contain_text("It needs an API key.")
    page.get_by_role("button", name="Enter a key").click()
    enter(page, key)
    expect(page.locator("#model")).to_have_value("efficientnet_lite0")  # what failed is asked again
    expect(page.locator("#no-jobs")).to_be_visible()
    expect(page.locator("#jobs-problem")).to_be_hidden()

    page.locator("#files").set_input_files([tmp_path / "chelsea.png", tmp_path / "coffee.png"])
    page.get_by_label("Name").fill("with a key")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#job-words")).to_contain_text("Done: 2 of 2 pictures", timeout=4 * ANSWER_MS)
    streams = [request for request in visitor.requests if request.url.endswith("/events")]
    answers = [response for request in streams if (response := request.response())]
    assert [answer.headers["content-type"] for answer in answers] == ["text/event-stream"] * len(streams)
    assert streams  # the job was watched live

    tile = page.locator("#tiles .tile", has_text="coffee.png")
    assert tile.locator("img").evaluate("async (image) => (await image.decode(), image.naturalWidth)") > 0
    tile.get_by_role("button").click()
    shown = page.locator("#item-picture")
    expect(shown).to_be_visible()
    assert shown.evaluate("async (image) => (await image.decode(), image.naturalWidth)") > 0
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the picture").click()
    assert download.value.path().read_bytes().startswith(b"\xff\xd8")
    page.keyboard.press("Escape")

    with page.expect_download() as download:
        page.get_by_role("button", name="zip").click()
    with zipfile.ZipFile(download.value.path()) as results:
        assert sum(name.endswith(".jpg") for name in results.namelist()) == 2
    assert re.search(r"/results\.zip\?ticket=[^&]+$", download.value.url)
    with page.expect_download() as download:
        page.get_by_role("button", name="NDJSON").click()
    lines = download.value.path().read_text().splitlines()
    assert {json.loads(line)["name"] for line in lines} == {"chelsea.png", "coffee.png"}
    visitor.assert_accessible()
    assert_kept_in_memory_only(visitor, key)


def test_what_another_key_is_needed_for_is_said(visitor: Visit, keys: dict[str, str], tmp_path: Path) -> None:
    page = visitor.page
    open_with(visitor, "/", keys["jobs"])
    page.get_by_role("button", name="sample").click()
    problem = page.locator("#problem")
    expect(problem).to_contain_text("explain")  # the scope that it takes
    expect(problem).to_contain_text("To use another key, forget this one, at the top of the page.")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()
    visitor.assert_accessible()


def test_narrow_and_dark(browser: Browser, keyed: Server, keys: dict[str, str]) -> None:
    with browser.new_context(color_scheme="dark", viewport={"width": 380, "height": 800}) as context:
        visit = Visit(context.new_page(), keyed.url)
        visit.page.goto(f"{keyed.url}/models")
        why(visit.page)
        assert visit.overflow_px() == 0
        visit.assert_accessible()
        visit.page.keyboard.press("Escape")
        expect(visit.page.locator("#list-problem")).to_contain_text("It needs an API key.")
        visit.page.get_by_role("button", name="Enter a key").click()
        enter(visit.page, keys["all"])
        expect(visit.page.locator("#list-problem")).to_be_hidden()
        expect(visit.page.locator("#layers-words")).to_contain_text("layers in the order")
        visit.page.get_by_role("button", name="sample").click()
        expect(visit.page.locator("#look-words")).to_have_text("cat.jpg, efficientnet_lite0.", timeout=2 * ANSWER_MS)
        assert visit.overflow_px() == 0
        visit.assert_accessible()
        assert_kept_in_memory_only(visit, keys["all"])
