"""Having a transformer's attention weights: the same output, all weights, the right gradient, nothing left behind."""

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.utils import AttentionExtract
from torch import Tensor, nn

from explainers import Subject, Target, explain
from explainers.attention import Attention, rows_read
from explainers.errors import MethodNotApplicable
from tests.explainers.checks import assert_same, snapshot
from tests.explainers.nets import pictures, seeded
from tests.explainers.transformers import NETS, REFUSED, TIMM, Net, Plain, Refused, vit

each_net = pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)


# The same output


@each_net
def test_what_the_model_says_stays(net: Net) -> None:
    model, x = net.build(), net.pictures(2)
    with torch.inference_mode():
        expected = model(x)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled), Attention(2) as attention:
            actual = model(x)
        assert_same(actual.detach(), expected)
        assert len(attention.weights) == net.depth
        assert attention.others == []
        (tokens,) = net.token_grids
        for weights in attention.weights:
            assert weights.shape[0] == 2
            assert weights.shape[2:] == (tokens, tokens)
            assert weights.requires_grad == enabled
            assert_same(weights.detach().sum(dim=3), torch.ones(weights.shape[:3]))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


FUSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "which may be seen": {"attn_mask": torch.tensor([[True, True, False], [False, True, True], [True, False, True]])},
    "added": {"attn_mask": random(2, 1, 3, 3, seed=9)},
    "positional": {},
}


@pytest.mark.parametrize("options", FUSED.values(), ids=list(FUSED))
@pytest.mark.parametrize("heads", [None, 4], ids=["one head", "four heads"])
def test_fused_attention_is_what_torch_makes_of_it(options: dict[str, Any], heads: int | None) -> None:
    shape = (2, 3, 8) if heads is None else (2, heads, 3, 8)
    if heads is None and "attn_mask" in options and options["attn_mask"].dim() == 4:
        options = {"attn_mask": options["attn_mask"][:, 0]}
    q, k, v = (random(*shape, seed=seed) for seed in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with Attention(2) as attention:
        actual = F.scaled_dot_product_attention(q, k, value=v, **options)
    assert_same(actual.detach(), expected)
    (weights,) = attention.weights
    assert weights.shape == (2, heads or 1, 3, 3)
    assert_same((weights.detach() @ (v if heads else v[:, None])).reshape(shape), expected)


def test_fewer_heads_of_keys_than_of_queries() -> None:
    q, k, v = random(2, 4, 3, 8), random(2, 2, 3, 8, seed=1), random(2, 2, 3, 8, seed=2)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    with Attention(2) as attention:
        actual = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_same(actual.detach(), expected)
    assert attention.weights[0].shape == (2, 4, 3, 3)


MULTI_HEAD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "without biases": ({"bias": False}, {}),
    "other widths": ({"kdim": 8, "vdim": 8}, {}),
    "no weights asked for": ({}, {"need_weights": False}),
    "weights of each head": ({}, {"average_attn_weights": False}),
    "tokens that do not count": ({}, {"key_padding_mask": torch.tensor([[False, False, True], [False, True, False]])}),
    "a mask": ({}, {"attn_mask": torch.ones(3, 3).triu(1).bool()}),
    "causal": ({}, {"attn_mask": torch.ones(3, 3).triu(1).bool(), "is_causal": True, "need_weights": False}),
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("layer", "call"), MULTI_HEAD.values(), ids=list(MULTI_HEAD))
def test_multi_head_attention_is_what_torch_makes_of_it(
    layer: dict[str, Any], call: dict[str, Any], batch_first: bool
) -> None:
    net = seeded(nn.MultiheadAttention(8, 2, batch_first=batch_first, **layer))
    x, y = random(2, 3, 8), random(2, 3, 8, seed=1)
    if not batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    expected, expected_weights = net(x, y, y + 1, **call)
    with Attention(2) as attention:
        actual, weights = net(x, y, y + 1, **call)
    assert_same(actual.detach(), expected)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        assert_same(weights.detach(), expected_weights)
    assert [each.shape for each in attention.weights] == [(2, 2, 3, 3)]


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
def test_multi_head_attention_at_a_token_that_is_none_is_left_alone(extra: str) -> None:
    net, x = seeded(nn.MultiheadAttention(8, 2, batch_first=True, **{extra: True})), random(2, 3, 8)
    with Attention(2) as attention:
        actual, _ = net(x, x, x)
    assert_same(actual, net(x, x, x)[0])
    assert attention.weights == []
    assert attention.others == [(2, 2, 3, 4)]


# All the weights, and only those


def test_timms_own_extractor_sees_the_same_weights() -> None:
    model, x = vit(fused=False), TIMM.pictures(2)
    expected = AttentionExtract(model, method="fx")(x)
    assert len(expected) == 3
    for build in (vit, lambda: vit(fused=False)):
        with Attention(2) as attention:
            build()(x)
        for actual, weights in zip(attention.weights, expected.values(), strict=True):
            assert_same(actual.detach(), weights)


@pytest.mark.parametrize(
    ("softmax", "weights", "others"),
    [
        (lambda t: F.softmax(t, dim=-1), 1, 0),
        (lambda t: F.softmax(t, 3), 1, 0),
        (lambda t: torch.softmax(t, dim=3), 1, 0),
        (lambda t: torch.softmax(t, -1, dtype=torch.float32), 1, 0),
        (lambda t: t.softmax(dim=-1), 1, 0),
        (lambda t: t.softmax(-1), 1, 0),
        (lambda t: nn.Softmax(dim=-1)(t), 1, 0),
        (lambda t: t[:, 0].softmax(-1), 1, 0),
        (lambda t: t[:, :, :2].softmax(-1), 0, 1),  # two that look at three
        (lambda t: t[:1].softmax(-1), 0, 1),  # a batch of something else
        (lambda t: t[:1, 0].softmax(-1), 0, 1),
        (lambda t: t[None].softmax(-1), 0, 1),  # (1, 2, 4, 3, 3): five axes
        (lambda t: t.softmax(dim=2), 0, 0),
        (lambda t: t.softmax(dim=1), 0, 0),
        (lambda t: t[:, 0, 0, :2].softmax(-1), 0, 0),  # (2, 2): probabilities of two classes
        (lambda t: t[:, 0, :2].softmax(-1), 0, 0),  # (2, 2, 3): classes of each token
    ],
)
def test_a_softmax_is_attention_if_it_runs_over_the_last_axis_of_a_square(
    softmax: Any, weights: int, others: int
) -> None:
    with Attention(2) as attention:
        softmax(random(2, 4, 3, 3))
    assert (len(attention.weights), len(attention.others)) == (weights, others)


@pytest.mark.parametrize("unfrozen", [False, True])
@each_net
def test_the_gradient_is_that_of_the_score(net: Net, unfrozen: bool) -> None:
    """A step along the weights of the first attention changes the score as the gradient says."""
    model, x = net.build().requires_grad_(unfrozen), net.pictures(2)
    with Attention(2) as attention:
        score = model(x)[:, 1].sum()
    gradient = torch.autograd.grad(score, attention.weights[0])[0]
    direction, h = random(*gradient.shape, seed=5), 1e-5

    def stepped(size: float) -> Tensor:
        class Stepped(Attention):
            def _kept(self, weights: Tensor) -> Tensor:
                kept = super()._kept(weights)
                return kept + size * direction.reshape(kept.shape) if len(self.weights) == 1 else kept

        with torch.no_grad(), Stepped(2):
            return model(x)[:, 1].sum()

    assert_same((stepped(h) - stepped(-h)) / (2 * h), (gradient * direction).sum(), 1e-6)


def test_weights_that_the_model_goes_on_to_overwrite_are_kept() -> None:
    x = pictures(2, 24, 16)
    with Attention(2) as expected, torch.no_grad():
        seeded(Plain())(x)
    with Attention(2) as actual, torch.no_grad():
        seeded(Plain(spoil=True))(x)
    for one, other in zip(actual.weights, expected.weights, strict=True):
        assert_same(one, other)


def test_another_thread_is_not_seen() -> None:
    model, x = vit(), TIMM.pictures(2)
    with Attention(2) as attention:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        assert attention.weights == []
        model(x)
    assert len(attention.weights) == 3


def test_the_rows_that_the_head_reads_are_those_with_a_gradient() -> None:
    gradient = torch.zeros(3, 2, 4, 4)
    gradient[0, 1, 0, 3] = -2.0  # one head, one weight: token 0
    gradient[1, 0, 1] = 1.0
    gradient[1, 1, 2, 0] = 1e-30
    assert rows_read(gradient).tolist() == [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]]


# Models that it is not for


@pytest.mark.parametrize("method", ["attention_rollout", "grad_rollout", "legrad"])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=list(REFUSED))
def test_other_models_are_refused_by_name_and_left_alone(method: str, refused: Refused) -> None:
    model, x = refused.build(), pictures(2, *refused.size)
    subject, before = Subject(model, model), snapshot(model)
    for _ in range(2):
        with pytest.raises(MethodNotApplicable, match=f"{refused.match}.*gradcam"):
            explain(subject, x, [[Target(0)]] * 2, method=method, token_grids=refused.token_grids)
        assert snapshot(model) == before
