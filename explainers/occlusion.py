"""Occlusion: how far the score falls when a part of the picture is covered."""

from collections.abc import Sequence

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.baselines import Baseline, baseline_of
from explainers.batch import Batch, Maps, at_least_float32
from explainers.perturb import changed_scores, score_clean
from explainers.registry import Method, register


class Parameters(BaseModel, extra="forbid", frozen=True):
    """The window, its steps, and what it shows."""

    window: float = Field(
        1 / 7,
        ge=0.02,
        le=1,
        allow_inf_nan=False,
        description="The side of the square window, as a share of the shorter side of the model's input",
    )
    stride: float = Field(
        0.5,
        ge=0.1,
        le=1,
        allow_inf_nan=False,
        description="How far the window moves at a time, as a share of its side",
    )
    baseline: Baseline = Field(
        "mean", description="What covers the picture: black, the picture itself but blurred, or its mean colour"
    )


def occlusion(batch: Batch, parameters: Parameters) -> Maps:
    """Cover the picture with a window, place after place; a pixel shows the mean fall of the score over its windows.

    Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, arXiv:1311.2901, section 4.2
    and figure 7: with x the input `(C, H, W)`, b the baseline, W the windows, as sets of pixels, and x_w the input
    with the pixels in w as in b,

        map[p] = mean over the windows w that hold p of (y(x) - y(x_w))

    A window has `window * min(H, W)` px to a side, rounded, at least 1; the next one lies `stride` of that further on,
    rounded, at least 1 px. The last one lies flush with the border, so that each window is whole and each pixel is in
    one.

    Deviations: the paper covers with grey and draws the score itself, one number for each place of the window.
    Returns `(N, H, W)`, in logits. Raises `TooManySamples` for too many places.
    """
    height, width = batch.inputs.shape[2:]
    side = max(1, round(parameters.window * min(height, width)))
    step = max(1, round(parameters.stride * side))
    rows, columns = (_windows(length, side, step).to(batch.inputs.device) for length in (height, width))
    places = len(rows) * len(columns)
    batch.work.allow(places, field="stride", because=f"occlusion at {len(rows)} x {len(columns)} places")
    scored = score_clean(batch)
    baseline = baseline_of(parameters.baseline, batch.subject, batch.inputs)

    def covered(picture: int, numbers: Sequence[int]) -> Tensor:
        place = torch.tensor(numbers, device=rows.device)
        row, column = rows[place // len(columns)], columns[place % len(columns)]
        window = row[:, None, :, None] & column[:, None, None, :]
        return torch.where(window, baseline[picture], batch.inputs[picture])

    falls = at_least_float32(scored.values.cpu()[..., None] - changed_scores(batch, scored, places, covered))
    r, c = rows.to(falls), columns.to(falls)
    sums = torch.einsum("knij,ih,jw->knhw", falls.reshape(*falls.shape[:2], len(r), len(c)), r, c)
    return Maps(scored, list(sums / torch.outer(r.sum(dim=0), c.sum(dim=0))))


def _windows(length: int, side: int, step: int) -> Tensor:
    """Return the windows along one axis as `(windows, length)` booleans; the last ends where the axis ends."""
    starts = torch.tensor([*range(0, length - side, step), length - side])
    pixels = torch.arange(length)
    return (starts[:, None] <= pixels) & (pixels < starts[:, None] + side)


register(
    Method(
        name="occlusion",
        family="perturbation",
        summary="How much of the score is lost when each part of the picture is covered. Easy to explain to anybody.",
        weakness="Sees only parts of the window's size, and misses evidence that is there twice.",
        sanity="Not in the paper's tests. It sees nothing but the scores, so it changes with them.",
        paper="https://arxiv.org/abs/1311.2901",
        cost="one forward pass for each place of the window (169 for a square input), for all targets together",
        cost_class="high",
        uses_gradients=False,
        parameters=Parameters,
        run=occlusion,
    )
)
