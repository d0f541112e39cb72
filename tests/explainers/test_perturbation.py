"""What all methods of the family promise: how they run the model, and what they leave behind."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from explainers import Subject, Target, Work, explain, get, names
from explainers.errors import TooManySamples
from explainers.registry import Method
from tests.explainers.checks import assert_same, maps, snapshot
from tests.explainers.nets import PLAIN, Head, pictures, seeded
from tests.explainers.odd_nets import Call, Wary

METHODS = [name for name in names() if get(name).family == "perturbation"]
each_method = pytest.mark.parametrize("method", METHODS)


def few(method: str) -> dict[str, Any]:
    """Return parameters under which the model runs some 20 to 60 times."""
    fields = get(method).parameters.model_fields
    samples = 5 if method == "shapley_sampling" else 21
    values = {"samples": samples, "segments": 6, "window": 0.5, "stride": 0.25}
    return {name: value for name, value in values.items() if name in fields}


def request(method: str, work: Work, *, most: int = 1000) -> tuple[list[torch.Tensor], Wary]:
    """Explain two pictures for one and two targets."""
    net = Wary(most)
    answers = explain(
        Subject(net, net),
        PLAIN.pictures(2),
        [[Target(0)], [Target(1), Target(3, versus=0)]],
        method=method,
        parameters=few(method),
        work=work,
    )
    return [torch.from_numpy(attribution.raw) for answer in answers for attribution in answer.attributions], net


def test_the_family() -> None:
    assert METHODS == ["kernel_shap", "lime", "occlusion", "rise", "shapley_sampling"]


@each_method
@pytest.mark.parametrize("chunk", [1, 2, 7, 10_000])
def test_the_chunk_does_not_matter(method: str, chunk: int) -> None:
    expected, _ = request(method, Work())
    actual, net = request(method, Work(chunk=chunk))
    assert max(net.batches) <= max(chunk, 2)  # the two pictures themselves run together
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other, 1e-6)


@each_method
def test_no_memory_halves_the_chunk_and_changes_nothing(method: str) -> None:
    expected, _ = request(method, Work())
    work = Work(chunk=16)
    actual, net = request(method, work, most=5)
    assert work.chunk == 4
    assert max(net.batches) == 4
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other, 1e-6)


@each_method
def test_several_targets_cost_no_more_runs(method: str) -> None:
    runs = []
    for targets in ([Target(0)], [Target(0), Target(1), Target(2, versus=3)]):
        net = Wary(1000)
        explain(Subject(net, net), PLAIN.pictures(1), [targets], method=method, parameters=few(method))
        runs.append(sum(net.batches))
    assert runs[0] == runs[1] > 10


@each_method
def test_progress_is_heard_until_the_end(method: str) -> None:
    heard: list[tuple[int, int]] = []
    _, net = request(method, Work(chunk=8, on_step=lambda done, total: heard.append((done, total))))
    total = sum(net.batches) - 2
    assert heard == [(done, total) for done in range(0, total, 8)] + [(total, total)]


@each_method
def test_the_work_ends_when_nobody_waits(method: str) -> None:
    class Left(Exception):
        pass

    def leave(done: int, _total: int) -> None:
        if done >= 16:
            raise Left

    net = Wary(1000)
    state = snapshot(net.net)
    with pytest.raises(Left):
        explain(
            Subject(net, net),
            PLAIN.pictures(1),
            [[Target(0)]],
            method=method,
            parameters=few(method),
            work=Work(chunk=8, on_step=leave),
        )
    assert sum(net.batches) == 1 + 16
    assert snapshot(net.net) == state


@each_method
def test_too_many_runs_are_refused_before_the_first(method: str) -> None:
    net = Wary(1000)
    with pytest.raises(TooManySamples, match="HEATLENS_LIMIT is 10") as caught:
        explain(
            Subject(net, net),
            PLAIN.pictures(1),
            [[Target(0)]],
            method=method,
            parameters=few(method),
            work=Work(limit=10, limit_name="HEATLENS_LIMIT"),
        )
    assert caught.value.field in get(method).parameters.model_fields
    assert net.batches == []


@each_method
@pytest.mark.parametrize("channels", [1, 4])
def test_any_number_of_channels(method: str, channels: int) -> None:
    # Channels are shown and hidden together: a network over copies of one channel is one over that channel.
    net = seeded(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU(), Head(4)))
    many = Call(lambda x: net(x.mean(dim=1, keepdim=True)))
    x, targets = pictures(1, 12, 10, channels=1), [[Target(2)]]
    (expected,) = maps(Subject(net, net), method, x, targets, **few(method))
    (actual,) = maps(Subject(many, many), method, x.expand(1, channels, 12, 10), targets, **few(method))
    assert_same(actual, expected, 1e-9)


@each_method
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_models_give_float32_maps(method: str, dtype: torch.dtype, tolerance: float) -> None:
    # Scores are off by a few roundings of 2^-8 or 2^-11, and maps are differences and means of scores.
    net = seeded(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), Head(4)))
    half, x = copy.deepcopy(net).to(dtype), pictures(1, 12, 10)
    x[0, :, 3:7, 2:6] += 6  # something that stands out by more than the roundings
    (expected,) = maps(Subject(net, net), method, x, [[Target(1)]], **few(method))
    (actual,) = maps(Subject(half, lambda x: half(x).float()), method, x.to(dtype), [[Target(1)]], **few(method))
    assert actual.dtype == torch.float32
    rounding = tolerance * float(net(x).abs().max())
    assert (actual - expected).abs().max() < 3 * rounding
    assert expected.abs().max() > 10 * rounding


@each_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_works_in_any_grad_mode_and_says_the_same(method: str, mode: Callable[[], Any]) -> None:
    net, x = PLAIN.build().requires_grad_(), PLAIN.pictures(1)
    (expected,) = maps(Subject(net, net), method, x, [[Target(0)]], **few(method))
    with mode():
        (actual,) = maps(Subject(net, net), method, x, [[Target(0)]], **few(method))
    assert_same(actual, expected)
    assert not actual.requires_grad


@each_method
def test_says_what_it_is(method: str) -> None:
    entry: Method = get(method)
    assert not entry.uses_gradients
    assert entry.cost_class == "high"
    assert entry.max_layers == 0
