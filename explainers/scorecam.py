"""Score-CAM and Ablation-CAM: weights of channels from what the model says, not from gradients."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.cam import MAX_LAYERS, Parameters, fuse, upsampled
from explainers.gradients import Scored
from explainers.hooks import capture, replaced
from explainers.perturb import changed_scores
from explainers.registry import Method, register


def scorecam(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each channel by the score of the picture of which only what the channel sees is left.

    Wang et al., "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks", CVPR workshops
    2020, arXiv:1910.01279, equations 5 to 8: with A the activation `(C, h, w)`, x the input and s the scaling of a
    channel to [0, 1] by its own minimum and maximum,

        H_c = s(upsampled A[c])      alpha = softmax over c of y(x * H_c)      map = sum over c of alpha_c * A[c]

    The paper subtracts the score of a baseline from each y, which the softmax takes out again. x is the input as the
    model receives it, so that what is hidden becomes the data set's mean colour, as in the authors' code.

    Deviations: a constant channel, of which s is undefined, gets weight 0; no final ReLU. Returns `(N, h, w)`, in
    units of the activation. One run of the model for each channel serves all targets.
    """
    scored, activations = _activations(batch)
    layers = []
    for activation, _ in activations:
        flat = activation.flatten(2)
        low, high = flat.amin(dim=2)[..., None, None], flat.amax(dim=2)[..., None, None]
        varies = (high > low)[..., 0, 0]
        masks = (activation - low) / torch.where(high > low, high - low, 1)
        scores = _masked_scores(batch, scored, masks).to(activation)
        alpha = torch.where(varies, scores, -torch.inf).softmax(dim=2).nan_to_num(0.0)  # no channel varies: no map
        layers.append(list(torch.einsum("knc,nchw->knhw", alpha, activation)))
    return Maps(scored, [fuse(maps, parameters.fusion) for maps in zip(*layers, strict=True)])


def ablationcam(batch: Batch, parameters: Parameters) -> Maps:
    """Weigh each channel by how far the score falls when the channel is set to zero.

    Desai & Ramaswamy, "Ablation-CAM: Visual Explanations for Deep Convolutional Network via Gradient-free
    Localization", WACV 2020, equation 5: with y_c the score with channel c of the activation A `(C, h, w)` at zero,
    map = sum over c of (y - y_c) * A[c].

    Deviations: the paper divides by y, which scales all of the map, and would turn it around for a negative score;
    no final ReLU. Returns `(N, h, w)`, in logits times units of the activation. Only what lies behind the layer
    is run for each channel, where the model allows that: the layer's one output becomes a batch of changed ones.
    """
    scored, activations = _activations(batch)
    layers = []
    for layer, (activation, call) in zip(batch.layers, activations, strict=True):
        fallen = scored.values.cpu()[..., None] - _Ablation(batch, scored, layer, call).scores(activation.shape[1])
        layers.append(list(torch.einsum("knc,nchw->knhw", fallen.to(activation), activation)))
    return Maps(scored, [fuse(maps, parameters.fusion) for maps in zip(*layers, strict=True)])


def _activations(batch: Batch) -> tuple[Scored, list[tuple[Tensor, int]]]:
    """Run the model once; return each layer's activation `(N, C, h, w)` and the number of its call."""
    with torch.no_grad(), capture(batch.subject, batch.layers) as captures:
        scored = batch.score(batch.inputs)
        grids = [(batch.grid(taken.layer, taken.activation), taken.calls) for taken in captures]
    for grid, _ in grids:
        batch.work.allow(grid.shape[1], field="layer", because=f"a layer of {grid.shape[1]} channels")
    return scored, grids


def _masked_scores(batch: Batch, scored: Scored, masks: Tensor) -> Tensor:
    size = (batch.inputs.shape[2], batch.inputs.shape[3])

    def masked(picture: int, channels: Sequence[int]) -> Tensor:
        mask = upsampled(masks[picture, list(channels)], size)[:, None]
        return (batch.inputs[picture] * mask).to(batch.inputs.dtype)

    return changed_scores(batch, scored, masks.shape[1], masked)


class _Ablation:
    """The explained scores without one channel of a layer each."""

    def __init__(self, batch: Batch, scored: Scored, layer: str, call: int) -> None:
        self._batch, self._scored, self._layer, self._call = batch, scored, layer, call
        self._grows = bool(scored.pictures) and self._may_grow()

    def scores(self, channels: int) -> Tensor:
        """Return the scores `(rounds, N, channels)`; 0 for pictures with an error."""
        scored = self._scored
        values = torch.zeros(scored.rounds, len(self._batch.inputs), channels, dtype=scored.values.dtype)
        for n in scored.pictures:
            parts = self._batch.work.steps(channels, partial(self._without, n))
            values[:, n] = torch.cat(list(parts), dim=1)
        return values

    def _may_grow(self) -> bool:
        """Whether the layer may answer one picture with several rows: what lies before it then runs only once.

        Something before the layer may meet something behind it, batch against batch, so it is tried with two rows
        that nothing was taken from.
        """
        picture = self._scored.pictures[0]
        try:
            scores = self._run(self._batch.inputs[[picture]], lambda output: output.repeat_interleave(2, dim=0))
        except Exception:  # noqa: BLE001 - foreign code stumbles in its own ways; then each row runs from the start
            return False
        expected = self._scored.scores[picture].expand(2, -1)
        return scores.shape == expected.shape and torch.allclose(scores.float().cpu(), expected, rtol=1e-2, atol=1e-2)

    @torch.inference_mode()
    def _without(self, picture: int, channels: range) -> Tensor:
        """Return the scores `(rounds, m)` without each of the channels."""
        rows = [picture] * len(channels)
        inputs = self._batch.inputs[[picture] if self._grows else rows]
        scores = self._run(inputs, lambda output: self._ablated(output, channels))
        return self._scored.read(scores, rows).cpu()

    def _ablated(self, output: Tensor, channels: range) -> Tensor:
        """Return the output for each channel once, with zeros where its grid has that channel."""
        many = output.expand(len(channels), *output.shape[1:]).contiguous()
        places = torch.arange(output[0].numel(), device=output.device).reshape(1, *output.shape[1:])
        if self._layer in self._batch.to_grid:
            places = self._batch.to_grid[self._layer](places)
        return many.flatten(1).scatter(1, places[0, list(channels)].flatten(1), 0).reshape(many.shape)

    @torch.inference_mode()
    def _run(self, inputs: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        with replaced(self._batch.subject, self._layer, self._call, change):
            return self._batch.subject.scores(inputs.clone())


register(
    Method(
        name="scorecam",
        family="cam",
        summary="Grad-CAM without gradients: a channel counts by the score of what it lets through.",
        weakness="One run of the model for each of the layer's channels; weights are nearly equal in wide layers.",
        sanity="Passes the randomisation check, weakly: the activation's own pattern shows through.",
        paper="https://arxiv.org/abs/1910.01279",
        cost="one forward pass for each channel of the layer, for all targets together",
        cost_class="high",
        max_layers=MAX_LAYERS,
        uses_gradients=False,
        parameters=Parameters,
        run=scorecam,
    )
)
register(
    Method(
        name="ablationcam",
        family="cam",
        summary="Grad-CAM without gradients: a channel counts by what the score loses without it.",
        weakness="Channels that stand in for each other count too little; one short run for each channel.",
        sanity="Passes the randomisation check for the layers behind the one it looks at.",
        paper="https://openaccess.thecvf.com/content_WACV_2020/html/Desai_Ablation-CAM_Visual_Explanations_for_Deep_Convolutional_Network_via_Gradient-free_Localization_WACV_2020_paper.html",
        cost="one forward pass behind the layer for each of its channels, for all targets together",
        cost_class="high",
        max_layers=MAX_LAYERS,
        uses_gradients=False,
        parameters=Parameters,
        run=ablationcam,
    )
)
