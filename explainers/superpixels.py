"""Superpixels: LIME, Kernel SHAP and Shapley value sampling, over patches that the picture itself suggests.

captum has all three. They are written out here because captum's work in float32, run the model once more for each
target, draw from everybody's random numbers, fail on a picture of one superpixel, and load matplotlib;
tests/explainers/test_superpixels_peers.py shows it, and that the numbers are the same where captum has any.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.baselines import Baseline, baseline_of
from explainers.batch import Batch, Maps, at_least_float32
from explainers.perturb import changed_scores, generator, score_clean
from explainers.registry import Method, register

_COMPACTNESS, _SMOOTHING_PX = 0.17, 1.0
"""Of the superpixels: with less of either, SLIC joins many of them in a noisy picture, with more it makes a plain grid.

Distances in colour are to be means over the channels; SLIC has sums, to which the compactness is brought.
"""

_KERNEL_WIDTH, _PENALTY = 0.25, 1.0
"""LIME's kernel width and ridge penalty, as in its authors' code for pictures."""


class _Parameters(BaseModel, extra="forbid", frozen=True):
    segments: int = Field(
        50, ge=2, le=500, description="About how many superpixels the picture is cut into; it may become fewer or more"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="What is shown and hidden is drawn from this number")
    baseline: Baseline = Field(
        "mean", description="What hidden superpixels show: black, the picture itself but blurred, or its mean colour"
    )


class Samples(_Parameters):
    """How many pictures with hidden superpixels are scored."""

    samples: int = Field(
        500, ge=2, le=1_000_000, description="How many copies of the picture, with superpixels hidden, are scored"
    )


class Permutations(_Parameters):
    """In how many orders the superpixels are shown."""

    samples: int = Field(
        10,
        ge=1,
        le=1_000_000,
        description="In how many random orders the superpixels are uncovered; each takes one run for each superpixel",
    )


def lime(batch: Batch, parameters: Samples) -> Maps:
    """Fit a linear model to the scores of the picture with random superpixels hidden; each one shows its coefficient.

    Ribeiro, Singh, Guestrin, "Why Should I Trust You?: Explaining the Predictions of Any Classifier", KDD 2016,
    arXiv:1602.04938, equation 1 and algorithm 1: with z in {0, 1}^M which of the M superpixels are shown, y(z) the
    score, and D(z) the cosine distance of z from all ones, 1 - sqrt(sum of z / M), minimise over a and phi

        sum over samples of pi(z) * (y(z) - a - phi . z)^2 + |phi|^2        pi(z) = exp(-D(z)^2 / (2 * 0.25^2))

    The first sample shows all; sample i > 0 shows those of `rand(M) < 0.5` in float64, drawn from `generator(seed, i)`.

    Distance, kernel width and the ridge penalty of 1 are those of the authors' code for pictures. Deviations: no
    feature selection (K-LASSO), logits in place of probabilities, SLIC in place of quickshift (see `superpixels`). The
    penalty draws the coefficients to zero, less with more samples.

    Returns `(N, H, W)`: each pixel has its superpixel's phi, in logits. Raises `TooManySamples`.
    """
    batch.work.allow(parameters.samples, field="samples", because=f"lime with {parameters.samples} samples")
    return _explain(batch, parameters, partial(_independent, parameters), _ridge)


def kernel_shap(batch: Batch, parameters: Samples) -> Maps:
    """Estimate each superpixel's Shapley value, by one weighted regression over random coalitions.

    Lundberg & Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017, arXiv:1705.07874, theorem 2:
    with z in {0, 1}^M which of the M superpixels are shown, k = sum of z, and y(z) the score, minimise over phi

        sum over z of pi(z) * (y(z) - y(none) - phi . z)^2    pi(z) = (M - 1) / ((M choose k) * k * (M - k))
        subject to  sum of phi = y(all) - y(none)

    which the infinite weights of `none` and `all` stand for. Coalitions are drawn by pi, and then weigh the same: k
    with probability proportional to 1 / (k * (M - k)), k of 1 to M - 1, then k superpixels of M. Each is followed by
    its complement (Covert & Lee, "Improving KernelSHAP", AISTATS 2021, arXiv:2012.01536, section 3.2), which leaves
    no error of interactions between pairs. Pair i draws k by `multinomial`, then `randperm(M)`, of which the first k
    are shown, from `generator(seed, i)`.

    What too few samples leave undetermined is shared evenly (the solution next to equal shares). The values of a
    picture's superpixels add up to y(all) - y(none) exactly.

    Returns `(N, H, W)`: each pixel has its superpixel's phi, in logits. Raises `TooManySamples`.
    """
    batch.work.allow(parameters.samples, field="samples", because=f"kernel_shap with {parameters.samples} samples")
    return _explain(batch, parameters, partial(_paired, parameters), _shapley_regression)


def shapley_sampling(batch: Batch, parameters: Permutations) -> Maps:
    """Estimate each superpixel's Shapley value: the mean rise of the score when it is uncovered, over random orders.

    Castro, Gomez, Tejada, "Polynomial calculation of the Shapley value based on sampling", Computers & Operations
    Research 36, 2009, section 3; Strumbelj & Kononenko, "An Efficient Explanation of Individual Classifications using
    Game Theory", JMLR 11, 2010, algorithm 1 without the sampled background: with y(S) the score while the set S of
    superpixels is shown, and `before(j)` those that come before j in an order,

        phi[j] = mean over the orders of (y(before(j) and j) - y(before(j)))

    Order i is `randperm(M)` from `generator(seed, i)`, M the number of superpixels. The values of a picture's
    superpixels add up to y(all) - y(none) exactly.

    Returns `(N, H, W)`: each pixel has its superpixel's phi, in logits. Raises `TooManySamples`.
    """
    runs = parameters.samples * parameters.segments
    because = f"shapley_sampling with {parameters.samples} orders of {parameters.segments} superpixels"
    batch.work.allow(runs, field="samples", because=because)
    return _explain(batch, parameters, partial(_growing, parameters), partial(_mean_rises, parameters))


def superpixels(picture: Tensor, segments: int) -> Tensor:
    """Return the number `(H, W)`, counted from 0, of the superpixel that each pixel of `(C, H, W)` is in.

    Achanta et al., "SLIC Superpixels Compared to State-of-the-art Superpixel Methods", IEEE TPAMI 2012, on the model's
    input, which scikit-image scales to [0, 1], with its channels as they are (no Lab: there need not be three). The
    number is only about `segments`; a picture smaller than that becomes single pixels. Done in float64 on the CPU,
    so that it is the same on every device.
    """
    from skimage.segmentation import slic  # a second of import, for three methods

    pixels = torch.nan_to_num(picture.double().cpu(), nan=0.0, posinf=0.0, neginf=0.0).permute(1, 2, 0).numpy()
    compactness = _COMPACTNESS * math.sqrt(pixels.shape[2])
    labels = slic(pixels, segments, compactness, sigma=_SMOOTHING_PX, convert2lab=False, start_label=0)
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


Draw = Callable[[int], Tensor]
"""From the number M of superpixels to what each copy shows, `(copies, M)` booleans."""

Solve = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From that, the scores `(rounds, copies)` and the score `(rounds,)` of the whole picture to phi `(rounds, M)`."""


def _explain(batch: Batch, parameters: _Parameters, draw: Draw, solve: Solve) -> Maps:
    """Score each picture with superpixels hidden as drawn, and give each pixel what its superpixel is found to do."""
    scored, device = score_clean(batch), batch.inputs.device
    draw = cache(draw)  # pictures of as many superpixels share what is drawn
    places = {n: superpixels(batch.inputs[n], parameters.segments) for n in scored.pictures}
    shown = {n: draw(int(place.max()) + 1) for n, place in places.items()}
    for coalitions in shown.values():  # SLIC may have made more superpixels than were asked for
        runs, count = len(coalitions) - 1, coalitions.shape[1]
        batch.work.allow(runs, field="samples", because=f"the picture's {count} superpixels")
    pixels = {n: (shown[n].to(device), place.to(device)) for n, place in places.items()}
    baseline = baseline_of(parameters.baseline, batch.subject, batch.inputs)

    def hidden(picture: int, numbers: Sequence[int]) -> Tensor:
        coalitions, place = pixels[picture]
        return torch.where(coalitions[list(numbers)][:, None, place], batch.inputs[picture], baseline[picture])

    copies = [len(shown.get(n, ())) for n in range(len(batch.inputs))]
    scores = changed_scores(batch, scored, copies, hidden)
    maps = at_least_float32(scores.new_zeros(scored.rounds, len(copies), *batch.inputs.shape[2:]))
    for n, place in places.items():
        phi = solve(shown[n], scores[:, n, : copies[n]].double(), scored.values[:, n].cpu().double())
        maps[:, n] = phi[:, place].to(maps)
    return Maps(scored, list(maps))


def _independent(parameters: Samples, count: int) -> Tensor:
    seed, samples = parameters.seed, range(1, parameters.samples)
    drawn = [torch.rand(count, generator=generator(seed, i), dtype=torch.float64) < 0.5 for i in samples]
    return torch.stack([torch.ones(count, dtype=torch.bool), *drawn])


def _ridge(shown: Tensor, scores: Tensor, _whole: Tensor) -> Tensor:
    """Return the coefficients of weighted ridge regression; centring by the weights takes out the free intercept."""
    z = shown.double()
    distance = 1 - z.mean(dim=1).sqrt()
    weights = torch.exp(-(distance**2) / (2 * _KERNEL_WIDTH**2))[:, None]
    z, y = (column - (weights * column).sum(dim=0) / weights.sum() for column in (z, scores.T))
    penalty = _PENALTY * torch.eye(z.shape[1], dtype=z.dtype)
    phi: Tensor = torch.linalg.solve(z.T @ (weights * z) + penalty, z.T @ (weights * y))
    return phi.T


def _paired(parameters: Samples, count: int) -> Tensor:
    """Return no superpixel, then pairs of a coalition and the other ones."""
    none = torch.zeros(1, count, dtype=torch.bool)
    if count == 1:
        return none
    sizes = torch.arange(1, count, dtype=torch.float64)
    chances = 1 / (sizes * (count - sizes))
    pairs = []
    for i in range((parameters.samples + 1) // 2):
        numbers = generator(parameters.seed, i)
        size = int(torch.multinomial(chances, 1, generator=numbers)) + 1
        coalition = torch.zeros(count, dtype=torch.bool)
        coalition[torch.randperm(count, generator=numbers)[:size]] = True
        pairs += [coalition, ~coalition]
    return torch.cat([none, torch.stack(pairs)[: parameters.samples]])


def _shapley_regression(shown: Tensor, scores: Tensor, whole: Tensor) -> Tensor:
    """Return the constrained least squares solution.

    With phi = total / M + theta, sum of theta = 0, the constraint is gone: phi . z = share * total + (z - share) .
    theta, share = the mean of z. The smallest theta has sum 0 by itself, since z - share has.
    """
    none = scores[:, :1]
    total = whole[:, None] - none
    z = shown[1:].double()
    share = z.mean(dim=1, keepdim=True)
    z, rest = z - share, (scores[:, 1:] - none - total * share.T).T
    theta: Tensor = torch.linalg.pinv(z.T @ z, hermitian=True, rtol=1e-10) @ (z.T @ rest)
    return total / shown.shape[1] + theta.T


def _growing(parameters: Permutations, count: int) -> Tensor:
    """Return no superpixel, then for each order its first one, its first two, and so on, up to all but the last."""
    orders = [torch.randperm(count, generator=generator(parameters.seed, i)) for i in range(parameters.samples)]
    ranks = torch.stack(orders).argsort(dim=1)
    grown = ranks[:, None, :] < torch.arange(1, count)[:, None]
    return torch.cat([torch.zeros(1, count, dtype=torch.bool), grown.flatten(0, 1)])


def _mean_rises(parameters: Permutations, shown: Tensor, scores: Tensor, whole: Tensor) -> Tensor:
    orders, count = parameters.samples, shown.shape[1]
    ends = scores[:, :1, None].expand(-1, orders, 1), whole[:, None, None].expand(-1, orders, 1)
    between = scores[:, 1:].reshape(len(scores), orders, count - 1)
    rises = torch.cat([ends[0], between, ends[1]], dim=2).diff(dim=2)
    ranks = (~shown[1:].reshape(orders, count - 1, count)).sum(dim=1)
    return rises.gather(2, ranks.expand(len(scores), -1, -1)).mean(dim=1)


_SANITY = (
    "Not in the paper's tests. It sees nothing but the scores, so its values change with them; the outlines are the "
    "picture's own, whatever the model is."
)

register(
    Method(
        name="lime",
        family="perturbation",
        summary="Which superpixels speak for the class, by a linear model fitted around the picture.",
        weakness="Depends on how the picture is cut; another seed gives somewhat other values; interactions are lost.",
        sanity=_SANITY,
        paper="https://arxiv.org/abs/1602.04938",
        cost="one forward pass for each sample, for all targets together",
        cost_class="high",
        uses_gradients=False,
        parameters=Samples,
        run=lime,
    )
)
register(
    Method(
        name="kernel_shap",
        family="perturbation",
        summary="How the score divides fairly among the superpixels (Shapley values), by regression.",
        weakness="Depends on how the picture is cut; with few samples another seed gives other values.",
        sanity=_SANITY,
        paper="https://arxiv.org/abs/1705.07874",
        cost="one forward pass for each sample and one more, for all targets together",
        cost_class="high",
        uses_gradients=False,
        parameters=Samples,
        run=kernel_shap,
    )
)
register(
    Method(
        name="shapley_sampling",
        family="perturbation",
        summary="How the score divides fairly among the superpixels (Shapley values), by uncovering them one by one.",
        weakness="Depends on how the picture is cut; needs many orders where superpixels stand for each other.",
        sanity=_SANITY,
        paper="https://doi.org/10.1016/j.cor.2008.04.004",
        cost="one forward pass for each superpixel in each order, for all targets together",
        cost_class="high",
        uses_gradients=False,
        parameters=Permutations,
        run=shapley_sampling,
    )
)
