"""The page's choice of a method, of its parameters and its layers; long methods and those that do not apply."""

import re

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.app.visits import Visit, contrast
from tests.support import PICTURES

pytestmark = [pytest.mark.browser, pytest.mark.server]


class Methods:
    """The folded part of the page where the method is chosen."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.page = visit.page
        self.run = self.page.locator("#run")
        self.note = self.page.locator("#note")
        self.care = self.page.locator("#care")

    def open(self) -> None:
        self.page.locator("#how > summary").click()
        if self.page.locator("#fine-tuning").is_visible():
            self.page.locator("#fine-tuning > summary").click()

    def choose(self, name: str) -> None:
        self.page.get_by_role("radio", name=name, exact=True).check()

    def parameter(self, name: str) -> Locator:
        return self.page.locator(f"#parameter-{name}")

    def again(self) -> None:
        self.page.get_by_role("button", name="Explain again").click()

    def await_heat(self) -> None:
        expect(self.run).to_be_hidden()
        expect(self.visit.heat).to_be_visible()

    @property
    def last(self) -> dict[str, list[str]]:
        """The options of the last explanation that was asked for, but for how it is drawn."""
        options = self.visit.explained[-1]
        return {name: value for name, value in options.items() if name not in ("format", "view", "alpha", "values")}


@pytest.fixture
def methods(visit: Visit) -> Methods:
    visit.sample()
    found = Methods(visit)
    found.open()
    return found


def five(visit: Visit) -> list[str]:
    """The indices of the classes that the page lists."""
    return visit.page.locator(".class").evaluate_all("rows => rows.map((row) => String(row.target.index))")


def test_gradcam_is_chosen_and_the_rest_is_folded_away(visit: Visit) -> None:
    visit.sample()
    expect(visit.page.locator("#method-name")).to_have_text("gradcam")
    expect(visit.page.locator("#methods")).to_be_hidden()
    expect(visit.page.locator("#care")).to_be_hidden()
    visit.assert_clean()


def test_every_method_is_offered_in_its_family(methods: Methods) -> None:
    listed = methods.page.request.get(f"{methods.visit.url}/v1/methods").json()["methods"]
    families = {method["name"]: method["family"] for method in listed}
    groups = methods.page.locator("#methods fieldset").evaluate_all(
        "groups => groups.map((group) => [...group.querySelectorAll('input')].map((radio) => radio.value))"
    )
    assert sorted(name for group in groups for name in group) == sorted(families)
    assert [len({families[name] for name in group}) for group in groups] == [1] * len(groups)


def test_another_method_makes_another_map_and_says_what_it_is(methods: Methods) -> None:
    first = methods.visit.source()
    methods.choose("layercam")
    methods.await_heat()
    assert methods.visit.source() != first
    assert methods.last == {"target": five(methods.visit), "method": ["layercam"]}
    listed = methods.page.request.get(f"{methods.visit.url}/v1/methods").json()["methods"]
    (layercam,) = [method for method in listed if method["name"] == "layercam"]
    for trait in ("summary", "weakness", "sanity"):
        expect(methods.page.locator(f"#method-{trait}")).to_have_text(layercam[trait])
    expect(methods.page.locator("#method-cost")).to_have_text(f"Quick: {layercam['cost']}.")
    expect(methods.page.locator("#method-paper")).to_have_attribute("href", layercam["paper"])
    expect(methods.page.locator("#facts")).to_contain_text("method layercam, layer ")
    methods.choose("gradcam")
    methods.await_heat()
    assert methods.visit.source() == first
    methods.visit.assert_clean()


def test_a_method_that_fails_the_randomisation_check_says_so_under_the_picture(methods: Methods) -> None:
    methods.choose("guided_backprop")
    methods.await_heat()
    expect(methods.care).to_contain_text("Take care: this method fails the randomisation check")
    assert contrast(methods.care) >= 4.5
    expect(methods.note).to_contain_text("count most for")
    expect(methods.page.locator("#strong")).to_contain_text("counts most")  # as the words below have it
    methods.choose("gradcam")
    methods.await_heat()
    expect(methods.care).to_be_hidden()
    expect(methods.note).to_contain_text("speak for")


def test_a_method_that_asks_for_no_class_has_one_map_for_all_and_says_so(methods: Methods) -> None:
    methods.choose("eigencam")
    methods.await_heat()
    asked, source = len(methods.visit.explained), methods.visit.source()
    expect(methods.note).to_contain_text("the map is the same for all")
    methods.visit.classes.nth(3).click()
    expect(methods.visit.classes.nth(3)).to_have_attribute("aria-pressed", "true")
    assert (len(methods.visit.explained), methods.visit.source()) == (asked, source)


def test_parameters_are_controls_within_their_bounds_and_only_changes_are_sent(methods: Methods) -> None:
    methods.choose("smoothgrad")
    samples, reduction = methods.parameter("samples"), methods.parameter("reduction")
    expect(samples).to_have_value("25")
    expect(samples).to_have_attribute("min", "2")
    expect(reduction).to_have_value("max_abs")
    samples.fill("1")
    asked = len(methods.visit.explained)
    methods.again()  # the browser refuses it
    assert not samples.evaluate("field => field.validity.valid")
    assert len(methods.visit.explained) == asked
    samples.fill("3")
    reduction.select_option("signed_sum")
    methods.again()
    methods.await_heat()
    # Each class has a backward pass of its own, so that only the chosen one is asked for.
    assert methods.last == {
        "target": five(methods.visit)[:1],
        "method": ["smoothgrad"],
        "samples": ["3"],
        "reduction": ["signed_sum"],
    }
    methods.visit.classes.nth(1).click()
    methods.await_heat()
    assert methods.last["target"] == five(methods.visit)[1:2]
    methods.visit.assert_clean()


def test_what_nobody_applied_is_asked_nowhere(methods: Methods) -> None:
    methods.page.locator("#layers").select_option(["bn1"])
    methods.page.locator("#share > summary").click()
    snippet = methods.page.get_by_label("To copy")
    methods.page.get_by_role("button", name="curl").click()
    expect(snippet).to_have_value(re.compile("^curl"))
    assert "layer" not in snippet.input_value()
    field = methods.page.get_by_label("Another class")
    field.fill("tiger shark")
    field.press("Enter")
    expect(methods.note).to_contain_text("tiger shark")
    assert "layer" not in methods.last
    methods.again()
    expect(methods.page.locator("#facts")).to_contain_text("layer bn1")
    assert methods.last["layer"] == ["bn1"]
    methods.page.get_by_role("button", name="curl").click()
    expect(snippet).to_have_value(re.compile("layer=bn1"))
    methods.visit.assert_clean()


def test_several_layers_are_fused(methods: Methods) -> None:
    methods.page.locator("#layers").select_option(["bn1", "bn2"])
    methods.again()
    methods.await_heat()
    assert sorted(methods.last["layer"]) == ["bn1", "bn2"]
    expect(methods.page.locator("#facts")).to_contain_text(re.compile("layer bn[12] and bn[12]"))
    expect(methods.note).to_contain_text("112 by 112 cells")  # bn1's, behind a stride of 2
    methods.choose("saliency")
    methods.await_heat()
    expect(methods.page.locator("#layers")).to_be_hidden()
    assert "layer" not in methods.last


def test_a_method_that_does_not_apply_says_why_and_another_one_works(methods: Methods) -> None:
    methods.choose("attention_rollout")
    expect(methods.run).to_contain_text("no attention")
    expect(methods.visit.heat).to_be_hidden()
    assert contrast(methods.run) >= 4.5
    methods.choose("gradcam")
    methods.await_heat()
    methods.visit.assert_clean(errors=1)  # chromium's own line about the 422


def test_a_long_method_can_be_stopped_and_taken_up_again(methods: Methods) -> None:
    methods.choose("scorecam")
    expect(methods.run).to_contain_text(re.compile(r"scorecam is at work… [1-9]\d* s"))
    expect(methods.page.locator("#app")).to_have_class(re.compile("running"))
    methods.page.get_by_role("button", name="Stop").click()
    expect(methods.run).to_contain_text("Stopped.")
    expect(methods.page.locator("#app")).not_to_have_class(re.compile("running"))
    methods.page.get_by_role("button", name="Go on").click()
    expect(methods.run).to_contain_text("scorecam is at work")
    methods.choose("gradcam")
    methods.await_heat()
    expect(methods.page.locator("#facts")).to_contain_text("gradcam")
    methods.visit.assert_clean()


def test_another_class_or_picture_ends_a_long_method(methods: Methods) -> None:
    methods.choose("rise")
    expect(methods.run).to_contain_text("rise is at work")
    asked = len(methods.visit.explained)
    methods.visit.classes.nth(1).click()  # of the five that are being explained: nothing to be asked for
    expect(methods.visit.classes.nth(1)).to_have_attribute("aria-pressed", "true")
    assert len(methods.visit.explained) == asked
    methods.parameter("samples").fill("20")
    methods.again()
    methods.await_heat()
    assert methods.last == {"target": five(methods.visit), "method": ["rise"], "samples": ["20"]}
    methods.visit.give(PICTURES / "coffee.png")
    expect(methods.visit.classes.first).to_contain_text("espresso")
    methods.await_heat()
    assert methods.last["samples"] == ["20"]  # the choice is kept
    methods.visit.assert_clean()


def test_an_explanation_that_fails_in_passing_can_be_tried_again(methods: Methods) -> None:
    def late(route: Route) -> None:
        problem = '{"detail": "Not answered within its time."}'
        route.fulfill(status=504, content_type="application/problem+json", body=problem)

    methods.page.route("**/v1/explain*", late)
    methods.choose("hirescam")
    expect(methods.run).to_contain_text("Not answered within its time.")
    methods.page.unroute("**/v1/explain*", late)
    methods.page.get_by_role("button", name="Try again").click()
    methods.await_heat()
    methods.visit.assert_clean(errors=1)


def test_without_the_list_of_methods_the_page_explains_all_the_same(visit: Visit) -> None:
    visit.page.route("**/v1/methods", lambda route: route.fulfill(status=503, body=""))
    visit.page.reload()
    visit.sample()
    expect(visit.page.locator("#how")).to_be_hidden()
    expect(visit.page.locator("#note")).to_contain_text("Bright areas speak for")
    visit.assert_clean(errors=1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_choice_is_readable_on_a_narrow_screen(methods: Methods, scheme: str) -> None:
    methods.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    methods.page.set_viewport_size({"width": 380, "height": 760})
    methods.choose("rise")
    for selector in (
        ".method-card strong",
        ".cost",
        ".weak",
        "#method-summary",
        ".traits dt",
        ".traits dd",
        ".parameter p",
        "#run-text",
        "#run-button",
    ):
        assert contrast(methods.page.locator(selector).first) >= 4.5, selector
    assert methods.visit.overflow_px() == 0
