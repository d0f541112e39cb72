"""The page /batch in a real browser: jobs of many pictures, live, as a contact sheet, and one by one."""

import io
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Route, expect

from app.config import Settings
from app.jobs.artifacts import result_key
from tests.app.jobs.books import FAULT, Book, file_names, opened
from tests.app.visits import ANSWER_MS, Visit
from tests.conftest import Server, start_server, stop_server
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]

MANY = 5000
STREAMS = 2
"""That of a page that was just closed may be a moment in leaving it."""
TILES_AT_MOST = 100
"""Seven rows of seven, with what is around them; far from all, however long the sheet."""


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    with opened(Settings(data_dir=tmp_path_factory.mktemp("book"))) as book:
        yield book


@pytest.fixture(scope="module")
def reader(book: Book) -> Iterator[Server]:
    """A server that shows what the tests write into the book; nobody works there, and few may watch live."""
    folder = str(book.settings.data_dir)
    running = start_server(data_dir=folder, workers="1", log_level="warning", event_streams=str(STREAMS))
    yield running
    stop_server(running)


@pytest.fixture
def page(browser: Browser, reader: Server) -> Iterator[Visit]:
    with browser.new_context() as context:
        yield Visit(context.new_page(), reader.url)


@pytest.fixture(scope="module")
def many(book: Book) -> str:
    """A job of 5,000 pictures: the first hundred and the last are explained, one failed, the rest waits."""
    job_id = book.submit([f"{number:04d}.png" for number in range(MANY)])
    book.succeed(job_id, *range(50), targets=[1], probability=0.9)
    book.succeed(job_id, *range(50, 100), MANY - 1, targets=[2], probability=0.25)
    book.fail(job_id, 2500)
    for number in (*range(100), MANY - 1):
        book.store.write(result_key(job_id, file_names(number)[0], number), jpeg())
    return job_id


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), "teal").save(buffer, "JPEG")
    return buffer.getvalue()


def visit_job(visit: Visit, job_id: str) -> None:
    visit.page.goto(f"{visit.url}/batch#job={job_id}")
    expect(visit.page.locator("#job-words")).to_be_visible()


def tile(visit: Visit, text: str) -> Locator:
    return visit.page.locator("#tiles .tile", has_text=text)


def words(visit: Visit) -> Locator:
    return visit.page.locator("#sheet-words")


def draws(image: Locator) -> bool:
    width: int = image.evaluate("async (image) => (await image.decode(), image.naturalWidth)")
    return width > 0


def items_asked(visit: Visit) -> int:
    return sum("/items?" in request.url for request in visit.requests)


# --- with a worker


def test_pictures_go_in_and_come_out_as_a_contact_sheet(visit: Visit, server: Server, tmp_path: Path) -> None:
    for name in ("chelsea.png", "coffee.png"):
        shutil.copy(PICTURES / name, tmp_path)
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    (tmp_path / "notes.txt").write_text("left out")
    page = visit.page
    page.goto(f"{server.url}/batch")
    expect(page.locator("#model")).to_have_value("efficientnet_lite0")
    page.locator("#folder").set_input_files(tmp_path)
    expect(page.locator("#taken")).to_contain_text("3 pictures")
    expect(page.locator("#taken")).to_contain_text("1 other file left out")
    page.get_by_label("Name").fill("my folder")
    page.get_by_text("More options").click()
    page.get_by_label("Classes, one a line").fill("tiger cat\nespresso")
    page.get_by_role("button", name="Start").click()
    done = "Done, some pictures failed: 3 of 3 pictures, 1 failed"
    expect(page.locator("#job-words")).to_contain_text(done, timeout=4 * ANSWER_MS)
    expect(page.locator("#job-title")).to_have_text("my folder")
    expect(page.locator("#tiles .tile")).to_have_count(3)
    expect(tile(visit, "damaged.png")).to_contain_text("Failed")
    assert draws(tile(visit, "coffee.png").locator("img"))

    tile(visit, "chelsea.png").get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="chelsea.png")).to_be_visible()
    expect(page.locator("#item-verdict")).to_contain_text("tiger cat")
    dialog.get_by_role("button", name="espresso").click()
    expect(dialog.get_by_role("img", name="with the heat for espresso")).to_be_visible()
    assert draws(page.locator("#item-picture"))
    expect(page.locator("#item-classes li")).to_have_count(5)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#item-place")).to_have_text("3 of 3")
    expect(page.locator("#item-error")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(tile(visit, "damaged.png").get_by_role("button")).to_be_focused()

    with page.expect_download() as download:
        page.get_by_role("button", name="zip").click()
    with zipfile.ZipFile(download.value.path()) as results:
        assert sum(name.endswith(".jpg") for name in results.namelist()) == 4  # two pictures, two classes
    visit.assert_clean()


def test_a_zip_is_measured_and_its_job_deleted(visit: Visit, server: Server, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.write(PICTURES / "chelsea.png", "inside/cat.png")
    page = visit.page
    page.goto(f"{server.url}/batch")
    page.locator("#files").set_input_files(tmp_path / "one.zip")
    expect(page.locator("#taken")).to_contain_text("one.zip")
    page.get_by_label("Name").fill("a zip")
    page.get_by_text("More options").click()
    page.get_by_label("Measure how far").check()
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#job-words")).to_contain_text("Done: 1 of 1 picture", timeout=4 * ANSWER_MS)
    tile(visit, "inside/cat.png").get_by_role("button").click()
    expect(page.locator("#item-trust")).to_contain_text("Removing the hottest tenth")
    page.go_back()  # the picture goes with its job
    expect(page.locator("#job-title")).to_have_text("No job is open")
    expect(page.locator("#item")).to_be_hidden()
    page.go_forward()
    expect(tile(visit, "inside/cat.png")).to_be_visible()

    page.get_by_role("button", name="Delete a zip", exact=True).click()
    page.get_by_role("button", name="Keep a zip").click()
    expect(page.get_by_role("button", name="Delete a zip", exact=True)).to_be_focused()
    page.get_by_role("button", name="Delete a zip", exact=True).click()
    page.get_by_role("button", name="Delete for good a zip").click()
    expect(page.get_by_role("link", name="a zip")).to_have_count(0)
    expect(page.locator("#job-title")).to_have_text("No job is open")
    visit.assert_clean()


# --- what the tests write into the book


def test_five_thousand_pictures(page: Visit, many: str) -> None:
    visit_job(page, many)
    tiles = page.page.locator("#tiles .tile")
    expect(tile(page, "0000.png")).to_contain_text("bee")
    assert draws(tile(page, "0000.png").locator("img"))
    assert tiles.count() <= TILES_AT_MOST
    asked = items_asked(page)
    page.page.locator("#sheet").evaluate("(sheet) => sheet.scrollTo(0, sheet.scrollHeight / 2)")
    expect(tile(page, "2500.png")).to_contain_text("Failed")
    assert tiles.count() <= TILES_AT_MOST
    page.page.locator("#sheet").evaluate("(sheet) => sheet.scrollTo(0, sheet.scrollHeight)")
    last = tile(page, f"{MANY - 1}.png")
    expect(last).to_be_in_viewport()
    expect(last).to_contain_text("cat")
    assert draws(last.locator("img"))
    assert tiles.count() <= TILES_AT_MOST
    assert items_asked(page) - asked <= 6  # what lies between was not asked for
    assert last.get_attribute("aria-posinset") == last.get_attribute("aria-setsize") == str(MANY)

    last.get_by_role("button").click()
    expect(page.page.locator("#item-title")).to_have_text(f"{MANY - 1}.png")
    page.page.keyboard.press("ArrowLeft")
    expect(page.page.locator("#item-waiting")).to_have_text("It waits for its turn.")
    page.page.keyboard.press("Escape")
    expect(tile(page, f"{MANY - 2}.png").get_by_role("button")).to_be_focused()
    page.page.keyboard.press("Home")
    expect(tile(page, "0000.png").get_by_role("button")).to_be_focused()
    page.page.keyboard.press("ArrowRight")
    expect(tile(page, "0001.png").get_by_role("button")).to_be_focused()
    page.page.keyboard.press("End")
    expect(tile(page, f"{MANY - 1}.png").get_by_role("button")).to_be_focused()
    page.assert_accessible()
    page.assert_clean()


def test_filters(page: Visit, many: str) -> None:
    visit_job(page, many)
    shown = page.page
    expect(words(page)).to_have_text("5,000 pictures.")
    shown.locator("#filter-status").select_option("failed")
    expect(words(page)).to_have_text("1 picture.")
    tile(page, "2500.png").get_by_role("button").click()
    expect(shown.locator("#item-error")).to_have_text(FAULT["detail"])
    shown.keyboard.press("Escape")

    shown.locator("#filter-status").select_option("succeeded")
    expect(words(page)).to_have_text("100 pictures and more.")  # 101, a page of which is here
    shown.locator("#sheet").evaluate("(sheet) => sheet.scrollTo(0, sheet.scrollHeight)")
    expect(words(page)).to_have_text("101 pictures.")
    expect(tile(page, f"{MANY - 1}.png")).to_be_visible()

    shown.get_by_label("Label").fill("cat")
    expect(words(page)).to_have_text("51 pictures.")
    shown.get_by_label("At least, %").fill("26")
    expect(words(page)).to_have_text("No picture is like that.")
    shown.get_by_label("Label").fill("bee")
    expect(words(page)).to_have_text("50 pictures.")
    shown.get_by_label("At most, %").fill("200")
    expect(shown.locator("#filter-max:invalid")).to_be_focused()  # the browser says what is wrong with it
    shown.get_by_label("At most, %").fill("20")
    expect(words(page)).to_have_text("No picture is like that.")
    page.assert_accessible()
    page.assert_clean()


def test_a_job_is_watched_live(page: Visit, book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg"])
    book.ledger.begin(job_id, 0)
    visit_job(page, job_id)
    expect(tile(page, "b.jpg")).to_contain_text("Waiting")
    asked = items_asked(page)
    book.succeed(job_id, 1)
    expect(tile(page, "b.jpg")).to_contain_text("cat")
    expect(page.page.locator("#job-words")).to_contain_text("Running: 1 of 3 pictures")
    assert items_asked(page) == asked  # it was told
    row = page.page.locator(".job-row", has=page.page.locator("[aria-current]"))
    with page.page.expect_response("**/v1/jobs"):  # the list goes on
        row.get_by_role("button", name="Delete").click()
    with page.page.expect_response("**/v1/jobs"):
        pass
    row.get_by_role("button", name="Keep").click()
    row.get_by_role("button", name="Cancel").click()
    expect(page.page.locator("#job-words")).to_contain_text("Cancelled: 1 of 3 pictures")
    expect(row.get_by_role("button", name="Delete")).to_be_focused()  # the pressed button is gone
    expect(tile(page, "c.jpg")).to_contain_text("Cancelled")
    row.get_by_role("button", name="Retry").click()
    expect(page.page.locator("#job-words")).to_contain_text("Waiting for a worker: 1 of 3")
    book.ledger.cancel(job_id)


@contextmanager
def a_stream(reader: Server, job_id: str) -> Iterator[None]:
    """Hold one of the server's streams, as soon as there is one."""
    deadline = time.monotonic() + ANSWER_MS / 1000
    while True:
        with httpx2.stream("GET", f"{reader.url}/v1/jobs/{job_id}/events", timeout=60) as stream:
            if stream.status_code == 200:
                yield
                return
            assert stream.status_code == 503
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_without_a_stream_to_spare_the_page_asks(page: Visit, reader: Server, book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.ledger.begin(job_id, 0)
    with ExitStack() as every_stream:
        for _ in range(STREAMS):
            every_stream.enter_context(a_stream(reader, job_id))
        visit_job(page, job_id)
        expect(tile(page, "b.jpg")).to_contain_text("Waiting")
        book.succeed(job_id, 0, 1)
        expect(page.page.locator("#job-words")).to_contain_text("Done: 2 of 2 pictures")
        expect(tile(page, "b.jpg")).to_contain_text("cat")
    expect(tile(page, "b.jpg")).to_contain_text("no picture")  # what the book has in its place is none
    page.assert_clean(errors=1)


def test_a_stream_that_was_lost_goes_on_where_it_was(page: Visit, book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg"])
    book.ledger.begin(job_id, 0)
    asked: list[str | None] = []

    def lose_the_first(route: Route) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) > 1:
            return route.continue_()
        told = "retry: 10\n\n: a comment\nid: 2\nevent: unknown\ndata: one\ndata: two\n\nid: 9\ndata: cut o"
        return route.fulfill(headers={"Content-Type": "text/event-stream"}, body=told)

    page.page.route("**/events", lose_the_first)
    visit_job(page, job_id)
    expect(tile(page, "b.jpg")).to_contain_text("Waiting")
    book.succeed(job_id, 0)
    book.succeed(job_id, 1)
    book.succeed(job_id, 2)
    expect(page.page.locator("#job-words")).to_contain_text("Done: 3 of 3 pictures")
    expect(tile(page, "c.jpg")).to_contain_text("cat")
    assert asked == ["0", "2"]  # the second goes on behind the last whole event
    page.assert_clean()


def test_pictures_are_gone_through_though_the_list_has_changed(page: Visit, book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg", "c.jpg"])
    book.ledger.begin(job_id, 0)
    visit_job(page, job_id)
    page.page.locator("#filter-status").select_option("waiting")
    tile(page, "c.jpg").get_by_role("button").click()
    expect(page.page.locator("#item-title")).to_have_text("c.jpg")
    book.succeed(job_id, 0, 1, 2)
    expect(words(page)).to_have_text("No picture is like that.")
    page.page.keyboard.press("ArrowLeft")
    expect(page.page.locator("#item-title")).to_have_text("b.jpg")
    expect(page.page.locator("#item-place")).to_have_text("2 of 3")
    page.page.keyboard.press("Escape")
    page.page.locator("#filter-status").select_option("")
    expect(page.page.locator("#tiles [tabindex='0']")).to_have_count(1)


def test_a_picture_that_cannot_be_asked_for_shows_nothing_of_the_one_before(page: Visit, book: Book) -> None:
    job_id = book.submit(["a.jpg", "b.jpg"])
    book.succeed(job_id, 0, 1)
    book.store.write(result_key(job_id, file_names(0)[0], 0), jpeg())
    visit_job(page, job_id)
    tile(page, "a.jpg").get_by_role("button").click()
    expect(page.page.locator("#item-picture")).to_be_visible()
    page.page.route("**/items/1", lambda route: route.abort("connectionrefused"))
    page.page.keyboard.press("ArrowRight")
    expect(page.page.locator("#item-error")).to_have_text("The server is out of reach.")
    expect(page.page.locator("#item-title")).to_have_text("Picture 2")
    for name in ("picture", "download", "verdict", "classes", "facts"):
        expect(page.page.locator(f"#item-{name}")).to_be_hidden()


def test_a_list_that_was_cut_off_is_asked_for_again(page: Visit, book: Book) -> None:
    book.succeed(book.submit(["a.jpg"]), 0)
    cut = 1

    def cut_off(route: Route) -> None:
        nonlocal cut
        cut -= 1
        return route.fulfill(content_type="application/json", body='{"jobs": [') if cut >= 0 else route.continue_()

    page.page.route("**/v1/jobs", cut_off)
    page.page.goto(f"{page.url}/batch")
    expect(page.page.locator("#jobs-problem")).to_contain_text("cut off")
    expect(page.page.locator(".job-row").first).to_be_visible()
    expect(page.page.locator("#jobs-problem")).to_be_hidden()
    page.assert_clean()


def test_what_cannot_become_a_job_is_said(page: Visit, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a.png", "b.zip", "c.zip", "d.txt")}
    for path in files.values():
        path.write_bytes(b"?")
    shown = page.page
    shown.goto(f"{page.url}/batch")
    problem, start = shown.locator("#new-problem"), shown.get_by_role("button", name="Start")
    refused: dict[str, list[str]] = {
        "not of both": ["a.png", "b.zip"],
        "one archive": ["b.zip", "c.zip"],
        "no picture and no archive": ["d.txt"],
    }
    for why, names in refused.items():
        shown.locator("#files").set_input_files([files[name] for name in names])
        expect(problem).to_contain_text(why)
        expect(start).to_be_disabled()
    shown.locator("#files").set_input_files(files["b.zip"])
    expect(problem).to_be_hidden()
    start.click()
    expect(problem).to_contain_text("archive")  # the server's words
    expect(start).to_be_enabled()
    page.assert_accessible()
    shown.goto(f"{page.url}/batch#job=unknown")
    expect(shown.locator("#job-problem")).to_contain_text("There is no job 'unknown'.")
    page.assert_clean(errors=2)


def test_narrow_and_dark(browser: Browser, reader: Server, many: str) -> None:
    with browser.new_context(color_scheme="dark", viewport={"width": 380, "height": 800}) as context:
        visit = Visit(context.new_page(), reader.url)
        visit_job(visit, many)
        expect(tile(visit, "0000.png")).to_contain_text("bee")
        assert visit.overflow_px() == 0
        visit.assert_accessible()
        tile(visit, "0000.png").get_by_role("button").click()
        expect(visit.page.locator("#item-picture")).to_be_visible()
        assert visit.overflow_px() == 0
        visit.assert_accessible()
        visit.assert_clean()
