"""Debian's chromium."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.app.visits import ANSWER_MS, Visit
from tests.conftest import Server
from tests.support import CHROMIUM, require

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(CHROMIUM.exists(), "Debian's chromium (apt-get install chromium)")
    expect.set_options(timeout=ANSWER_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Visit]:
    with browser.new_context() as context:
        visit = Visit(context.new_page(), server.url)
        visit.page.goto(server.url)
        yield visit
