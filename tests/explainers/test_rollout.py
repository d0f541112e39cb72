"""The attention methods: by hand, against their literal twins, and what they promise on real transformers."""

import contextlib
import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Explanation, Rank, Subject, Target, explain
from explainers.attention import Attention
from explainers.errors import MethodNotApplicable, NonFiniteScores, NotConnected
from tests.explainers.checks import assert_same, maps, snapshot, twin
from tests.explainers.nets import pictures, seeded
from tests.explainers.odd_nets import UnderMode
from tests.explainers.transformers import NETS, REFUSED_BY_LEGRAD, TIMM, Net, Refused, vit

METHODS = ("attention_rollout", "grad_rollout", "legrad")
each_method = pytest.mark.parametrize("method", METHODS)
each_net = pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
TARGETS = [[Target(0)], [Target(1), Target(3, versus=1)], [Target(Rank(0)), Target(Rank(4)), Target(2)]]


# By hand


class ByHand(nn.Module):
    """A class token and two patches of one number each, which attend with weights that are what they are.

    After each block a token is what it was plus the mean of what it looks at; the score is the class token, and
    class 1 its negative.
    """

    def __init__(self, *weights: list[list[float]], read: list[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Fixed(each) for each in weights])
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        patches = x.mean(dim=1).flatten(1)[..., None]
        tokens = torch.cat([torch.zeros_like(patches[:, :1]), patches], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        score = tokens[:, self.read, 0].mean(dim=1)
        return torch.stack([score, -score], dim=1)


class Fixed(nn.Module):
    def __init__(self, weights: list[list[float]]) -> None:
        super().__init__()
        self.register_buffer("logits", torch.tensor(weights, dtype=torch.float64).log())

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.logits.expand(len(tokens), 1, 3, 3).softmax(dim=-1)[:, 0] @ tokens


def two(tokens: Tensor) -> Tensor:
    """`(N, 3, C)` to `(N, C, 1, 2)`: the class token goes."""
    return tokens[:, 1:].transpose(1, 2)[:, :, None]


A = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.25, 0.5, 0.25]]
B = [[0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
X = torch.tensor([[[[4.0, -2.0]]]], dtype=torch.float64).expand(1, 3, 1, 2)
"""The patches are 4 and -2; the class token begins with 0."""


@pytest.mark.parametrize(
    ("method", "weights", "read", "index", "expected"),
    [
        # One block: half of the class token's row, less the identity's half, which is on the class token.
        ("attention_rollout", (A,), [0], 0, [0.15, 0.25]),
        # Two: (B + I)/2 has the first row [0.75, 0.2, 0.05], and it mixes the rows of (A + I)/2, which end in
        # [0.15, 0.25], [0.65, 0.05] and [0.25, 0.625]: 0.1125 + 0.13 + 0.0125 and 0.1875 + 0.01 + 0.03125.
        ("attention_rollout", (A, B), [0], 0, [0.255, 0.22875]),
        # The head reads the patches: the mean of the rows [0.65, 0.05] and [0.25, 0.625].
        ("attention_rollout", (A,), [1, 2], 0, [0.45, 0.3375]),
        # dy/dA[0] is what is looked at, [0, 4, -2]; times A[0] and positive: [0, 1.2, 0]. Class 1: [0, 0, 1].
        ("grad_rollout", (A,), [0], 0, [1.2, 0.0]),
        ("grad_rollout", (A,), [0], 1, [0.0, 1.0]),
        # Two blocks. After the first the tokens are [0.2, 5, -0.5]: 0 + 1.2 - 1, 4 + 1.2 - 0.2 and -2 + 2 - 0.5.
        # Of the last: max([0.2, 5, -0.5] * B[0], 0) = [0.1, 2, 0] in row 0. Of the first, dy/dA[i] is [0, 4, -2]
        # times dy/dtoken i = B[0] + [1, 0, 0] = [1.5, 0.4, 0.1], times A and positive: only the column of 4,
        # 6 * 0.3, 1.6 * 0.3, 0.4 * 0.5 = 1.8, 0.48, 0.2. (I + B)(I + A) - I in row 0, with [1.1, 2, 0] of I + B:
        # 1.1 * 1.8 + 2 * 1.48 and 0.
        ("grad_rollout", (A, B), [0], 0, [4.94, 0.0]),
        # The head reads two tokens, each of which is half of the score: 2 * 0.3 and 2 * 0.5, of which the mean.
        ("grad_rollout", (A,), [1, 2], 0, [0.8, 0.0]),
        # The positive gradient in row 0, a mean over three rows. Class 1: 2 / 3.
        ("legrad", (A,), [0], 0, [4 / 3, 0.0]),
        ("legrad", (A,), [0], 1, [0.0, 2 / 3]),
        # After the first block the head reads the class token there: 4 / 3 again. Of the last block 5 / 3.
        ("legrad", (A, B), [0], 0, [1.5, 0.0]),
        # The head reads two tokens: 2 / 3 from each of two rows.
        ("legrad", (A,), [1, 2], 0, [4 / 3, 0.0]),
    ],
)
def test_it_is_what_is_found_by_hand(
    method: str, weights: tuple[list[list[float]], ...], read: list[int], index: int, expected: list[float]
) -> None:
    net = ByHand(*weights, read=read).eval()
    (actual,) = maps(Subject(net, net), method, X, [[Target(index)]], token_grids={3: two})
    assert_same(actual[0], [expected])
    assert_same(twin(method, net, X, index, to_grid=two), [expected])


# The literal twins


@each_method
@pytest.mark.parametrize("net", [net for net in NETS if net.literal], ids=lambda net: net.name)
def test_it_equals_its_literal_twin(method: str, net: Net) -> None:
    model, x = net.build(), net.pictures(2)
    assert net.literal is not None
    literal, targets = net.literal(), [[Target(1), Target(3, versus=2)]] * 2
    rounds = maps(Subject(model, model), method, x, targets, token_grids=net.token_grids)
    for n in range(2):
        for k, (of, versus) in enumerate([(1, None), (3, 2)]):
            assert_same(rounds[k][n], twin(method, literal, x[n : n + 1], of, versus, to_grid=net.to_grid))


# What all methods promise, on transformers of every kind


@each_method
@each_net
def test_a_batch_equals_its_pictures_and_targets_frozen_or_not(method: str, net: Net) -> None:
    model, x, grids = net.build(), net.pictures(3), net.token_grids
    before = snapshot(model)
    rounds = maps(Subject(model, model), method, x, TARGETS, token_grids=grids)
    assert snapshot(model) == before
    model.requires_grad_()
    for n, targets in enumerate(TARGETS):
        for k, target in enumerate(targets):
            (alone,) = maps(Subject(model, model), method, x[n : n + 1], [[target]], token_grids=grids)
            assert_same(rounds[k][n], alone[0])
    assert all(parameter.grad is None for parameter in model.parameters())


@each_net
def test_rollout_is_the_same_for_all_targets_and_adds_up_to_at_most_1(net: Net) -> None:
    model, x = net.build(), net.pictures(2)
    one, other = maps(
        Subject(model, model), "attention_rollout", x, [[Target(0), Target(1)]] * 2, token_grids=net.token_grids
    )
    assert torch.equal(one, other)
    total = one.sum(dim=(1, 2))
    # What is not on patches is on the prefix tokens; without any of them everything is on patches.
    assert bool((total < 1 - 1e-6).all()) if net.prefix else torch.allclose(total, torch.ones(2, dtype=total.dtype))


@each_method
def test_a_bad_picture_fails_alone(method: str) -> None:
    model, x = TIMM.build(), TIMM.pictures(3)
    options: dict[str, Any] = {"method": method, "token_grids": TIMM.token_grids}
    good = explain(Subject(model, model), x, [[Target(0)]] * 3, **options)
    x[1, 0, 3, 3] = torch.nan
    answers = explain(Subject(model, model), x, [[Target(0)]] * 3, **options)
    assert isinstance(answers[1], NonFiniteScores)
    for n in (0, 2):
        one, other = answers[n], good[n]
        assert isinstance(one, Explanation)
        assert isinstance(other, Explanation)
        assert_same(one.attributions[0].raw, other.attributions[0].raw, 1e-6)
    x[:] = torch.nan
    assert [type(answer) for answer in explain(Subject(model, model), x, [[Target(0)]] * 3, **options)] == [
        NonFiniteScores
    ] * 3


@each_method
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.2), (torch.float16, 0.03)])
def test_half_precision_models_give_float32_maps(method: str, dtype: torch.dtype, tolerance: float) -> None:
    # bfloat16 has 8 significant bits, float16 11: a relative error of 2^-8 and 2^-11 per operation, some fifty of them.
    model, x = TIMM.build(), TIMM.pictures(1)
    half = copy.deepcopy(model).to(dtype)
    (expected,) = maps(Subject(model, model), method, x, [[Target(2)]], token_grids=TIMM.token_grids)
    subject = Subject(half, lambda inputs: half(inputs).float())
    (actual,) = maps(subject, method, x.to(dtype), [[Target(2)]], token_grids=TIMM.token_grids)
    assert actual.dtype == torch.float32
    assert_same(actual, expected, tolerance)


@each_method
@pytest.mark.parametrize("unfrozen", [False, True])
@pytest.mark.parametrize(
    ("part", "mode"),
    [("", torch.no_grad), ("", torch.inference_mode), ("blocks.2", torch.no_grad), ("norm", torch.no_grad)],
)
def test_a_model_that_cuts_the_gradient_is_named_and_left_alone(
    method: str, part: str, mode: Any, unfrozen: bool
) -> None:
    model, x = TIMM.build().requires_grad_(unfrozen), TIMM.pictures(2)
    inner = model.get_submodule(part)
    inner.forward = UnderMode(mode, inner.forward).forward
    subject, before = Subject(model, model), snapshot(model)
    with torch.inference_mode(), pytest.raises(NotConnected, match="does not depend on the attention"):
        explain(subject, x, [[Target(0)]] * 2, method=method, token_grids=TIMM.token_grids)
    assert snapshot(model) == before


@each_method
def test_no_weights_outlive_the_answer_or_the_error(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Tensor]] = []

    class Remembered(list):
        def append(self, weights: Tensor) -> None:
            seen.append(weakref.ref(weights))
            super().append(weights)

    begin = Attention.__init__

    def remember(attention: Attention, pictures: int) -> None:
        begin(attention, pictures)
        attention.weights = Remembered()

    monkeypatch.setattr(Attention, "__init__", remember)
    model, x = TIMM.build(), TIMM.pictures(1)
    gc.collect()
    gc.disable()  # so that cycles would show
    try:
        for grids in (TIMM.token_grids, {}):
            with contextlib.suppress(MethodNotApplicable):
                explain(Subject(model, model), x, [[Target(0)]], method=method, token_grids=grids)
            assert len(seen) >= 3
            assert [each() for each in seen if each() is not None] == []
            seen.clear()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("method", "changes"), [("attention_rollout", False), ("grad_rollout", True), ("legrad", True)]
)
def test_another_head_changes_the_maps_that_say_so(method: str, changes: bool) -> None:
    """What `sanity` says of the head, whose weights the randomisation check takes first."""
    model, other, x = TIMM.build(), TIMM.build(), TIMM.pictures(1)
    seeded(other.head, seed=1)
    one, two = (
        maps(Subject(net, net), method, x, [[Target(0)]], token_grids=TIMM.token_grids)[0][0] for net in (model, other)
    )
    correlation = torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]
    assert (correlation < 0.9) if changes else torch.equal(one, two)


# LeGrad, whose head is asked after each block


@pytest.mark.parametrize("refused", REFUSED_BY_LEGRAD.values(), ids=list(REFUSED_BY_LEGRAD))
def test_legrad_refuses_models_whose_blocks_it_cannot_tell(refused: Refused) -> None:
    model, x = refused.build(), pictures(2, *refused.size)
    before, targets = snapshot(model), [[Target(0)]] * 2
    for _ in range(2):
        with pytest.raises(MethodNotApplicable, match=f"{refused.match}.*grad_rollout"):
            explain(Subject(model, model), x, targets, method="legrad", token_grids=refused.token_grids)
        assert snapshot(model) == before
    for answer in explain(Subject(model, model), x, targets, method="grad_rollout", token_grids=refused.token_grids):
        assert isinstance(answer, Explanation)


def test_legrad_takes_a_block_that_runs_twice_at_both_its_calls() -> None:
    model, x = vit(fused=False, depth=2), TIMM.pictures(1)
    model.blocks[1] = model.blocks[0]
    apart = copy.deepcopy(model)
    apart.blocks[1] = copy.deepcopy(apart.blocks[0])
    (actual,) = maps(Subject(model, model), "legrad", x, [[Target(0)]], token_grids=TIMM.token_grids)
    assert_same(actual[0], twin("legrad", apart, x, 0, to_grid=TIMM.to_grid))
