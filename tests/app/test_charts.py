"""Charts: every fact is on them, where it belongs; they can be drawn from any thread, and fit every size of network."""

import io
import math
import re
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from PIL import Image

from app import charts
from app.charts.canvas import GROUND, INK, WRONG, plain
from explainers.diagnostics.activations import LayerActivation
from explainers.diagnostics.answer import Finding, GradientFlow, Kind, LayerFlow, ParameterGradient, Verdict

SVG = "{http://www.w3.org/2000/svg}"


def layer(
    name: str,
    norm: float | None = 1.0,
    *,
    call: int = 1,
    calls: int = 1,
    nan: int = 0,
    inf: int = 0,
    ratios: Mapping[str, float | None] = MappingProxyType({}),
) -> LayerFlow:
    """`ratios` are those of the parameters, by name."""
    parameters = tuple(ParameterGradient(each, (3,), 1.0, ratio, ratio, 0.0, 0, 0) for each, ratio in ratios.items())
    return LayerFlow(name, "Conv2d", call, calls, norm, norm, parameters, 0.0, nan, inf, None)


def flow(
    *layers: LayerFlow, kind: Kind = "ok", findings: Sequence[Finding] = (), notes: Sequence[str] = ()
) -> GradientFlow:
    return GradientFlow(1.0, layers, Verdict(kind, tuple(findings), tuple(notes)))


USUAL = LayerActivation("a", "ReLU6", 1, 1, (2, 8, 4, 4), 0.5, 1.0, -1.0, 4.0, 0.25, channels=8, dead_channels=0)


def words(svg: bytes) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own


def deep(count: int) -> GradientFlow:
    """A network whose gradient falls by the same factor from layer to layer."""
    ratios = {"weight": 1e-3, "bias": 0.1}
    return flow(*(layer(f"blocks.{n}.conv", 0.9 ** (count - n), ratios=ratios) for n in range(count)))


def points(svg: bytes, colour: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line in a colour: one list per stroke without interruption."""
    found = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):  # noqa: S314
        style = path.get("style", "")
        if f"stroke: {colour}" in style and "stroke-width: 1.2" in style:
            for stroke in path.get("d", "").split("M")[1:]:
                numbers = [float(number) for number in re.findall(r"-?[0-9.]+", stroke)]
                found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def test_a_healthy_flow_has_every_layer_and_says_so() -> None:
    shown = words(charts.gradient_flow_chart(deep(12), "svg"))
    assert [word for word in shown if word.endswith(".conv")] == [f"blocks.{n}.conv" for n in range(12)]
    assert shown.count("Conv2d") == 12
    assert "Gradient flow: ok, nothing stands out" in shown


def test_equal_factors_are_equal_steps_down_the_page() -> None:
    """On a logarithmic axis the norms 0.9^k lie on a straight line; rows follow each other evenly."""
    (line,) = points(charts.gradient_flow_chart(deep(12), "svg"), charts.canvas.MAP)
    across, down = np.diff(line, axis=0).T
    assert len(line) == 12
    assert across.min() > 0
    np.testing.assert_allclose(across, across.mean(), rtol=1e-3)
    np.testing.assert_allclose(down, down.mean(), rtol=1e-3)
    assert down.min() > 0  # the first that ran is at the top


def test_findings_are_in_title_reasons_and_rows() -> None:
    layers = (layer("stem", 1e-9), layer("body", 0.0), layer("aside", None), layer("head", 1.0, nan=3, inf=1))
    found = (
        Finding("vanishing", ("stem",), "The gradient shrinks by 0.1 from layer to layer."),
        Finding("dead", ("body",), "body passes nothing back."),
    )
    svg = charts.gradient_flow_chart(flow(*layers, kind="vanishing", findings=found, notes=("A note.",)), "svg")
    shown = words(svg)
    assert "Gradient flow: vanishing" in shown
    assert "The gradient shrinks by 0.1 from layer to layer." in shown
    assert "body passes nothing back." in shown
    assert "A note." in shown
    notes = [shown[shown.index(each.name) + 2] for each in layers]
    assert notes == ["vanishing", "dead, zero", "no gradient", "3 NaN, 1 Inf"]
    assert svg.decode().count(f"fill: {WRONG}; fill-opacity: 0.16") == 2  # the marked rows: stem and body


def test_what_is_no_norm_interrupts_the_line() -> None:
    norms = [1.0, 2.0, None, 3.0, 0.0, 4.0, math.inf, 5.0, 6.0]
    found = flow(*(layer(f"l{n}", norm) for n, norm in enumerate(norms)))
    strokes = points(charts.gradient_flow_chart(found, "svg"), charts.canvas.MAP)
    assert [len(stroke) for stroke in strokes] in ([2, 1, 1, 2], [2, 2])  # a single point is a dot without a line


def test_many_findings_are_cut_and_counted() -> None:
    found = tuple(Finding("dead", (f"l{n}",), f"l{n} is dead.") for n in range(9))
    shown = words(charts.gradient_flow_chart(flow(*deep(3).layers, kind="dead", findings=found), "svg"))
    assert "l3 is dead." in shown
    assert "l4 is dead." not in shown
    assert "… and 5 more findings." in shown


def test_calls_of_one_layer_are_told_apart() -> None:
    layers = (layer("act", call=1, calls=2), layer("act", call=2, calls=2))
    shown = words(charts.gradient_flow_chart(flow(*layers), "svg"))
    assert "act (1 of 2)" in shown
    assert "act (2 of 2)" in shown


@pytest.mark.parametrize("count", [0, 1, 200, 1100])
def test_networks_of_every_depth(count: int) -> None:
    """200 layers have all their names; 1100 share 120 in, 0.109 in each: every other name has the room it needs."""
    svg = charts.gradient_flow_chart(deep(count), "svg")
    named = [word for word in words(svg) if word.endswith(".conv")]
    assert len(named) == (count if count <= 200 else count / 2)
    height_in = float(ElementTree.fromstring(svg).get("height", "").removesuffix("pt")) / 72  # noqa: S314
    assert min(0.165 * count, 120) < height_in < min(0.165 * max(count, 1), 120) + 2


def test_a_png_is_as_large_as_the_network_is_deep() -> None:
    with Image.open(io.BytesIO(charts.gradient_flow_chart(deep(100), "png"))) as picture:
        assert picture.format == "PNG"
        assert picture.mode == "RGBA"
        assert 0.165 * 100 * 110 < picture.height < (0.165 * 100 + 2) * 110


def test_nothing_finite_is_still_a_chart() -> None:
    nothing = flow(layer("stem", None, ratios={"weight": None}), layer("head", math.nan, nan=4))
    shown = words(charts.gradient_flow_chart(nothing, "svg"))
    assert "no gradient" in shown
    assert "4 NaN" in shown
    rows = [LayerActivation("stem", "LSTM", 1, 1, None)]
    assert "no values" in words(charts.activations_chart(rows, "svg"))


@pytest.mark.parametrize("size", [1e-38, 1.0, 1e38])
def test_numbers_of_every_size(size: float) -> None:
    found = flow(layer("stem", size), layer("body", 1.0), layer("head", size))
    assert len(points(charts.gradient_flow_chart(found, "svg"), charts.canvas.MAP)[0]) == 3
    rows = [USUAL, replace(USUAL, name="b"), replace(USUAL, name="c", mean=size, std=size, min=-size, max=size)]
    assert "c" in words(charts.activations_chart(rows, "svg"))


def test_activations_say_what_is_not_finite_and_what_is_dead() -> None:
    rows = [USUAL, replace(USUAL, name="b", nan=2, inf=3), replace(USUAL, name="c", dead_channels=5)]
    shown = words(charts.activations_chart(rows, "svg"))
    assert "Activations: not finite in 1 of 3 calls" in shown
    assert [shown[shown.index(name) + 2] for name in "bc"] == ["2 NaN, 3 Inf", "5 of 8 dead"]
    assert "Activations" in words(charts.activations_chart([USUAL], "svg"))


def test_shares_lie_where_they_belong() -> None:
    """Zeros of 25 % and 75 %: a half of the axis, from 0 to 100 %, between them."""
    svg = charts.activations_chart([USUAL, replace(USUAL, name="b", zero_fraction=0.75)], "svg")
    used = [
        (float(use.get("x", "")), float(use.get("y", "")))
        for use in ElementTree.fromstring(svg).iter(f"{SVG}use")  # noqa: S314
        if f"fill: {charts.canvas.CENTRE}" in use.get("style", "")
    ]
    below_the_legend = sorted(used, key=lambda place: place[1])[-2:]
    (one, other), width_pt = [x for x, _ in below_the_legend], 2.9 * 72
    assert other - one == pytest.approx(width_pt * 50 / 106, abs=0.1)  # the axis goes from -3 to 103


CURVES = charts.Curves(
    "a cat",
    (0, 0.5, 1),
    {"map": (0.0, 0.6, 0.8), "random": (0.0, 0.2, 0.8), "centre": (0.0, 0.4, 0.8), "edge": (0.0, 0.1, 0.8)},
    {"map": (0.8, 0.1, 0.0), "random": (0.8, 0.3, 0.0), "centre": (0.8, 0.2, 0.0), "edge": (0.8, 0.5, 0.0)},
)


def test_curves_have_both_ways_the_map_and_all_controls() -> None:
    svg = charts.curves_chart([CURVES], "svg")
    shown = words(svg)
    for label in (
        "a cat",
        "the map's order",
        "the same shape elsewhere",
        "from the centre",
        "from the edge",
        "probability",
    ):
        assert label in shown
    assert any(word.startswith("insertion") for word in shown)
    assert any(word.startswith("deletion") for word in shown)
    assert shown.count("1.0") == 2  # both panels go to 1


def test_small_probabilities_fill_the_chart() -> None:
    small = {order: tuple(value / 100 for value in values) for order, values in CURVES.insertion.items()}
    shown = words(charts.curves_chart([CURVES._replace(insertion=small, deletion=small)], "svg"))
    assert "1.0" not in shown
    assert "0.008" in shown


def test_a_row_per_method_with_its_band() -> None:
    band = charts.Band((0.0, 0.5, 0.7), (0.0, 0.7, 0.9))
    one = charts.curves_chart([CURVES], "svg")
    both = charts.curves_chart([CURVES, CURVES._replace(title="a dog", bands=(band, band))], "svg")
    assert "a dog" in words(both)
    fill = f"fill: {charts.canvas.MAP}; fill-opacity: 0.18"
    assert one.decode().count(fill) == 0
    assert both.decode().count(fill) == 2


def test_margins_have_a_row_for_each_method() -> None:
    rows = [charts.Margins("gradcam", (0.1, 0.3), 0.2, (0.1, 0.3)), charts.Margins("rise", (0.5,), 0.5, None)]
    svg = charts.margins_chart(rows, "svg")
    assert {"gradcam", "rise"} <= set(words(svg))
    uses = ElementTree.fromstring(svg).iter(f"{SVG}use")  # noqa: S314
    dots = [use for use in uses if charts.canvas.RANDOM in use.get("style", "")]
    assert len(dots) == 3


DRAWN: Sequence[Callable[[charts.ChartFormat], bytes]] = [
    lambda format_: charts.gradient_flow_chart(deep(5), format_),
    lambda format_: charts.activations_chart([USUAL, replace(USUAL, name="b")], format_),
    lambda format_: charts.curves_chart([CURVES], format_),
    lambda format_: charts.margins_chart([charts.Margins("gradcam", (0.1,), 0.1, None)], format_),
]


@pytest.mark.parametrize("draw", DRAWN)
def test_the_same_facts_give_the_same_bytes_from_any_thread(draw: Callable[[charts.ChartFormat], bytes]) -> None:
    for format_ in charts.MEDIA_TYPES:
        expected, found = draw(format_), []
        threads = [threading.Thread(target=lambda: found.append(draw(format_))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4


@pytest.mark.parametrize("draw", DRAWN)
def test_an_svg_needs_nothing_from_elsewhere_and_has_words_not_glyphs(
    draw: Callable[[charts.ChartFormat], bytes],
) -> None:
    svg = draw("svg")
    root = ElementTree.fromstring(svg)  # noqa: S314
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.endswith("href") or value.startswith("#")
            assert "url(" not in value or "url(#" in value
    assert not list(root.iter(f"{SVG}script"))
    assert len(words(svg)) >= 5


def test_names_are_shown_as_they_are_and_never_as_markup() -> None:
    layers = (layer("a<b>&$x_1$"), layer("größe"), layer("層"))
    shown = words(charts.gradient_flow_chart(flow(*layers), "svg"))
    assert "a<b>&$x_1$" in shown
    assert "gr\\xf6\\xdfe" in shown
    assert "\\u5c64" in shown


def test_long_names_keep_their_ends() -> None:
    assert plain("abcdefghij", 10) == "abcdefghij"
    assert plain("abcdefghijk", 10) == "abc…fghijk"


def test_inside_of_a_page_a_chart_has_the_pages_colours_and_a_name() -> None:
    svg = charts.gradient_flow_chart(deep(3), "svg")
    inline = charts.inline_svg(svg, label='what "it" shows')
    assert inline.startswith('<svg role="img" aria-label="what &quot;it&quot; shows" ')
    assert INK in svg.decode()
    for colour in (INK, GROUND, "<?xml", "<!DOCTYPE", "metadata"):
        assert colour not in inline
    assert "var(--ink)" in inline
    assert "var(--line)" in inline


def test_matplotlibs_settings_are_left_alone() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    charts.gradient_flow_chart(deep(3), "svg")
    assert dict(mpl.rcParams) == before


def test_marks_depend_on_the_findings_alone() -> None:
    layers = tuple(replace(each, nan=1) for each in deep(4).layers)
    assert f"fill: {WRONG}; fill-opacity" not in charts.gradient_flow_chart(flow(*layers), "svg").decode()
