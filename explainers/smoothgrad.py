"""Gradients in many noisy copies of the picture: their mean (SmoothGrad) and how they vary (VarGrad)."""

from collections.abc import Sequence

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from explainers import saliency
from explainers.batch import Batch, Maps, at_least_float32
from explainers.perturb import Change, Part, changed_gradients, noise, score_clean, summed_gradients
from explainers.registry import Method, register

SAMPLES = 10_000
"""The largest number of copies that can be asked for; the operator's limit may be lower."""


class Parameters(BaseModel, extra="forbid", frozen=True):
    """How many noisy copies, how noisy, and which noise."""

    samples: int = Field(25, ge=2, le=SAMPLES, description="How many noisy copies of the picture the model sees")
    noise: float = Field(
        0.15,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Standard deviation of the noise, as a share of the picture's range from darkest to brightest",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="The same seed gives the same noise, and the same map")


class SmoothGradParameters(Parameters, saliency.Parameters):
    """Which noise, and how the mean gradient's colour channels become one map."""


def smoothgrad(batch: Batch, parameters: SmoothGradParameters) -> Maps:
    """Return the mean of the gradients in noisy copies of the picture, one number per input pixel.

    Smilkov et al., "SmoothGrad: removing noise by adding noise", 2017, arXiv:1706.03825, section 2: with x the input
    `(C, H, W)`, y the score, e_s standard normal noise in the shape of x, and S `samples`,

        x_s = x + noise * (max x - min x) * e_s        g = 1/S * sum over s of dy / dx at x_s

    and g reduced to a map as in saliency. The class is the one of the picture without noise, in all copies.

    Returns `(N, H, W)`, in logits per unit of the normalised input. The noise of copy s depends on `seed` and s
    alone: on no other picture, and not on how many copies run together.
    """
    samples = parameters.samples
    batch.work.allow(samples, field="samples", because=f"smoothgrad with {samples} samples")
    scored = score_clean(batch)

    def share(part: Part) -> Tensor:
        return part.gradients.sum(dim=1) / samples

    means = summed_gradients(batch, scored, samples, noisy(batch, parameters), share)
    return Maps(scored, [saliency.reduced(mean, parameters) for mean in means])


def vargrad(batch: Batch, parameters: Parameters) -> Maps:
    """Return how much the gradients in noisy copies of the picture differ, one number per input pixel.

    Adebayo et al., "Local Explanation Methods for Deep Neural Networks Lack Sensitivity to Parameter Values", 2018,
    arXiv:1810.03307, section 2: with x_s and dy / dx as in `smoothgrad`, and g their mean,

        map = sum over c of 1/S * sum over s of (dy / dx at x_s - g)^2

    It is the population's variance (divided by S). Not negative: evidence against the class is not told from evidence
    for it. Returns `(N, H, W)`, in squares of logits per unit of the normalised input.
    """
    samples = parameters.samples
    batch.work.allow(samples, field="samples", because=f"vargrad with {samples} samples")
    scored = score_clean(batch)
    spreads = [_Spread() for _ in batch.inputs]
    for part in changed_gradients(batch, scored, samples, noisy(batch, parameters)):
        spreads[part.picture].add(part.gradients)
    maps = at_least_float32(batch.inputs.new_zeros(scored.rounds, len(batch.inputs), *batch.inputs.shape[2:]))
    for n in scored.pictures:
        maps[:, n] = spreads[n].variance.sum(dim=1)
    return Maps(scored, list(maps))


def noisy(batch: Batch, parameters: Parameters) -> Change:
    """Return what makes the noisy copies of a picture."""
    sigma = sigmas(batch, parameters)

    def change(picture: int, samples: Sequence[int]) -> Tensor:
        x = batch.inputs[picture]
        return torch.stack([x + sigma[picture] * noise(parameters.seed, sample, x) for sample in samples])

    return change


def sigmas(batch: Batch, parameters: Parameters) -> Tensor:
    """Return the standard deviation of each picture's noise `(N,)`, in units of the input."""
    return parameters.noise * (batch.inputs.amax(dim=(1, 2, 3)) - batch.inputs.amin(dim=(1, 2, 3)))


class _Spread:
    """The variance of many tensors that come a few at a time.

    Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979, equation
    2.1: nothing large is subtracted from anything large, as happens with the mean of squares.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Take in values `(rounds, m, ...)`, m for each round."""
        new = values.shape[1]
        mean = values.mean(dim=1)
        squares = (values - mean[:, None]).square().sum(dim=1)
        apart = mean - self._mean.to(mean)
        share = new / (self._count + new)
        self._squares = self._squares.to(mean) + squares + apart.square() * (self._count * share)
        self._mean = self._mean.to(mean) + apart * share
        self._count += new

    @property
    def variance(self) -> Tensor:
        """The population's variance `(rounds, ...)`."""
        return self._squares / self._count


register(
    Method(
        name="smoothgrad",
        family="gradient",
        summary="Saliency with less noise: what stays of it when the picture is disturbed a little.",
        weakness="Still sensitivity, not evidence; the noise level decides how fine the map is.",
        paper="https://arxiv.org/abs/1706.03825",
        sanity="Passes the randomisation check, as saliency does.",
        cost="one forward pass and, for each sample, one forward and per target one full backward pass",
        cost_class="medium",
        display_percentile=99.0,
        parameters=SmoothGradParameters,
        run=smoothgrad,
    )
)
register(
    Method(
        name="vargrad",
        family="gradient",
        summary="Where the model's sensitivity varies when the picture is disturbed a little: often an outline.",
        weakness="Has no sign, and a pixel on which the score depends evenly stays dark.",
        paper="https://arxiv.org/abs/1810.03307",
        sanity="Passes the randomisation check, less clearly than smoothgrad: where the model reacts at all stays.",
        cost="one forward pass and, for each sample, one forward and per target one full backward pass",
        cost_class="medium",
        display_percentile=99.0,
        parameters=Parameters,
        run=vargrad,
    )
)
