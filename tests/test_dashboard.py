"""The Grafana dashboard cannot rot: it asks for what there is, and shows all of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config import Settings
from app.jobs.database import Database
from app.jobs.metrics import page as jobs_page
from app.jobs.reading import Reading
from app.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).parents[1] / "examples" / "grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All numbers that a server without jobs has."""
    database = Database(Settings(data_dir=tmp_path_factory.mktemp("jobs")))
    database.migrate()
    text = Metrics().page() + jobs_page(Reading(database))
    database.close()
    return text.decode()


def _series(page: str) -> dict[str, str]:
    """Return the names that can be asked for, each with the metric that has it."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    return {
        family.name + suffix: family.name
        for family in text_string_to_metric_families(page)
        if not family.name.endswith("_created")
        for suffix in suffixes[family.type]
    }


def _asked() -> set[str]:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    return set(re.findall(r"heatlens_\w+", " ".join(queries + variables)))


def test_it_asks_for_what_there_is_and_for_all_of_it(page: str) -> None:
    series = _series(page)
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
