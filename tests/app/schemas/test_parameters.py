"""Parameters that methods share by name: one schema admits what any of them admits, and its text says which."""

import pytest

from app.schemas.parameters import allowed, merged, shown


def integer(low: int, high: int, default: int, words: str = "How many") -> dict[str, object]:
    return {"type": "integer", "minimum": low, "maximum": high, "default": default, "description": words}


def test_bounds_are_the_widest_and_each_method_has_its_own_in_words() -> None:
    found = merged({"a": {"n": integer(2, 10, 5)}, "b": {"n": integer(1, 9, 3)}, "c": {"n": integer(2, 10, 5)}})
    assert found == {
        "n": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "description": "a, c: How many (from 2 to 10); default 5.\n\nb: How many (from 1 to 9); default 3.",
        }
    }


def test_a_bound_that_one_method_has_not_binds_nobody() -> None:
    found = merged({"a": {"n": integer(2, 10, 5)}, "b": {"n": {"type": "integer", "minimum": 1}}})
    assert found["n"].keys() == {"type", "minimum", "description"}


def test_choices_are_united_and_told_where_they_differ() -> None:
    one = {"type": "string", "enum": ["x", "y"], "description": "Which"}
    assert merged({"a": {"w": one}, "b": {"w": one}})["w"]["description"] == "a, b: Which."
    found = merged({"a": {"w": one}, "b": {"w": {**one, "enum": ["y", "z"]}}})["w"]
    assert found["enum"] == ["x", "y", "z"]
    assert found["description"] == "a: Which (x, y).\n\nb: Which (y, z)."


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"enum": ["x", 1]}, "x, 1"),
        ({"minimum": 0, "maximum": 0.5}, "from 0 to 0.5"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, "above 0 below 1"),
        ({"minimum": 2}, "from 2"),
        ({}, ""),
    ],
)
def test_what_is_allowed_in_words(schema: dict[str, object], words: str) -> None:
    assert allowed(schema) == words


def test_one_seventh_is_shown_in_four_digits() -> None:
    assert [shown(value) for value in (1 / 7, 1.0, 5, "mean", None)] == ["0.1429", "1", "5", "mean", "None"]
