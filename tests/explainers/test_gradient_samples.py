"""What the methods that take gradients in many copies of a picture promise: how they run the model, and the noise."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Explanation, Subject, Target, Work, explain, get
from explainers.batch import Batch, Maps
from explainers.errors import BadParameter, TargetOutOfRange, TooManySamples
from tests.explainers.checks import assert_same, maps, snapshot
from tests.explainers.nets import CLASSES, PLAIN, pictures, seeded
from tests.explainers.odd_nets import Wary

COUNTS = {"smoothgrad": "samples", "vargrad": "samples", "integrated_gradients": "steps", "gradient_shap": "samples"}
"""The methods, and what their number of copies is called."""
NOISY = [method for method, count in COUNTS.items() if count == "samples"]
each_method = pytest.mark.parametrize("method", COUNTS)
TARGETS = [[Target(0)], [Target(1), Target(3, versus=0)]]


def request(
    method: str, net: nn.Module, *, work: Work | None = None, x: Tensor | None = None, **parameters: object
) -> Maps:
    """Run a method with 21 copies for one target of the first picture and two of the second."""
    x = PLAIN.pictures(2) if x is None else x
    chosen = get(method)
    checked = chosen.parameters.model_validate({COUNTS[method]: 21} | parameters)
    return chosen.run(Batch(Subject(net, net), x, TARGETS, work=work or Work()), checked)


def assert_same_maps(actual: Maps, expected: Maps) -> None:
    for k, n in ((0, 0), (0, 1), (1, 1)):
        assert_same(actual.rounds[k][n], expected.rounds[k][n], 1e-12)
        if expected.gaps is not None:
            assert abs(actual.gaps[k][n] - expected.gaps[k][n]) < 1e-12


# How the model is run


@each_method
@pytest.mark.parametrize("chunk", [1, 2, 5, 10_000])
def test_the_chunk_does_not_matter(method: str, chunk: int) -> None:
    net = Wary()
    assert_same_maps(request(method, net, work=Work(chunk=chunk)), request(method, Wary()))
    assert max(net.batches) <= max(chunk, 2)  # the two pictures themselves run together


@each_method
def test_no_memory_halves_the_chunk_and_changes_nothing(method: str) -> None:
    net, work = Wary(most=5), Work(chunk=16)
    assert_same_maps(request(method, net, work=work), request(method, Wary()))
    assert work.chunk == 4
    assert max(net.batches) == 4


@each_method
def test_each_picture_costs_its_copies_once(method: str) -> None:
    """Whatever the targets: 21 copies each, the picture itself, and for the complete methods the baseline."""
    net = Wary()
    request(method, net)
    ends = 1 if method in ("smoothgrad", "vargrad") else 2
    assert sum(net.batches) == 2 * (21 + ends)


@each_method
def test_a_picture_with_an_error_costs_no_copies(method: str) -> None:
    net = Wary()
    x = PLAIN.pictures(3)
    x[1, 0, 0, 0] = float("nan")
    targets = [[Target(0)], [Target(0)], [Target(CLASSES)]]
    answers = explain(Subject(net, net), x, targets, method=method, parameters={COUNTS[method]: 7})
    assert [isinstance(answer, Explanation) for answer in answers] == [True, False, False]
    assert isinstance(answers[2], TargetOutOfRange)
    ends = 0 if method in ("smoothgrad", "vargrad") else 1
    assert sum(net.batches) == 3 + 7 + ends


@each_method
def test_nothing_to_explain_is_no_work(method: str) -> None:
    net = Wary()
    answers = explain(Subject(net, net), PLAIN.pictures(2), [[], [Target(-1)]], method=method)
    assert isinstance(answers[0], Explanation)
    assert answers[0].attributions == []
    assert isinstance(answers[1], TargetOutOfRange)
    assert net.batches == [2]


@each_method
def test_progress_is_heard_until_the_end(method: str) -> None:
    heard: list[tuple[int, int]] = []
    request(method, Wary(), work=Work(chunk=8, on_step=lambda done, total: heard.append((done, total))))
    assert heard == [(done, 42) for done in (0, 8, 16, 24, 32, 40, 42)]


@each_method
def test_the_work_ends_when_nobody_waits(method: str) -> None:
    class Left(Exception):
        pass

    def leave(done: int, _total: int) -> None:
        if done >= 16:
            raise Left

    net = Wary()
    state = snapshot(net.net)
    with pytest.raises(Left):
        request(method, net, work=Work(chunk=8, on_step=leave))
    assert net.batches == [2, 8, 8]
    assert snapshot(net.net) == state


@each_method
def test_too_many_copies_are_refused_before_the_first(method: str) -> None:
    net = Wary()
    with pytest.raises(
        TooManySamples, match=f"{method} with 21 {COUNTS[method]} takes 21 runs.*the most is 20"
    ) as caught:
        request(method, net, work=Work(limit=20, limit_name="the most"))
    assert caught.value.field == COUNTS[method]
    assert net.batches == []
    request(method, net, work=Work(limit=21))


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("smoothgrad", {"samples": 0}),
        ("smoothgrad", {"samples": 10_001}),
        ("smoothgrad", {"noise": -0.1}),
        ("smoothgrad", {"noise": 1.5}),
        ("smoothgrad", {"noise": float("nan")}),
        ("smoothgrad", {"seed": -1}),
        ("smoothgrad", {"seed": 2**31}),
        ("smoothgrad", {"reduction": "mean"}),
        ("vargrad", {"samples": 1}),
        ("integrated_gradients", {"steps": 0}),
        ("integrated_gradients", {"steps": 1001}),
        ("integrated_gradients", {"baseline": "white"}),
        ("gradient_shap", {"baseline": "white"}),
    ],
    ids=str,
)
def test_values_out_of_bounds_are_named(method: str, parameters: dict[str, object]) -> None:
    with pytest.raises(BadParameter) as caught:
        explain(Subject(PLAIN.build(), Wary()), PLAIN.pictures(1), [[Target(0)]], method=method, parameters=parameters)
    assert [caught.value.field] == list(parameters)


# Noise


@pytest.mark.parametrize("method", NOISY)
def test_the_seed_decides(method: str) -> None:
    def bits(**parameters: object) -> bytes:
        return request(method, PLAIN.build(), **parameters).rounds[0].numpy().tobytes()

    assert bits() == bits() == bits(seed=0)
    assert bits() != bits(seed=1)
    assert bits(seed=2**31 - 1) != bits(seed=2**31 - 2)


@pytest.mark.parametrize("method", NOISY)
def test_noise_is_a_share_of_each_picture_s_own_range(method: str) -> None:
    """y(k x + m) has the gradient k * y', so a network that undoes k and m sees the same noisy copies."""
    net, x, scale = PLAIN.build(), PLAIN.pictures(2), 5.0
    shift = 0.0 if method == "gradient_shap" else 3.0  # its black baseline does not move along
    undone = nn.Sequential(Undo(scale, shift), net)
    original = request(method, net, x=x).rounds[0]
    power = {"smoothgrad": 1, "vargrad": 2, "gradient_shap": 0}[method]
    assert_same(request(method, undone, x=scale * x + shift).rounds[0] * scale**power, original, 1e-9)


class Undo(nn.Module):
    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale


# Number formats, modes, several channels


@each_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("unfrozen", [False, True])
def test_any_grad_mode_says_the_same(method: str, mode: Callable[[], Any], unfrozen: bool) -> None:
    net = PLAIN.build().requires_grad_(unfrozen)
    expected = request(method, PLAIN.build())
    with mode():
        actual = request(method, net)
    assert_same_maps(actual, expected)
    assert not any(round_.requires_grad for round_ in actual.rounds)
    assert all(parameter.grad is None for parameter in net.parameters())


@each_method
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.1)])
def test_half_precision_models_give_float32_maps(method: str, dtype: torch.dtype, tolerance: float) -> None:
    # float16 has 11 significant bits, bfloat16 8: 2^-11 and 2^-8 per operation, some ten of them, squared in vargrad.
    net = seeded(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 63, CLASSES)))
    half = copy.deepcopy(net).to(dtype)
    x, targets = pictures(1, 9, 7), [[Target(2)]]
    # The noise of the half-precision picture is rounded too: both see pictures of its precision, and little noise.
    parameters: dict[str, Any] = {COUNTS[method]: 5} | ({"noise": 0.25} if method in NOISY else {})
    (expected,) = maps(Subject(net, net), method, x, targets, **parameters)
    (actual,) = maps(Subject(half, lambda inputs: half(inputs).float()), method, x.to(dtype), targets, **parameters)
    assert actual.dtype == torch.float32
    assert_same(actual, expected, tolerance)


@each_method
@pytest.mark.parametrize("channels", [1, 4])
def test_any_number_of_channels(method: str, channels: int) -> None:
    net = seeded(nn.Sequential(nn.Conv2d(channels, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 3 * 2, 3)))
    (map_,) = maps(
        Subject(net, net), method, pictures(1, 5, 4, channels=channels), [[Target(2)]], **{COUNTS[method]: 3}
    )
    assert map_.shape == (1, 5, 4)
    assert map_.abs().max() > 0
