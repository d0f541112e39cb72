"""A method that calls itself repeatable gives the same map again, whatever the state of everybody's random numbers."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from explainers import Subject, Target, get, names, registry
from explainers.batch import Batch, Maps
from tests.explainers.checks import few, looks_at, maps, with_cases
from tests.explainers.nets import PLAIN, Case

REPEATABLE = [name for name in names() if get(name).repeatable]


def run_with(seed: int, method: str, parameters: dict[str, object], case: Case) -> list[Tensor]:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the legacy state is the global one
    random.seed(seed)
    net = case.build()
    return maps(Subject(net, net), method, case.pictures(2), [[Target(0)]] * 2, **looks_at(method, case), **parameters)


def same_twice(method: str, parameters: dict[str, object], case: Case) -> bool:
    first, second = (run_with(seed, method, parameters, case) for seed in (1, 2))
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("method", "parameters", "case"), with_cases(REPEATABLE))
def test_the_same_again_gives_the_same_map(method: str, parameters: dict[str, object], case: Case) -> None:
    assert same_twice(method, parameters, case)


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["everybody's", "its own"])
def test_a_method_that_draws_without_a_seed_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator | None
) -> None:
    honest = get("saliency")

    def run(batch: Batch, parameters: object) -> Maps:
        found = honest.run(batch, parameters)
        noisy = [round_ + torch.rand(round_.shape, generator=generator) for round_ in found.rounds]
        return replace(found, rounds=noisy)

    monkeypatch.setitem(registry._METHODS, "dice", replace(honest, name="dice", run=run))
    assert not same_twice("dice", few("dice"), PLAIN)
