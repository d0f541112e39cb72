"""Score-CAM and Ablation-CAM: weights of channels from what the model says, not from gradients."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.cam import MAX_LAYERS, Parameters, fuse, upsampled
from explainers.gradients import Scored
from explainers.hooks import capture, replaced
from explainers.perturb import changed_scores, grouped
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
    scored, grids, _ = _run_once(batch)
    scores = _masked_scores(batch, scored, [_scaled(grid) for grid in grids])
    layers = []
    for grid, score in zip(grids, scores, strict=True):
        varies = grid.amax(dim=(2, 3)) > grid.amin(dim=(2, 3))
        alpha = torch.where(varies, score.to(grid), -torch.inf).softmax(dim=2)
        alpha = torch.where(varies.any(dim=1)[:, None], alpha, 0)  # no channel varies: no map
        layers.append(list(torch.einsum("knc,nchw->knhw", alpha, grid)))
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
    scored, grids, calls = _run_once(batch)
    ablated = _Ablations(batch, scored, calls).scores([grid.shape[1] for grid in grids])
    layers = []
    for grid, score in zip(grids, ablated, strict=True):
        fallen = scored.values.cpu()[..., None] - score
        layers.append(list(torch.einsum("knc,nchw->knhw", fallen.to(grid), grid)))
    return Maps(scored, [fuse(maps, parameters.fusion) for maps in zip(*layers, strict=True)])


def _run_once(batch: Batch) -> tuple[Scored, list[Tensor], dict[str, int]]:
    """Run the model; return the scores, the layers' activations `(N, C, h, w)`, and the numbers of their last calls."""
    with capture(batch.subject, batch.layers) as captures, torch.no_grad():
        scored = batch.score(batch.inputs)
        grids = [batch.grid(taken.layer, taken.activation) for taken in captures]
        calls = {taken.layer: taken.calls for taken in captures}
    channels = [grid.shape[1] for grid in grids]
    what = "a layer" if len(channels) == 1 else f"{len(channels)} layers"
    because = f"{what} of {' and '.join(map(str, channels))} channels"
    batch.work.allow(sum(channels), field="layer", because=because)
    return scored, grids, calls


def _scaled(grid: Tensor) -> Tensor:
    """Return each channel from 0 to 1; one that does not vary is 0."""
    low, high = grid.amin(dim=(2, 3), keepdim=True), grid.amax(dim=(2, 3), keepdim=True)
    return (grid - low) / torch.where(high > low, high - low, 1)


def _masked_scores(batch: Batch, scored: Scored, masks: Sequence[Tensor]) -> list[Tensor]:
    """Return the scores `(rounds, N, C)` of the pictures under each layer's masks `(N, C, h, w)`."""
    size = (batch.inputs.shape[2], batch.inputs.shape[3])
    channels = [mask.shape[1] for mask in masks]

    def masked(picture: int, numbers: Sequence[int]) -> Tensor:
        of_layers = grouped(range(len(masks)), channels, range(numbers[0], numbers[-1] + 1))
        shown = torch.cat([upsampled(masks[layer][picture, chosen], size) for layer, chosen in of_layers])
        return (batch.inputs[picture] * shown[:, None]).to(batch.inputs.dtype)

    scores = changed_scores(batch, scored, sum(channels), masked)
    return list(torch.split(scores, channels, dim=2))


class _Ablations:
    """The explained scores without one channel of a layer each."""

    def __init__(self, batch: Batch, scored: Scored, calls: Mapping[str, int]) -> None:
        self._batch, self._scored, self._calls = batch, scored, calls
        self._grows = {layer: bool(scored.pictures) and self._may_grow(layer) for layer in batch.layers}

    def scores(self, channels: Sequence[int]) -> list[Tensor]:
        """Return, for each layer, the scores `(rounds, N, channels)`; 0 for pictures with an error."""
        scored, shape = self._scored, (self._scored.rounds, len(self._batch.inputs))
        values = [torch.zeros(*shape, count, dtype=scored.values.dtype) for count in channels]
        jobs = [(picture, number) for picture in scored.pictures for number in range(len(channels))]
        counts = [channels[number] for _, number in jobs]

        @torch.inference_mode()
        def run(part: range) -> list[tuple[int, int, list[int], Tensor]]:
            groups = [(*jobs[job], without) for job, without in grouped(range(len(jobs)), counts, part)]
            return [(n, number, without, self._without(n, number, without)) for n, number, without in groups]

        for answers in self._batch.work.steps(sum(counts), run):
            for picture, number, without, answer in answers:
                values[number][:, picture, without] = answer
        return values

    def _may_grow(self, layer: str) -> bool:
        """Whether the layer may answer one picture with several rows: what lies before it then runs only once.

        Something before the layer may meet something behind it, batch against batch, so it is tried with two rows
        that nothing was taken from.
        """
        picture = self._scored.pictures[0]
        try:
            scores = self._run(layer, self._batch.inputs[[picture]], lambda output: output.repeat_interleave(2, dim=0))
        except Exception:  # noqa: BLE001 - foreign code stumbles in its own ways; then each row runs from the start
            return False
        expected = self._scored.scores[picture].expand(2, -1)
        return scores.shape == expected.shape and torch.allclose(scores.float().cpu(), expected, rtol=1e-2, atol=1e-2)

    def _without(self, picture: int, number: int, channels: Sequence[int]) -> Tensor:
        """Return the scores `(rounds, m)` without each of the channels of a layer."""
        rows, layer = [picture] * len(channels), self._batch.layers[number]
        inputs = self._batch.inputs[[picture] if self._grows[layer] else rows]
        scores = self._run(layer, inputs, lambda output: self._ablated(layer, output, channels))
        return self._scored.read(scores, rows).cpu()

    def _ablated(self, layer: str, output: Tensor, channels: Sequence[int]) -> Tensor:
        """Return the output for each channel once, with zeros where its grid has that channel."""
        many = output.expand(len(channels), *output.shape[1:]).contiguous()
        places = torch.arange(output[0].numel(), device=output.device).reshape(1, *output.shape[1:])
        if layer in self._batch.to_grid:
            places = self._batch.to_grid[layer](places)
        return many.flatten(1).scatter(1, places[0, list(channels)].flatten(1), 0).reshape(many.shape)

    @torch.inference_mode()
    def _run(self, layer: str, inputs: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        with replaced(self._batch.subject, layer, self._calls[layer], change):
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
