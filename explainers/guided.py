"""Backward passes in which the ReLUs follow another rule: guided backpropagation and the deconvnet.

A ReLU is what torch has as one: relu, relu6, hardtanh, threshold or clamp with the lower bound 0, however it is
called. One that is put together (`torch.maximum(x, zeros)`, `x * (x > 0)`) or inside a `torch.autograd.Function` keeps
its gradient.
"""

from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.cam import MAX_LAYERS, gradcam, upsampled
from explainers.cam import Parameters as CamParameters
from explainers.errors import MethodNotApplicable
from explainers.gradients import Scored
from explainers.hooks import BackwardRule, change_relus
from explainers.registry import Method, register
from explainers.saliency import Parameters, input_gradients, reduced


def guided_backprop(batch: Batch, parameters: Parameters) -> Maps:
    """Return the gradient with respect to the input, of which each ReLU lets only the positive part through.

    Springenberg et al., "Striving for Simplicity: The All Convolutional Net", 2014, arXiv:1412.6806, section 3.4 and
    figure 1: with f the input of a ReLU and R the signal that comes back to its output,

        R before the ReLU = R where f > 0 and R > 0, else 0

    and everything else as in the gradient. The signal at the input is reduced to a map as in saliency. A ReLU that is
    cut off above (ReLU6) also passes nothing where it is cut off. Returns `(N, H, W)`, without unit.

    Raises `MethodNotApplicable` where no ReLU lies between the input and the score.
    """
    return _reduced(batch, parameters, _guided)


def deconvnet(batch: Batch, parameters: Parameters) -> Maps:
    """Return what comes back to the input when each ReLU is applied to the signal instead of to its own input.

    Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", 2013, arXiv:1311.2901, section 2.1: with R
    the signal that comes back to the output of a ReLU, max(R, 0) goes on, whatever the ReLU's own input was; everything
    else as in the gradient (the max-pooling remembers its maxima). Springenberg et al., arXiv:1412.6806, figure 1,
    compare the two. Returns `(N, H, W)`, without unit.

    Raises `MethodNotApplicable` where no ReLU lies between the input and the score.
    """
    return _reduced(batch, parameters, _deconvnet)


def guided_gradcam(batch: Batch, parameters: CamParameters) -> Maps:
    """Multiply guided backpropagation by Grad-CAM, place by place: fine, and only where the layer saw evidence.

    Selvaraju et al., arXiv:1610.02391, section 3.2: map = sum over c of R[c] * upsampled max(Grad-CAM, 0), with R the
    signal `(C, H, W)` of guided backpropagation. The authors show R's channels as colours; they are added up here.

    Grad-CAM is the one of the true gradients, so there are two passes: one that runs both with the same changed
    ReLUs gives other weights. Several layers are fused as in Grad-CAM. Returns `(N, H, W)`, without unit.

    Raises `MethodNotApplicable` where no ReLU lies between the input and the score.
    """
    located = gradcam(batch, parameters)
    _, signals = _signals(batch, _guided)
    size = (batch.inputs.shape[2], batch.inputs.shape[3])
    pairs = zip(located.rounds, signals, strict=True)
    return Maps(located.scored, [upsampled(map_.clamp(min=0), size) * signal.sum(dim=1) for map_, signal in pairs])


def _reduced(batch: Batch, parameters: Parameters, rule: BackwardRule) -> Maps:
    scored, signals = _signals(batch, rule)
    return Maps(scored, [reduced(signal, parameters) for signal in signals])


def _signals(batch: Batch, rule: BackwardRule) -> tuple[Scored, list[Tensor]]:
    """Return what comes back to the input `(N, C, H, W)` per round."""
    relus = 0

    def change(scored: Scored) -> None:
        nonlocal relus
        relus = sum(change_relus(score, rule) for score in scored.sums[:1])  # the other rounds share its graph

    scored, signals = input_gradients(batch, before_backward=change)
    if scored.pictures and not relus:
        msg = "The model has no ReLU on the way from the picture to the score; use saliency or smoothgrad instead."
        raise MethodNotApplicable(msg)
    return scored, signals


def _guided(_behind: Tensor, before: Tensor) -> Tensor:
    return before.clamp(min=0)


def _deconvnet(behind: Tensor, _before: Tensor) -> Tensor:
    return behind.clamp(min=0)


_INSANE = (
    "Fails the randomisation check: it shows edges of the picture (why: Nie et al. 2018, arXiv:1805.07039). With the "
    "classifier's weights shuffled, the map of efficientnet_lite0 is the same (rank correlation 1.00; saliency 0.42)."
)
_COST = "one forward pass, one full backward pass per target"

register(
    Method(
        name="guided_backprop",
        family="gradient",
        summary="A sharp drawing of the structures that excite the model. Handsome, and hardly about the class.",
        weakness="Restores edges of the picture whatever the model learnt: do not take it as an explanation.",
        paper="https://arxiv.org/abs/1412.6806",
        sanity=_INSANE,
        cost=_COST,
        cost_class="low",
        display_percentile=99.0,
        parameters=Parameters,
        run=guided_backprop,
    )
)
register(
    Method(
        name="deconvnet",
        family="gradient",
        summary="What the model's features look like when they are run backwards. Of historical interest.",
        weakness="Restores the picture whatever the model learnt, and leaves checkerboards behind strides.",
        paper="https://arxiv.org/abs/1311.2901",
        sanity=_INSANE,
        cost=_COST,
        cost_class="low",
        display_percentile=99.0,
        parameters=Parameters,
        run=deconvnet,
    )
)
register(
    Method(
        name="guided_gradcam",
        family="gradient",
        summary="Guided backpropagation where Grad-CAM sees evidence: a sharp drawing of the right place.",
        weakness="The place is Grad-CAM's, the detail is the picture's edges, whatever the model learnt.",
        paper="https://arxiv.org/abs/1610.02391",
        sanity="Fails the randomisation check in its details, which are those of guided backpropagation.",
        cost="two forward passes, one full and one short backward pass per target",
        cost_class="low",
        max_layers=MAX_LAYERS,
        display_percentile=99.0,
        parameters=CamParameters,
        run=guided_gradcam,
    )
)
