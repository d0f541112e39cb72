"""What the API says of the methods, and what an answer says of the method that made it."""

import io
import json
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from flask.testing import FlaskClient

from app.schemas.answers import ExplainAnswer, MethodInfo, MethodList
from tests.app.api.test_explain import answer, array, post


@pytest.fixture(scope="module")
def methods(client: FlaskClient) -> dict[str, MethodInfo]:
    return {row.name: row for row in MethodList.model_validate_json(client.get("/v1/methods").data).methods}


def test_every_method_says_all_that_is_needed_to_choose_it(methods: dict[str, MethodInfo]) -> None:
    for method in methods.values():
        assert all((method.summary, method.weakness, method.sanity, method.cost)), method.name
        assert method.paper.startswith("https://"), method.name
        assert method.needs_layer == (method.max_layers > 0)
        assert method.seeded == ("seed" in method.parameters["properties"])


def test_facts_of_methods_that_are_known_from_their_papers(methods: dict[str, MethodInfo]) -> None:
    assert (methods["gradcam"].needs_layer, methods["gradcam"].class_specific) == (True, True)
    assert not methods["eigencam"].class_specific
    assert (methods["rise"].uses_gradients, methods["rise"].seeded, methods["rise"].cost_class) == (False, True, "high")
    assert not methods["saliency"].seeded
    assert methods["guided_backprop"].fails_randomisation
    assert not methods["gradcam"].fails_randomisation
    assert methods["saliency"].parameters["properties"]["reduction"]["enum"] == ["max_abs", "signed_sum"]
    samples = methods["rise"].parameters["properties"]["samples"]
    assert samples["minimum"] <= samples["default"] <= samples["maximum"]


def test_the_documentation_admits_what_any_method_admits_and_says_which(
    client: FlaskClient, methods: dict[str, MethodInfo]
) -> None:
    document = json.loads(client.get("/openapi.json").data)
    listed = {p["name"]: p["schema"] for p in document["paths"]["/v1/explain"]["post"]["parameters"]}
    for method in methods.values():
        for name, own in method.parameters["properties"].items():
            shown = listed[name]
            assert method.name in shown["description"], name
            assert own["description"] in shown["description"], (method.name, name)
            assert shown.get("minimum", -np.inf) <= own.get("minimum", np.inf), (method.name, name)
            assert shown.get("maximum", np.inf) >= own.get("maximum", -np.inf), (method.name, name)
            assert set(own.get("enum", ())) <= set(shown.get("enum", own.get("enum", ()))), (method.name, name)
    assert "default" not in listed["samples"]


def test_several_layers_make_one_map_and_the_headers_list_them(client: FlaskClient, cat: bytes) -> None:
    response = post(client, cat, "layer=bn1&layer=blocks.2.1&format=npy")
    assert [unquote(name) for name in response.headers["X-HeatLens-Layer"].split(",")] == ["bn1", "blocks.2.1"]
    fused = array(response)
    one, other = (array(post(client, cat, f"layer={layer}&format=npy")) for layer in ("bn1", "blocks.2.1"))
    assert not np.array_equal(fused, one)
    assert not np.array_equal(fused, other)
    got = answer(post(client, cat, "layer=bn1&layer=blocks.2.1&format=json"))
    assert got.layers == ["bn1", "blocks.2.1"]
    assert (got.explanations[0].map.width, got.explanations[0].map.height) == (112, 112)  # the finer of the two


def test_more_layers_than_a_method_takes_are_refused_with_the_limit(
    client: FlaskClient, cat: bytes, methods: dict[str, MethodInfo]
) -> None:
    most = methods["gradcam"].max_layers
    names = [f"layer=blocks.{stage}.{block}" for stage, blocks in enumerate((1, 2, 2, 3, 3)) for block in range(blocks)]
    response = post(client, cat, "&".join(names[: most + 1]))
    problem = json.loads(response.data)
    assert (response.status_code, problem["field"]) == (422, "layer")


def test_a_plus_in_a_methods_name_may_stand_in_the_query_as_it_is(client: FlaskClient, cat: bytes) -> None:
    for query in ("method=gradcam++", "method=gradcam%2B%2B"):
        assert post(client, cat, query).headers["X-HeatLens-Method"] == "gradcam++"
    form = client.post("/v1/explain", data={"image": (io.BytesIO(cat), "cat.png"), "method": "gradcam++"})
    assert form.headers["X-HeatLens-Method"] == "gradcam++"


def test_the_answer_says_whether_the_map_depends_on_the_class(client: FlaskClient, cat: bytes) -> None:
    assert answer(post(client, cat, "format=json")).method.class_specific
    got = answer(post(client, cat, "method=eigencam&target=281&target=285&format=json"))
    assert not got.method.class_specific
    first, second = got.explanations
    assert first.picture == second.picture
    assert (first.target.index, second.target.index) == (281, 285)


def test_the_completeness_gap_is_what_the_map_misses(client: FlaskClient, cat: bytes) -> None:
    def gap(query: str) -> float | None:
        return answer(post(client, cat, f"{query}&format=json")).explanations[0].map.completeness_gap

    assert gap("method=gradcam") is None
    rough, fine = gap("method=integrated_gradients&steps=2"), gap("method=integrated_gradients&steps=40")
    assert rough is not None
    assert fine is not None
    assert abs(fine) < abs(rough)


def test_a_seed_repeats_the_map(client: FlaskClient, cat: bytes) -> None:
    query = "model=small&method=rise&samples=20&format=npy"
    first, again, other = (array(post(client, cat, f"{query}&seed={seed}")) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_a_black_pixel_is_depends_on_the_models_preprocessing(client: FlaskClient) -> None:
    service: Any = client.application.extensions["heatlens"]
    # (0 - mean) / std of each channel: mean and std are 0.5 in efficientnet_lite0, and 0 and 1 in the zoo
    for name, black in (("efficientnet_lite0", -1.0), ("small", 0.0)):
        assert service.hosts.ready(name).network.subject.black == (black,) * 3


def test_every_method_answers_for_a_small_network_or_says_why_not(
    client: FlaskClient, cat: bytes, methods: dict[str, MethodInfo]
) -> None:
    for method in methods.values():
        few = {"samples": 4, "steps": 4, "segments": 4}
        parameters = {name: n for name, n in few.items() if name in method.parameters["properties"]}
        body = {"method": method.name, "model": "small", "target": "top2", "format": "json", **parameters}
        response = client.post("/v1/explain", query_string=body, data=cat, content_type="image/png")
        if method.family == "attention":
            assert json.loads(response.data)["code"] == "method_not_applicable", method.name
        else:
            assert response.status_code == 200, (method.name, response.text)
            got = ExplainAnswer.model_validate_json(response.data)
            assert got.method.name == method.name
            assert got.method.parameters.keys() == method.parameters["properties"].keys()
            assert len(got.explanations) == 2
