"""LeGrad: how much each patch's attention helps the class, block by block."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from explainers.attention import Attention, Parameters, gradients, token_map
from explainers.batch import Batch, Maps
from explainers.errors import MethodNotApplicable
from explainers.gradients import Scored
from explainers.hooks import observe, replaced
from explainers.registry import Method, register
from explainers.work import is_out_of_memory

_CHAIN = (
    "The model is no chain of modules from tokens to tokens with one attention each, so its head cannot be asked after "
    "each block. Use grad_rollout instead."
)
_HEAD = (
    "What follows the model's blocks does not take more rows than there are pictures, so it cannot be asked after each "
    "block. Use grad_rollout instead."
)


class _Block(NamedTuple):
    """A call of a module with one attention in it, from tokens to tokens `(N, T, C)`."""

    layer: str
    call: int
    tokens_in: Tensor
    tokens_out: Tensor


@torch.inference_mode(mode=False)
@torch.enable_grad()
def legrad(batch: Batch, _parameters: Parameters) -> Maps:
    """Take the gradient of what the head says after each block with respect to that block's attention.

    Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
    ICCV 2025, arXiv:2404.03214, section 3: with A_l the weights `(heads, T, T)` of block l (rows look, columns are
    looked at) and s_l the score that the head gives when the tokens after block l go straight to it,

        map = mean over blocks l of mean over heads, rows of max(ds_l / dA_l, 0)

    Deviations: the map is not scaled to [0, 1]. As in the paper all blocks count; the authors' code takes the last
    two unless told otherwise. Models that pool by attention are refused; the paper takes the pool's weights there.

    A block is what was seen to be one: the outermost module that holds one attention and makes tokens of tokens, each
    block going on with what the one before returned. Between blocks the graph is cut, and the last block returns the
    tokens after every block as one large batch, which the head scores: one forward and one backward pass serve all
    blocks. Returns `(N, h, w)`, in logits per unit of attention.
    """
    scored, blocks = _blocks(batch)
    scores, weights = _scores_after_each(batch, scored, blocks)
    rounds = []
    for k, score in enumerate(_sums(scored, scores, len(weights))):
        found = gradients(score, weights, keep_graph=k < scored.rounds - 1)
        relevance = torch.stack([gradient.clamp(min=0).mean(dim=(1, 2)) for gradient in found]).mean(dim=0)
        rounds.append(token_map(batch, relevance))
    return Maps(scored, rounds)


def _blocks(batch: Batch) -> tuple[Scored, list[_Block]]:
    """Run the model as it is; return its scores and blocks, the first first, none where there is only one."""
    attention = Attention(len(batch.inputs))
    finder = _Finder(attention)
    with torch.inference_mode(), attention, observe(batch.subject.module, finder.leave, finder.enter):
        scored = batch.score(batch.inputs)
    count = len(attention.of_all_tokens(batch))
    if count == 1:
        return scored, []
    blocks = [finder.found[i] for i in range(count) if i in finder.found]
    chained = all(one.tokens_out is other.tokens_in for one, other in pairwise(blocks))
    if len(blocks) < count or not chained:
        raise MethodNotApplicable(_CHAIN)
    return scored, blocks


class _Finder:
    """For each attention, by its number, the outermost call around it that makes tokens of tokens."""

    def __init__(self, attention: Attention) -> None:
        self.found: dict[int, _Block] = {}
        self._attention = attention
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[int, object]] = []

    def enter(self, _name: str, _module: nn.Module, args: Sequence[object]) -> None:
        self._open.append((len(self._attention.weights), args[0] if args else None))

    def leave(self, name: str, _module: nn.Module, output: object) -> None:
        number, taken = self._open.pop()
        self._calls[name] += 1
        weights = self._attention.weights[number:]
        if len(weights) != 1 or not isinstance(taken, Tensor) or not isinstance(output, Tensor):
            return
        if taken.shape == output.shape and taken.dim() == 3 and taken.shape[:2] == weights[0].shape[::2]:
            self.found[number] = _Block(name, self._calls[name], taken, output)


def _scores_after_each(batch: Batch, scored: Scored, blocks: Sequence[_Block]) -> tuple[Tensor, list[Tensor]]:
    """Return the scores `(blocks * N, K)` after each block, and each block's weights, which only its own depend on."""
    tokens: list[Tensor] = []

    def cut(output: Tensor) -> Tensor:
        tokens.append(output)
        return output.detach().clone()

    def gather(output: Tensor) -> Tensor:
        return torch.cat([*tokens, output])

    attention = Attention(len(batch.inputs))
    with ExitStack() as stack:
        stack.enter_context(attention)
        for block in blocks:
            change = gather if block is blocks[-1] else cut
            stack.enter_context(replaced(batch.subject, block.layer, block.call, change))
        scores = _scores_of_many(batch)
    if len(scores) != len(attention.weights) * len(batch.inputs):
        raise MethodNotApplicable(_HEAD)
    return scores, attention.weights


def _scores_of_many(batch: Batch) -> Tensor:
    try:
        return batch.subject.scores(batch.inputs.clone())
    except torch.AcceleratorError:  # a lost device, which is nobody's head
        raise
    except RuntimeError as error:  # the model ran before, so it is the number of rows that it stumbles over
        if is_out_of_memory(error):
            raise
        raise MethodNotApplicable(_HEAD) from error


def _sums(scored: Scored, scores: Tensor, blocks: int) -> list[Tensor]:
    """Return, per round, the sum of the explained scores over all blocks and pictures."""
    good = scored.pictures
    each = scores.reshape(blocks, -1, scores.shape[1])[:, good].flatten(0, 1)
    return list(scored.read(each, good * blocks).sum(dim=1))


register(
    Method(
        name="legrad",
        family="attention",
        summary="Which patches a vision transformer should look at more for the class to score higher, in every block.",
        weakness="Shows sensitivity to attention, whether or not it is paid; early blocks speak a language that the "
        "head was not trained on.",
        sanity="Passes the randomisation check: all weights enter by the gradient.",
        paper="https://arxiv.org/abs/2404.03214",
        cost="two forward passes, one backward pass per target; holds the attention of all blocks",
        cost_class="low",
        parameters=Parameters,
        run=legrad,
    )
)
