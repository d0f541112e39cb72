"""RISE: what the random masks with a high score have in common."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.baselines import Baseline, baseline_of
from explainers.batch import Batch, Maps, at_least_float32
from explainers.perturb import changed_scores, generator, score_clean
from explainers.registry import Method, register

_PIECE = 32
"""How many masks are held at once while they are added up; the same whatever the chunk, and so is the sum."""


class Parameters(BaseModel, extra="forbid", frozen=True):
    """The masks, and what they show."""

    samples: int = Field(500, ge=2, le=1_000_000, description="How many random masks are tried")
    cells: int = Field(7, ge=2, le=64, description="How many cells a mask has in each direction, before it is smoothed")
    keep: float = Field(
        0.5, ge=0.05, le=0.95, allow_inf_nan=False, description="The probability of a cell to show the picture"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="The masks are drawn from this number")
    baseline: Baseline = Field(
        "mean", description="What covered places show: black, the picture itself but blurred, or its mean colour"
    )


def rise(batch: Batch, parameters: Parameters) -> Maps:
    """Score the picture under random masks; a pixel's value is how far the score rises where the masks show it.

    Petsiuk, Das, Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018,
    arXiv:1806.07421, section 3: with x the input `(C, H, W)`, b the baseline, M_i the masks `(H, W)` in [0, 1] and
    y_i = y(x * M_i + b * (1 - M_i)),

        map[p] = sum over i of (y_i - mean of y) * M_i[p]  /  sum over i of M_i[p]

    or 0 where no mask shows p at all. The mean of y is over all samples.

    A mask (section 3.2) is a grid of `cells` x `cells` zeros and ones, one with probability `keep`, brought to
    (cells + 1) * c px by bilinear interpolation between the cells' centres, c = ceil(side / cells), and cut to the
    input's size at a random place, the same in all channels. Sample i draws from `generator(seed, i)`: the grid row
    by row, `rand < keep` in float64, then the top and the left edge of the cut, `randint` of 0 to c - 1.

    Deviations. Equation 6 is S[p] = sum of y_i * M_i[p] / (samples * keep), with probabilities for y. Dividing by the
    sum of the masks that were drawn, in place of its expectation, takes out the unevenness of few samples; without the
    mean of y, evidence against the class is negative, and the map does not hang on where the score has its zero:
    map[p] = S[p] * (samples * keep / sum of M_i[p]) - mean of y. The paper multiplies the input by the mask: that is
    b = 0, the data set's mean colour where the input is normalised by it. c is rounded up, as in the authors' code,
    or the masks would not cover a side that `cells` does not divide.

    Returns `(N, H, W)`, in logits. All pictures and targets share the masks. Raises `TooManySamples`.
    """
    batch.work.allow(parameters.samples, field="samples", because=f"rise with {parameters.samples} samples")
    scored = score_clean(batch)
    shown = at_least_float32(batch.inputs)
    hidden = at_least_float32(baseline_of(parameters.baseline, batch.subject, batch.inputs))
    masks = _Masks(shown, parameters)

    def masked(picture: int, numbers: Sequence[int]) -> Tensor:
        return torch.lerp(hidden[picture], shown[picture], masks(numbers)[:, None]).to(batch.inputs.dtype)

    scores = changed_scores(batch, scored, parameters.samples, masked)
    rises = at_least_float32(scores - scores.mean(dim=2, keepdim=True)).to(batch.inputs.device)
    return Maps(scored, list(_weighted_mean(rises, masks)))


class _Masks:
    """The random masks: each one is the same whenever it is asked for, and none is kept."""

    def __init__(self, like: Tensor, parameters: Parameters) -> None:
        self._parameters, self._device = parameters, like.device
        self._sides = (like.shape[2], like.shape[3])
        self._cells = tuple(math.ceil(side / parameters.cells) for side in self._sides)
        self._upsampling = [self._interpolation(cell).to(like) for cell in self._cells]

    def __call__(self, numbers: Sequence[int]) -> Tensor:
        """Return the masks `(m, H, W)` of these samples.

        Bilinear interpolation is linear in each direction, so it is one matrix product for each: rows, then columns.
        """
        grids, tops, lefts = zip(*(self._draw(number) for number in numbers), strict=True)
        rows, columns = (self._cut(axis, edges) for axis, edges in enumerate((tops, lefts)))
        return rows @ torch.stack(grids).to(rows) @ columns.transpose(1, 2)

    def _draw(self, number: int) -> tuple[Tensor, int, int]:
        numbers, cells = generator(self._parameters.seed, number), self._parameters.cells
        grid = torch.rand(cells, cells, generator=numbers, dtype=torch.float64) < self._parameters.keep
        top, left = (int(torch.randint(cell, (), generator=numbers)) for cell in self._cells)
        return grid, top, left

    def _interpolation(self, cell: int) -> Tensor:
        """Return what each cell contributes to each pixel of the upsampled side, `((cells + 1) * cell, cells)`."""
        cells = self._parameters.cells
        single = torch.eye(cells, dtype=torch.float64)[None]
        return F.interpolate(single, size=(cells + 1) * cell, mode="linear", align_corners=False)[0].T

    def _cut(self, axis: int, edges: Sequence[int]) -> Tensor:
        """Return the rows of the interpolation that the masks with these edges consist of, `(m, side, cells)`."""
        pixels = torch.tensor(edges)[:, None] + torch.arange(self._sides[axis])
        return self._upsampling[axis][pixels.to(self._device)]


def _weighted_mean(values: Tensor, masks: _Masks) -> Tensor:
    """Return the mean `(rounds, N, H, W)` of the samples' values `(rounds, N, samples)`, weighted by the masks."""
    total, mass = torch.zeros((), device=values.device), torch.zeros((), device=values.device)
    for start in range(0, values.shape[2], _PIECE):
        part = values[:, :, start : start + _PIECE]
        piece = masks(range(start, start + part.shape[2]))
        total = total + torch.einsum("kni,ihw->knhw", part.to(piece), piece)
        mass = mass + piece.sum(dim=0)
    return total / torch.where(mass > 0, mass, 1)


register(
    Method(
        name="rise",
        family="perturbation",
        summary="What the random masks under which the score stays high have in common. Needs nothing but scores.",
        weakness="Noisy: with few samples it shows clouds that another seed does not show. Blurs what is small.",
        sanity="Not in the paper's tests. It sees nothing but the scores, so it changes with them.",
        paper="https://arxiv.org/abs/1806.07421",
        cost="one forward pass for each sample, for all targets together",
        cost_class="high",
        uses_gradients=False,
        parameters=Parameters,
        run=rise,
    )
)
