"""What a JSON body may hold is known before it is parsed."""

import base64
import json
import tracemalloc
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.json_limits import check_limits
from app.errors import JsonTooComplex
from tests.app.imaging import files

ANY = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(alphabet='ab,[]{}"\\é\n', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[{,"\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=25,
)


def depth_of(value: Any) -> int:
    children = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else None
    return 0 if children is None else 1 + max(map(depth_of, children), default=0)


def values_of(value: Any) -> int:
    """An empty list counts twice: that much is not known without parsing."""
    children = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else None
    return 1 if children is None else 2 if not children else 1 + sum(map(values_of, children))


def refused(data: bytes, *, max_depth: int, max_values: int) -> str | None:
    try:
        check_limits(data, max_depth=max_depth, max_values=max_values)
    except JsonTooComplex as error:
        return str(error.extra["setting"])
    return None


@given(value=ANY, ascii_=st.booleans())
@settings(max_examples=300, deadline=None)
def test_both_limits_are_met_exactly_whatever_stands_in_strings(value: object, ascii_: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_).encode()
    depth, values = depth_of(value), values_of(value)
    assert refused(data, max_depth=depth, max_values=values) is None
    if depth:
        assert refused(data, max_depth=depth - 1, max_values=values) == "HEATLENS_MAX_JSON_DEPTH"
    assert refused(data, max_depth=depth, max_values=values - 1) == "HEATLENS_MAX_JSON_VALUES"


@given(data=st.binary(max_size=200) | st.text(alphabet='[]{},:"\\a1 ', max_size=60).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_what_is_no_json_at_all_does_not_confuse_it(data: bytes) -> None:
    assert refused(data, max_depth=4, max_values=10) in (None, "HEATLENS_MAX_JSON_DEPTH", "HEATLENS_MAX_JSON_VALUES")


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b"1,", b'{"":[]},', b"["])
def test_millions_of_values_are_refused_before_python_makes_objects_of_them(piece: bytes) -> None:
    """17 MiB of them. As objects they would take 50 to 600 MB; what is looked at is bytes, and a few copies of them."""
    data = b"[" + piece * (17 * 2**20 // len(piece))
    tracemalloc.start()
    try:
        assert refused(data, max_depth=32, max_values=4_000_000) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(data)


def test_quotes_that_never_end_are_looked_at_once() -> None:
    """An expression that began anew at each of these four million quotes would not end today."""
    data = b'["' + b'\\"' * 4_000_000 + b"\\"
    assert refused(data + b"[" * 40, max_depth=32, max_values=4_000_000) is None  # all of it is the string
    assert refused(b"[" * 40 + data, max_depth=32, max_values=4_000_000) == "HEATLENS_MAX_JSON_DEPTH"


@pytest.mark.parametrize(
    "url",
    [
        "/v1/explain",
        "/v1/jobs",
        "/v1/images",
        "/v1/models/small:predict",
        "/v2/models/small/infer",
        "/labelstudio/predict",
    ],
)
def test_every_route_that_reads_json_has_them(client: FlaskClient, url: str) -> None:
    response = client.post(url, data=b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", content_type="application/json")
    assert response.status_code == 413
    assert b"HEATLENS_MAX_JSON_DEPTH" in response.data


@pytest.mark.parametrize(
    "url",
    ["/v1/explain", "/v1/jobs", "/v1/images", "/v1/models/small:predict", "/v2/models/small/infer"],
)
@pytest.mark.parametrize("body", [b'{"a":1,"model":"b","model":"c"}', b'{"x":[{"model":1,"model":1}]}'])
def test_no_member_may_stand_there_twice(client: FlaskClient, url: str, body: bytes) -> None:
    response = client.post(url, data=body, content_type="application/json")
    assert response.status_code == 400
    assert b"the member 'model' twice in one object" in response.data  # whichever shape the errors have there


def test_one_member_twice_among_very_many_is_found_in_one_pass(client: FlaskClient) -> None:
    """A look through all for each of 200,000 would not end today."""
    members = b",".join(b'"%d":1' % number for number in range(200_000))
    response = client.post("/v1/explain", data=b"{" + members + b',"199999":2}', content_type="application/json")
    assert json.loads(response.data)["field"] == "199999"


@pytest.mark.parametrize(
    ("url", "option", "values"),
    [
        ("/v1/explain", "target", [10**3999, -(10**3999), [10**3999]]),
        ("/v1/explain", "versus", [10**3999, -(10**3999)]),
        ("/v1/explain", "max_side", [10**3999]),
        ("/v1/compare", "with_target", [10**3999]),
        ("/v1/compare", "max_side", [10**3999]),
        ("/v1/embed-links", "max_side", [10**3999]),
        ("/v1/jobs", "target", [[10**3999]]),
        ("/v1/diagnostics/gradient-flow", "label", [10**3999]),
        ("/v1/diagnostics/sensitivity", "channel", [10**3999]),
        ("/v1/diagnostics/activations", "max_side", [10**3999]),
    ],
)
def test_a_number_of_thousands_of_digits_is_not_echoed(
    client: FlaskClient, url: str, option: str, values: list[Any]
) -> None:
    image = {"base64": base64.b64encode(files.png(1, 1, b"\0\7")).decode()}
    for value in values:
        response = client.post(url, json={"image": image, option: value})
        assert (response.status_code // 100, len(response.data) < 1000) == (4, True)
        assert b"000000000000" not in response.data


@pytest.mark.parametrize("value", [[True], True, [1.5], [None], [""], ["a" * 201]])
def test_what_is_no_class_is_told_that_a_label_would_be_one(client: FlaskClient, value: Any) -> None:
    image = {"base64": base64.b64encode(files.png(1, 1, b"\0\7")).decode()}
    response = client.post("/v1/explain", json={"image": image, "target": value})
    detail = "target: input should be the index of a class, or a label of 1 to 200 characters."
    assert json.loads(response.data)["detail"] == detail


def test_thirty_two_is_not_too_deep(client: FlaskClient) -> None:
    """As deep as the limit allows, so that what is refused is the option, by its name."""
    response = client.post(
        "/v1/explain", data=b'{"image":' + b"[" * 31 + b"]" * 31 + b"}", content_type="application/json"
    )
    assert (response.status_code, json.loads(response.data)["code"]) == (400, "bad_request_body")
