"""Keys, and the bound in bytes."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from app.drawing import Drawn
from app.metrics import Metrics
from app.result_cache import ResultCache
from app.schemas.options import ExplainOptions

BODY = 10_000
BESIDE = 1024
"""What each answer counts beside its body."""


def drawn(size: int = BODY, fill: bytes = b"x") -> Drawn:
    return Drawn(fill * size, "image/png", {})


def number(metrics: Metrics, name: str) -> float:
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", metrics.page().decode(), re.MULTILINE)
    return float(found)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def make(metrics: Metrics) -> Callable[[int], ResultCache]:
    return lambda max_bytes: ResultCache(max_bytes, metrics)


def test_the_one_unused_for_longest_makes_room(make: Callable[[int], ResultCache]) -> None:
    results = make(3 * (BODY + BESIDE))
    for key in "abc":
        results.put(key, drawn())
    assert results.get("a") is not None
    results.put("d", drawn())
    assert [key for key in "abcd" if results.get(key) is not None] == ["a", "c", "d"]


def test_the_bound_in_bytes_holds_and_is_told(make: Callable[[int], ResultCache], metrics: Metrics) -> None:
    results = make(100_000)
    for index, size in enumerate([1, 99_999 - BESIDE, 40_000, 40_000, 17_000, 50_000, 100_000 - BESIDE, 5, 30_000]):
        results.put(str(index), drawn(size))
        kept = [found for other in range(index + 1) if (found := results.get(str(other)))]
        size_bytes = sum(len(found.content) + BESIDE for found in kept)
        assert size_bytes <= 100_000
        assert number(metrics, "heatlens_result_cache_bytes") == size_bytes


def test_an_answer_larger_than_all_that_may_be_kept_drives_nothing_out(make: Callable[[int], ResultCache]) -> None:
    results = make(BODY + BESIDE)
    results.put("small", drawn())
    results.put("large", drawn(BODY + 1))
    assert results.get("large") is None
    assert results.get("small") is not None


def test_zero_bytes_keep_nothing(make: Callable[[int], ResultCache], metrics: Metrics) -> None:
    results = make(0)
    results.put("a", drawn(0))
    assert results.get("a") is None
    assert number(metrics, 'heatlens_result_cache_lookups_total{result="miss"}') == 1


def test_hits_and_misses_are_counted(make: Callable[[int], ResultCache], metrics: Metrics) -> None:
    results = make(100_000)
    results.put("a", drawn())
    results.put(None, drawn())
    for key in ("a", "a", "b", None, None, None):
        results.get(key)
    assert number(metrics, 'heatlens_result_cache_lookups_total{result="hit"}') == 2
    assert number(metrics, 'heatlens_result_cache_lookups_total{result="miss"}') == 4


def test_threads_mix_nothing(make: Callable[[int], ResultCache]) -> None:
    """Ten keys compete for the room of four; whatever is found under a key is what was put there."""
    results = make(4 * (BODY + BESIDE))

    def work(start: int) -> int:
        found = 0
        for step in range(2000):
            key = str((start + step * 7) % 10)
            if (there := results.get(key)) is not None:
                assert there.content == key.encode() * BODY
                found += 1
            results.put(key, drawn(fill=key.encode()))
        return found

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) > 0


OPTIONS: list[dict[str, Any]] = [
    {},
    {"view": "heatmap"},
    {"colormap": "magma"},
    {"alpha": 0.5},
    {"legend": True},
    {"max_side": 512},
    {"faithfulness": True},
    {"stability": True},
    {"values": True},
]


def test_whatever_an_answer_depends_on_changes_its_key(make: Callable[[int], ResultCache]) -> None:
    results = make(0)
    keys = [
        results.key(identity, picture, ExplainOptions(**options), format_)
        for identity, picture, options, format_ in product("ij", "pq", OPTIONS, ("jpeg", "png", "json"))
    ]
    assert len(set(keys)) == len(keys) == 2 * 2 * len(OPTIONS) * 3


def test_every_other_option_is_tried_above() -> None:
    in_identity = {"model", "method", "target", "versus", "layer"}
    tried = {name for options in OPTIONS for name in options}
    assert tried | in_identity | {"format"} == set(ExplainOptions.model_fields)


def test_what_the_identity_says_already_and_how_the_format_was_asked_for_change_no_key(
    make: Callable[[int], ResultCache],
) -> None:
    results = make(0)
    said = ExplainOptions(model="m", method="rise", target=["cat"], versus="dog", layer=["l"], format="png")
    assert results.key("i", "p", said, "png") == results.key("i", "p", ExplainOptions(), "png") is not None


def test_without_an_identity_there_is_no_key(make: Callable[[int], ResultCache]) -> None:
    assert make(0).key(None, "p", ExplainOptions(), "png") is None
