"""Class activation maps: the channels of a layer, weighted by what its gradient says, and added up."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field
from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.gradients import Scored
from explainers.hooks import capture
from explainers.registry import Method, register

MAX_LAYERS = 8
"""How many layers can be fused into one map."""

LAYER_SANITY = (
    "Passes the randomisation check for the layers behind the one it looks at; what lies before is seen only through "
    "the activation."
)


class Parameters(BaseModel, extra="forbid", frozen=True):
    """How the maps of several layers become one; with one layer nothing is fused."""

    fusion: Literal["mean", "maximum"] = Field(
        "mean",
        description="With several layers: each layer's map is divided by its largest absolute value, brought to the "
        "finest grid, and the mean or the maximum is taken cell by cell",
    )


POSITIVE_SANITY = (
    "Fails the randomisation check on the embedded model: with the classifier made up, its maps agree with the true "
    "ones by 0.93, those of different pictures by 0.44. What is positive in any gradients looks much the same."
)


Weigh = Callable[[Tensor, Tensor], Tensor]
"""From activation and gradient `(N, C, h, w)` to the map `(N, h, w)`."""


def fuse(maps: Sequence[Tensor], fusion: Literal["mean", "maximum"]) -> Tensor:
    """Return one map `(N, h, w)` of the maps of several layers, in the finest grid; a single one as it is.

    After Jiang et al., "LayerCAM", IEEE TIP 2021, section III-C, who scale each map by its maximum and take the
    element-wise maximum. Deviation: the maps are signed, so each is divided by its largest absolute value (a map of
    zeros stays one), and there is no tanh.
    """
    if len(maps) == 1:
        return maps[0]
    height, width = (max(map_.shape[axis] for map_ in maps) for axis in (1, 2))
    scales = [map_.abs().amax(dim=(1, 2), keepdim=True) for map_ in maps]
    scaled = [map_ / torch.where(scale > 0, scale, 1) for map_, scale in zip(maps, scales, strict=True)]
    stack = torch.stack([upsampled(map_, (height, width)) for map_ in scaled])
    return stack.mean(dim=0) if fusion == "mean" else stack.amax(dim=0)


def upsampled(map_: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps `(N, h, w)` in another size `(height, width)`, bilinear between the cells' centres."""
    return F.interpolate(map_[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def weighted(
    batch: Batch, weigh: Weigh, parameters: Parameters, sums: Callable[[Scored], list[Tensor]] = lambda s: s.sums
) -> Maps:
    """Run the model once with all layers captured, weigh each layer's channels, and fuse the layers."""
    with capture(batch.subject, batch.layers) as captures:
        scored = batch.score(batch.inputs)
        scalars = sums(scored)
        layers = []
        for taken in captures:
            activation = batch.grid(taken.layer, taken.activation)
            gradients = taken.gradients(scalars, keep_graph=taken is not captures[-1])
            layers.append([weigh(activation, batch.grid(taken.layer, gradient)) for gradient in gradients])
        return Maps(scored, [fuse(maps, parameters.fusion) for maps in zip(*layers, strict=True)])


def gradcam(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each channel of a layer by its mean gradient, and add the channels up.

    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV
    2017, arXiv:1610.02391, equations 1 and 2: with A the activation `(C, h, w)` and y the score of the target,

        alpha_c = mean over i, j of dy / dA[c, i, j]        map = sum over c of alpha_c * A[c]

    Deviation: the paper ends with a ReLU. The map returned is the signed sum before it, `(N, h, w)` in logits per
    cell; the ReLU belongs to the display map. One forward pass serves all targets, and so does one backward pass
    from the scores to the layer where torch can batch it. A gradient that is zero everywhere gives a map of zeros:
    no positive evidence.
    """
    return weighted(batch, gradcam_of, parameters)


def gradcam_of(activation: Tensor, gradient: Tensor) -> Tensor:
    """Return Grad-CAM's map `(N, h, w)` of activation and gradient `(N, C, h, w)`."""
    return torch.einsum("nc,nchw->nhw", gradient.mean(dim=(2, 3)), activation)


def gradcam_plus_plus(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each channel by its positive gradients, each place by how much it contributes.

    Chattopadhyay et al., "Grad-CAM++", WACV 2018, arXiv:1710.11063, equations 5 and 19 with Y = exp(y), whose
    second and third derivatives in A are powers of g = dy / dA: with A the activation `(C, h, w)`,

        alpha[c, i, j] = g^2 / (2 g^2 + sum over a, b of A[c, a, b] * g^3)      (0 where the denominator is 0)
        map = sum over c of (sum over i, j of alpha[c, i, j] * max(g[c, i, j], 0)) * A[c]

    Deviations: the factor exp(y), common to all channels, is left out, since it overflows and only scales the map;
    no final ReLU. Returns `(N, h, w)`, in logits per cell.
    """

    def weigh(activation: Tensor, gradient: Tensor) -> Tensor:
        total = activation.sum(dim=(2, 3), keepdim=True)
        # Divided through by g^2, which would leave the range of float32 for gradients below 1e-19.
        denominator = 2 + total * gradient
        alpha = torch.where((gradient != 0) & (denominator != 0), 1 / denominator, 0)
        return torch.einsum("nc,nchw->nhw", (alpha * gradient.clamp(min=0)).sum(dim=(2, 3)), activation)

    return weighted(batch, weigh, parameters)


def hirescam(batch: Batch, parameters: Parameters) -> Maps:
    """Multiply activation and gradient place by place, and add the channels up.

    Draelos & Carin, "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    2020, arXiv:2011.08891, equation 3: map[i, j] = sum over c of dy / dA[c, i, j] * A[c, i, j].

    Deviation: no final ReLU. Returns `(N, h, w)`, in logits; where the rest of the model is linear in A, the map's
    sum is the score without the bias.
    """
    return weighted(batch, hirescam_of, parameters)


def hirescam_of(activation: Tensor, gradient: Tensor) -> Tensor:
    """Return HiResCAM's map `(N, h, w)` of activation and gradient `(N, C, h, w)`."""
    return (activation * gradient).sum(dim=1)


def xgradcam(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each channel by its gradients' mean, each place counting by its share of the activation.

    Fu et al., "Axiom-based Grad-CAM", BMVC 2020, arXiv:2008.02312, equation 8: with A the activation `(C, h, w)`,

        alpha_c = sum over i, j of A[c, i, j] / (sum over a, b of A[c, a, b]) * dy / dA[c, i, j]
        map = sum over c of alpha_c * A[c]

    Deviations: a channel whose activations add up to exactly zero has no shares and gets weight 0; no final ReLU.
    Returns `(N, h, w)`, in logits per cell.
    """

    def weigh(activation: Tensor, gradient: Tensor) -> Tensor:
        total = activation.sum(dim=(2, 3))
        evidence = (activation * gradient).sum(dim=(2, 3))
        alpha = torch.where(total != 0, evidence / torch.where(total != 0, total, 1), 0 * evidence)  # NaN stays NaN
        return torch.einsum("nc,nchw->nhw", alpha, activation)

    return weighted(batch, weigh, parameters)


def layercam(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each place of each channel by its own positive gradient.

    Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization", IEEE TIP 2021, equations
    4 and 5: map[i, j] = sum over c of max(dy / dA[c, i, j], 0) * A[c, i, j].

    Deviation: no final ReLU. Returns `(N, h, w)`, in logits. Made for early layers too; give several, and they are
    fused.
    """
    return weighted(batch, lambda activation, gradient: hirescam_of(activation, gradient.clamp(min=0)), parameters)


_COST = "one forward pass, one short backward pass per target"


def _register(
    name: str,
    run: Callable[[Batch, Parameters], Maps],
    summary: str,
    weakness: str,
    paper: str,
    sanity: str = LAYER_SANITY,
) -> None:
    register(
        Method(
            name=name,
            family="cam",
            summary=summary,
            weakness=weakness,
            sanity=sanity,
            paper=paper,
            cost=_COST,
            cost_class="low",
            max_layers=MAX_LAYERS,
            parameters=Parameters,
            run=run,
        )
    )


_register(
    "gradcam",
    gradcam,
    "Where the layer saw evidence for the class. Coarse, robust, about the cost of one prediction.",
    "Resolution is the layer's grid; several instances of a class may be merged or missed.",
    "https://arxiv.org/abs/1610.02391",
)
_register(
    "gradcam++",
    gradcam_plus_plus,
    "As Grad-CAM, for pictures with several instances of the class, which it covers more evenly.",
    "Only positive gradients count: evidence against the class is hidden, and maps of different classes look alike.",
    "https://arxiv.org/abs/1710.11063",
    POSITIVE_SANITY,
)
_register(
    "hirescam",
    hirescam,
    "Where the layer's activation enters the score: exact where only pooling and a linear head follow.",
    "Spottier than Grad-CAM on layers far from the head.",
    "https://arxiv.org/abs/2011.08891",
)
_register(
    "xgradcam",
    xgradcam,
    "Grad-CAM with weights from two axioms, so that they account for as much of the score as they can.",
    "Channels that are positive and negative alike get huge weights: choose a layer behind a ReLU.",
    "https://arxiv.org/abs/2008.02312",
)
_register(
    "layercam",
    layercam,
    "Fine maps of early layers; several layers are fused into one map that is both fine and sure.",
    "Early layers alone show texture; evidence against the class is hidden.",
    "https://doi.org/10.1109/TIP.2021.3089943",
    POSITIVE_SANITY,
)
