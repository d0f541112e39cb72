"""The arithmetic of an evaluation, against closed forms, and its page, in Debian's chromium."""

import html
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from app.evaluation import (
    Evaluation,
    Failure,
    NotApplicable,
    Outcome,
    estimate,
    share,
    summarise,
    words,
)
from app.evaluation_page import page
from app.schemas.answers import Areas, ClassScore, Curves, FaithfulnessInfo, ModelRef, StabilityInfo
from tests.app.visits import contrast

STRAIGHT = [0.0, 0.25, 0.5]


def outcome(
    picture: str, method: str = "gradcam", *, margin: float = 0.3, threshold: float = 0.1, elsewhere: float = 0.4
) -> Outcome:
    """Map: insertion 0.6, deletion 0.6 - margin; elsewhere both as given; centre 0.5 and 0.3; edge the reverse."""
    curves = Curves(map=STRAIGHT, random=STRAIGHT, centre=STRAIGHT, edge=STRAIGHT)
    faithfulness = FaithfulnessInfo(
        verdict="better_than_random"
        if margin > threshold
        else "inconclusive"
        if margin > 0
        else "no_better_than_random",
        words=f"What there is to say of {picture}.",
        insertion=Areas(map=0.6, random=elsewhere, centre=0.5, edge=0.3),
        deletion=Areas(map=0.6 - margin, random=elsewhere, centre=0.3, edge=0.5),
        margin=margin,
        threshold=threshold,
        fractions=[0.0, 0.5, 1.0],
        insertion_curves=curves,
        deletion_curves=curves,
        substrates=["blur", "mean"],
        runs=90,
    )
    return Outcome(
        picture=picture,
        method=method,
        target=ClassScore(index=3, label="cat <tabby>", score=5.0, probability=0.75),
        faithfulness=faithfulness,
        stability=StabilityInfo(noise=0.9, mirror=None, words=""),
        seconds=0.5,
    )


def evaluation(outcomes: Sequence[Outcome]) -> Evaluation:
    methods, controls = summarise(outcomes, seed=0)
    return Evaluation(
        model=ModelRef(name="<b>small</b>", weights_sha256="ab" * 32, weights="loaded"),
        fingerprint="0" * 64,
        version="0.1.0",
        measured_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        seed=0,
        pictures=["a.png", "b.png", "bad.png"],
        methods=methods,
        controls=controls,
        not_applicable=[NotApplicable(method="legrad", reason="The model has no attention.")],
        failures=[Failure(picture="bad.png", method=None, detail="It is no picture.")],
        outcomes=list(outcomes),
    )


def test_the_interval_is_that_of_the_normal_distribution_for_many_values() -> None:
    """Mean of 0 to 999: 499.5, standard deviation sqrt((1000² - 1) / 12); the mean's is that over sqrt(1000)."""
    found = estimate([float(n) for n in range(1000)], seed=1)
    error = math.sqrt((1000**2 - 1) / 12 / 1000)
    assert found.mean == 499.5
    assert found.low == pytest.approx(499.5 - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(499.5 + 1.96 * error, abs=0.15 * error)
    assert found.n == 1000


def test_the_interval_of_two_values_is_known() -> None:
    """Means of two draws from {0, 1}: 0, 1/2, 1 with 1/4, 1/2, 1/4; the outer 2.5 % lie at 0 and at 1."""
    found = estimate([0.0, 1.0], seed=0)
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)


def test_equal_values_have_an_interval_of_no_width_and_one_value_has_none() -> None:
    assert estimate([0.25] * 5, seed=0).model_dump() == {"mean": 0.25, "low": 0.25, "high": 0.25, "n": 5}
    assert estimate([0.25], seed=0).model_dump() == {"mean": 0.25, "low": None, "high": None, "n": 1}
    with pytest.raises(ValueError, match="nothing"):
        estimate([], seed=0)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """200 samples of 20 normal numbers: the percentile bootstrap covers somewhat less than 95 %, about 92 %."""
    draws = np.random.default_rng(5).normal(size=(200, 20))
    found = [estimate(sample.tolist(), seed=number) for number, sample in enumerate(draws)]
    covered = sum(each.low is not None and each.high is not None and each.low <= 0 <= each.high for each in found)
    assert 0.86 <= covered / 200 <= 0.98


def test_the_same_seed_gives_the_same_interval_however_large_the_sample() -> None:
    values = np.random.default_rng(0).normal(size=3000).tolist()  # more than are resampled at once
    assert estimate(values, seed=3) == estimate(values, seed=3)
    assert estimate(values, seed=3) != estimate(values, seed=4)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_shares_have_wilsons_interval(hits: int, n: int, low: float, high: float) -> None:
    found = share(hits, n)
    assert found.mean == hits / n
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_methods_and_controls_have_rows() -> None:
    outcomes = [
        outcome("a.png"),
        outcome("a.png", "rise", margin=-0.05, elsewhere=0.2),
        outcome("b.png", margin=0.1, threshold=0.25),
        outcome("b.png", "rise", margin=0.5, elsewhere=0.3),
    ]
    methods, controls = summarise(outcomes, seed=0)
    gradcam, rise = methods
    assert (gradcam.name, rise.name) == ("gradcam", "rise")
    assert gradcam.insertion.mean == pytest.approx(0.6)
    assert gradcam.deletion.mean == pytest.approx((0.3 + 0.5) / 2)
    assert gradcam.margin.mean == pytest.approx(0.2)
    assert (gradcam.better.mean, rise.better.mean) == (
        0.5,
        0.5,
    )  # 0.3 > 0.1, not 0.1 > 0.25; not -0.05 > 0.1, 0.5 > 0.1
    assert (gradcam.inconclusive.mean, rise.inconclusive.mean) == (0.5, 0.0)  # 0 < 0.1 <= 0.25; -0.05 is no lead
    assert gradcam.gain.mean == pytest.approx(0.6 - 0.4)
    assert (gradcam.elsewhere.insertion.mean, rise.elsewhere.insertion.mean) == (
        pytest.approx(0.4),
        pytest.approx(0.25),
    )
    assert rise.elsewhere.deletion.mean == pytest.approx(0.25)
    assert rise.elsewhere.gain.mean == pytest.approx(0)
    assert gradcam.noise is not None
    assert gradcam.noise.mean == pytest.approx(0.9)
    assert gradcam.mirror is None
    assert gradcam.pictures == 2
    centre, edge = controls
    assert (centre.name, edge.name) == ("centre", "edge")
    assert centre.pictures == 2  # not once for each method
    assert (centre.insertion.mean, centre.deletion.mean) == (0.5, 0.3)
    assert centre.gain.mean == pytest.approx(0.2)
    assert edge.gain.mean == pytest.approx(-0.2)


def test_controls_are_those_of_the_first_method_with_figures() -> None:
    methods, controls = summarise([outcome("a.png"), outcome("b.png", "rise"), outcome("a.png", "rise")], seed=0)
    assert [row.pictures for row in methods] == [1, 2]
    assert controls[0].pictures == 2
    assert summarise([], seed=0) == ([], [])


def test_words_follow_the_interval() -> None:
    def told(*margins: float) -> str:
        (row,), _ = summarise([outcome(f"{n}.png", margin=margin) for n, margin in enumerate(margins)], seed=0)
        return words(row)

    better = "better than chance: clearly better than the same shape elsewhere on 2 of 3 pictures"
    assert f"{better}, inconclusive on 1; its mean lead is +0.25" in told(0.3, 0.05, 0.4)
    assert "on 3 of 3 pictures; its mean" in told(0.3, 0.5, 0.4)
    assert "its mean lead is +0.30 (+0.30 to +0.30)" in told(0.3, 0.3)
    assert "cannot be told from chance here" in told(0.3, -0.3, 0.2)
    assert "is worse than chance" in told(-0.3, -0.4)
    assert "cannot be told from chance here" in told(0.9)
    assert "its lead on the only picture is +0.90" in told(0.9)


def test_it_survives_json() -> None:
    found = evaluation([outcome("a.png"), outcome("b.png")])
    assert Evaluation.model_validate_json(found.model_dump_json()) == found
    assert json.loads(found.model_dump_json())["methods"][0]["margin"]["n"] == 2


def test_the_page_has_all_figures_and_nothing_from_elsewhere() -> None:
    text = page(evaluation([outcome("a.png"), outcome("b.png", margin=0.1), outcome("a.png", "rise")]))
    shown = html.unescape(re.sub(r"<[^>]+>", " ", text))
    for fact in ("+0.20", "+0.10 … +0.30", "100%", "gradcam", "rise", "centre first", "lead ↑", "2026-01-02 03:04 UTC"):
        assert fact in shown, fact
    for fact in (
        "legrad",
        "The model has no attention.",
        "bad.png",
        "It is no picture.",
        "What there is to say of b.png.",
    ):
        assert fact in shown, fact
    assert "<b>small</b>" not in text
    assert "cat &lt;tabby&gt;" in text
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert text.count("<svg ") == 2
    assert shown.count("same shape elsewhere  0.40") == 2  # under each method
    assert "random order" not in shown
    body = re.search(r"<thead>.*?</tbody>", text, re.DOTALL)
    assert body is not None
    widths = {
        sum(int((re.search(r'colspan="(\d+)"', cell) or ["", 1])[1]) for cell in re.findall(r"<t[hd][^>]*>", row))
        for row in re.findall(r"<tr.*?</tr>", body[0], re.DOTALL)
    }
    assert widths == {10}


def test_without_any_figures_the_page_says_why() -> None:
    text = page(evaluation([]))
    assert "There are no figures" in text
    assert "The model has no attention." in text
    assert "<svg" not in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1200])
def test_the_page_is_legible_in_the_browser(browser: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    """No error, no request, nothing sticks out; words on page and charts have WCAG's contrast of 4.5."""
    file = tmp_path / "evaluation.html"
    file.write_text(page(evaluation([outcome("a.png"), outcome("b.png"), outcome("b.png", "rise")])), encoding="utf-8")
    console: list[str] = []
    with browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}) as context:  # type: ignore[arg-type]
        visit = context.new_page()
        visit.on("console", lambda message: console.append(message.text))
        visit.on("request", lambda request: console.append(request.url) if request.url != file.as_uri() else None)
        visit.goto(file.as_uri())
        assert visit.evaluate("document.documentElement.scrollWidth") <= width
        for selector in ("h1", ".facts", "tbody th", ".control td", "td small", "caption", ".words li"):
            assert contrast(visit.locator(selector).first) >= 4.5, selector
        ink = visit.locator("svg text").first.evaluate("(text) => getComputedStyle(text).fill")
        soft = {"light": "rgb(101, 91, 112)", "dark": "rgb(172, 162, 183)"}
        dark = {"light": "rgb(35, 26, 46)", "dark": "rgb(240, 234, 243)"}
        assert ink in (soft[scheme], dark[scheme])
        visit.locator("summary").click()
        assert visit.get_by_text("What there is to say of a.png.").is_visible()
    assert console == []
