"""How far to trust a map, on the page."""

import re

import pytest
from playwright.sync_api import Route, expect

from tests.app.visits import Visit

pytestmark = [pytest.mark.browser, pytest.mark.server]


def test_trust_is_measured_on_demand_and_told_in_words(visit: Visit) -> None:
    visit.sample()
    button, words = visit.page.get_by_role("button", name="How far to trust"), visit.page.locator("#trust-words")
    verdict, facts_line = visit.page.locator("#trust-verdict"), visit.page.locator("#facts")
    expect(button).to_be_visible()
    expect(words).to_have_text("")
    expect(visit.page.locator("#trust-facts dt")).to_have_text(["Raw values"])

    def late(route: Route) -> None:
        route.fulfill(status=504, content_type="application/problem+json", body='{"detail": "Not within its time."}')

    visit.page.route("**/v1/explain*", late)
    button.click()
    expect(visit.page.locator("#run-text")).to_have_text("Not within its time.")
    visit.page.unroute("**/v1/explain*", late)
    visit.page.get_by_role("button", name="Try again").click()  # measures again
    expect(verdict).to_have_text(re.compile(r"^(This map|Whether this map|Do not rely)"))
    expect(verdict).to_be_focused()  # the buttons are gone
    expect(words).to_be_hidden()
    visit.page.get_by_text("In figures").click()
    expect(words).to_be_visible()
    expect(words).to_contain_text(re.compile(r"Removing the hottest tenth .* probability"))
    expect(words).to_contain_text("Mirroring the picture")
    facts = visit.page.locator("#trust-facts")
    expect(facts).to_contain_text(
        re.compile(r"Raw values.*Finds what counts.*laid elsewhere.*Stays the same.*mirrored")
    )
    expect(button).to_be_hidden()
    *_, asked = visit.explained
    assert (asked["faithfulness"], asked["stability"], len(asked["target"])) == (["true"], ["true"], 1)
    expect(visit.heat).to_be_visible()
    measured, asked_before = facts_line.inner_text(), len(visit.explained)
    visit.classes.nth(0).click()  # the chosen one: nothing changes
    expect(words).to_contain_text("Removing the hottest tenth")
    assert (facts_line.inner_text(), len(visit.explained)) == (measured, asked_before)
    visit.classes.nth(1).click()  # not measured for this class yet
    expect(button).to_be_visible()
    expect(words).to_have_text("")
    visit.classes.nth(0).click()  # and still known for this one
    expect(words).to_contain_text("Removing the hottest tenth")
    visit.assert_accessible()
    visit.assert_clean(errors=1)  # chromium's own line about the 504


def test_another_method_is_another_map_which_is_not_measured_yet(visit: Visit) -> None:
    visit.sample()
    visit.page.get_by_role("button", name="How far to trust").click()
    expect(visit.page.locator("#trust-words")).to_contain_text("Removing")
    visit.page.locator("#how > summary").click()
    visit.page.get_by_role("radio", name="hirescam").check()
    visit.await_answer()
    expect(visit.page.get_by_role("button", name="How far to trust")).to_be_visible()
    expect(visit.page.locator("#trust-words")).to_have_text("")
    visit.assert_clean()
