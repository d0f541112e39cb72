from collections.abc import Callable

import pytest

import models.errors
from explainers import errors
from explainers.errors import ExplainError, close_matches

ALL = [ExplainError, *ExplainError.__subclasses__()]


def test_codes_are_distinct_words() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() and code == code.lower() for code in codes)
    assert len(ALL) == sum(isinstance(thing, type) and issubclass(thing, Exception) for thing in vars(errors).values())


@pytest.mark.parametrize("error", ALL)
def test_an_error_carries_text_field_and_facts(error: type[ExplainError]) -> None:
    plain = error("A sentence.")
    assert str(plain) == "A sentence."
    assert plain.field == error.field
    assert plain.extra == {}
    full = error("A sentence.", field="alpha", limit=3)
    assert full.field == "alpha"
    assert full.extra == {"limit": 3}
    assert error("Another.").field == error.field  # an instance's field is its own


def test_close_matches_ignore_case_and_are_at_most_three() -> None:
    assert close_matches("LAYER4", ["layer4", "Layer3", "conv1"])[0] == "layer4"
    assert close_matches("layer", ["layer1", "layer2", "layer3", "layer4"]) != []
    assert len(close_matches("layer", [f"layer{k}" for k in range(9)])) == 3
    assert close_matches("layer3", ["Layer3"]) == ["Layer3"]  # spelt as it is
    assert close_matches("zzz", ["layer1"]) == []


@pytest.mark.parametrize("of", [close_matches, models.errors.close_matches])
def test_what_is_longer_than_any_name_is_compared_with_none(of: Callable[[str, list[str]], list[str]]) -> None:
    assert of("x" * 200, ["x" * 199]) == ["x" * 199]
    assert of("x" * 201, ["x" * 199]) == []
