"""The Grafana dashboard cannot rot: it asks for what there is, and shows all of it."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).parents[1] / "examples" / "grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _series() -> dict[str, str]:
    """Return the names that can be asked for, each with the metric that has it."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    return {
        family.name + suffix: family.name
        for family in text_string_to_metric_families(Metrics().page().decode())
        if not family.name.endswith("_created")
        for suffix in suffixes[family.type]
    }


def _asked() -> set[str]:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    return set(re.findall(r"heatlens_\w+", " ".join(queries + variables)))


def test_it_asks_for_what_there_is_and_for_all_of_it() -> None:
    series = _series()
    assert _asked() <= series.keys()
    assert {series[name] for name in _asked()} == set(series.values())


def test_its_data_source_is_a_variable() -> None:
    (variable,) = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "datasource"]
    sources: list[dict[str, Any]] = [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert {source["uid"] for source in sources} == {f"${{{variable['name']}}}"}


def test_its_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
