"""What stands for "nothing to see": the picture that a method starts from, or fills covered places with."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.subject import Subject

Baseline = Literal["black", "blur", "mean"]

_BLUR = 1 / 20
"""Standard deviation of the blur, as a share of the shorter side: 11 px of 224, where shapes are no longer seen."""


def baseline_of(kind: Baseline, subject: Subject, inputs: Tensor) -> Tensor:
    """Return the baselines `(N, C, H, W)` of inputs of that shape.

    black: a black picture, by `subject.black`; blur: the picture itself under a Gaussian of 1/20 of the shorter side
    (Fong & Vedaldi, ICCV 2017, arXiv:1704.03296, use 10 px of 224); mean: the picture's own mean colour everywhere.
    """
    if kind == "black":
        return subject.black_like(inputs)
    return _blurred(inputs) if kind == "blur" else inputs.mean(dim=(2, 3), keepdim=True).expand_as(inputs)


def _blurred(inputs: Tensor) -> Tensor:
    """Return the inputs under a Gaussian cut off at three standard deviations; the border is repeated outwards."""
    sigma = max(min(inputs.shape[2:]) * _BLUR, 0.5)
    reach = math.ceil(3 * sigma)
    offsets = torch.arange(-reach, reach + 1, dtype=inputs.dtype, device=inputs.device)
    kernel = torch.exp(-(offsets**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).reshape(1, 1, 1, -1)
    planes = inputs.reshape(-1, 1, *inputs.shape[2:])
    padded = F.pad(planes, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel), kernel.transpose(2, 3)).reshape(inputs.shape)
