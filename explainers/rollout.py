"""Attention rollout, without the class's gradient and with it: attention multiplied up from block to block."""

import torch
from torch import Tensor

from explainers.attention import Parameters, attended, gradients, rows_read, token_map
from explainers.batch import Batch, Maps, at_least_float32
from explainers.registry import Method, register


@torch.inference_mode(mode=False)
@torch.enable_grad()
def attention_rollout(batch: Batch, _parameters: Parameters) -> Maps:
    """Follow the attention from the tokens that the head reads back to the patches.

    Abnar & Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv:2005.00928, section 3: with A_l the
    weights `(T, T)` of block l, the mean over its heads, and I the identity, which stands for the residual connection,

        R = (A_L + I) / 2 * ... * (A_1 + I) / 2        map = the row of R of the token that the head reads

    Each row of R adds up to 1, and the map to what of it falls on patches. The paper has one token to look at; where
    the head reads several (mean of the patches, class and distillation token) the map is the mean of their rows.

    No gradient enters the numbers. One is taken, through what lies behind the last attention only, to see which
    tokens the head reads. Returns `(N, h, w)`, shares of 1; the same for all targets.
    """
    scored, weights = attended(batch)
    means = [at_least_float32(each.detach()).mean(dim=1) for each in weights]
    rounds = []
    for k, score in enumerate(scored.sums):
        (last,) = gradients(score, weights[-1:], keep_graph=k < scored.rounds - 1)
        rows = rows_read(last)
        for mean in reversed(means):
            rows = (rows + _looked_at(rows, mean)) / 2
        rounds.append(token_map(batch, rows))
    return Maps(scored, rounds)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def grad_rollout(batch: Batch, _parameters: Parameters) -> Maps:
    """Follow the attention that speaks for the class from the tokens that the head reads back to the patches.

    Chefer, Gur, Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
    Transformers", ICCV 2021, arXiv:2103.15679, equations 1, 5 and 6 for self-attention: with A_l the weights
    `(heads, T, T)` of block l, y the score and I the identity,

        B_l = mean over heads of max(dy / dA_l * A_l, 0)        R_0 = I        R_l = R_{l-1} + B_l R_{l-1}
        map = the row of R_L - I of the token that the head reads

    As in attention_rollout the map is the mean of the rows where the head reads several. The name is ours: the authors'
    code has none for it, others say "Chefer 2" or "transformer attribution". What Gildenblat's vit-explain calls
    gradient rollout is something else, without the rule above: rollout of max(mean over heads of dy / dA * A, 0), each
    row divided by its sum. Returns `(N, h, w)`, not negative, in powers of logits.
    """
    scored, weights = attended(batch)
    rounds = []
    for k, score in enumerate(scored.sums):
        found = gradients(score, weights, keep_graph=k < scored.rounds - 1)
        start = rows = rows_read(found[-1])
        for each, gradient in zip(reversed(weights), reversed(found), strict=True):
            rows = rows + _looked_at(rows, (gradient * each.detach()).clamp(min=0).mean(dim=1))
        rounds.append(token_map(batch, rows - start))
    return Maps(scored, rounds)


def _looked_at(rows: Tensor, weights: Tensor) -> Tensor:
    """Return rows `(N, T)` times weights `(N, T, T)`: only rows are asked for, so no matrices are multiplied."""
    return torch.einsum("nq,nqk->nk", rows, weights)


register(
    Method(
        name="attention_rollout",
        family="attention",
        summary="Where a vision transformer's attention comes from, over all blocks, whatever the class.",
        weakness="Shows where information may have come from, not what was made of it: every target has the same map.",
        sanity="Fails the randomisation check for the head and the last block's values and MLP, which do not enter.",
        paper="https://arxiv.org/abs/2005.00928",
        cost="one forward pass, one backward pass through the head; holds the attention of all blocks",
        cost_class="low",
        class_specific=False,
        parameters=Parameters,
        run=attention_rollout,
    )
)
register(
    Method(
        name="grad_rollout",
        family="attention",
        summary="Where a vision transformer's evidence for the class comes from, over all blocks.",
        weakness="Evidence against the class is dropped in every block; few patches of much attention may take it all.",
        sanity="Passes the randomisation check: all weights enter by the gradient.",
        paper="https://arxiv.org/abs/2103.15679",
        cost="one forward pass, one full backward pass per target; holds the attention of all blocks",
        cost_class="low",
        parameters=Parameters,
        run=grad_rollout,
    )
)
