"""EigenCAM and EigenGradCAM: the first principal component of what a layer holds."""

import torch
from torch import Tensor

from explainers.batch import Batch, Maps
from explainers.cam import MAX_LAYERS, Parameters, fuse, hirescam_of, weighted
from explainers.hooks import capture
from explainers.registry import Method, register


def eigencam(batch: Batch, parameters: Parameters) -> Maps:
    """Project a layer's activation onto its first principal direction.

    Muhammad & Yeasin, "Eigen-CAM: Class Activation Map using Principal Components", IJCNN 2020, arXiv:2008.00299,
    section III: with the activation as a matrix A `(h * w, C)` and A = U S V^T, map = A v_1.

    Deviations: the sign of a singular vector is arbitrary; it is chosen so that the map goes along with the
    activation's own sum over the channels (its inner product with it is not negative). No class enters: all
    targets of a picture have the same map. Returns `(N, h, w)`, in units of the activation.
    """
    with capture(batch.subject, batch.layers) as captures, torch.no_grad():
        scored = batch.score(batch.inputs)
        activations = [batch.grid(taken.layer, taken.activation) for taken in captures]
        map_ = fuse([principal(grid, grid.sum(dim=1)) for grid in activations], parameters.fusion)
        return Maps(scored, [map_] * scored.rounds)


def eigengradcam(batch: Batch, parameters: Parameters) -> Maps:
    """Project the product of activation and gradient onto its first principal direction.

    EigenCAM (arXiv:2008.00299) of A * dy / dA instead of A, which makes it a map of one class; it comes from
    pytorch-grad-cam. The sign is chosen so that the map goes along with HiResCAM's, the sum over the channels of the
    same product. Returns `(N, h, w)`, in logits.
    """

    def weigh(activation: Tensor, gradient: Tensor) -> Tensor:
        return principal(activation * gradient, hirescam_of(activation, gradient))

    return weighted(batch, weigh, parameters)


def principal(grid: Tensor, evidence: Tensor) -> Tensor:
    """Return the grid `(N, C, h, w)` projected onto its first right singular vector, `(N, h, w)`.

    The sign is that of the inner product with `evidence` `(N, h, w)`. Where values are not finite, so is the map.
    """
    finite = torch.isfinite(grid).all(dim=(1, 2, 3), keepdim=True)
    matrix = torch.where(finite, grid, 0).flatten(2).transpose(1, 2)
    directions = torch.linalg.svd(matrix, full_matrices=False).Vh[:, 0]
    map_ = torch.einsum("npc,nc->np", matrix, directions).reshape(evidence.shape)
    along = (map_ * evidence).sum(dim=(1, 2), keepdim=True)
    return torch.where(finite[:, 0], torch.where(along < 0, -map_, map_), torch.nan)


register(
    Method(
        name="eigencam",
        family="cam",
        summary="What the layer responds to most, whatever the class. Clean maps at the cost of one prediction.",
        weakness="Shows what stands out, not why this class: every target has the same map.",
        sanity="Fails the check for all layers behind the one it looks at, whose weights do not enter.",
        paper="https://arxiv.org/abs/2008.00299",
        cost="one forward pass",
        cost_class="low",
        max_layers=MAX_LAYERS,
        class_specific=False,
        uses_gradients=False,
        parameters=Parameters,
        run=eigencam,
    )
)
register(
    Method(
        name="eigengradcam",
        family="cam",
        summary="The strongest common pattern of activation times gradient: HiResCAM without its noise.",
        weakness="What does not follow the strongest pattern is dropped, be it evidence or noise.",
        sanity="Fails the randomisation check on the embedded model: with the classifier made up, its maps agree with "
        "the true ones by 0.96, those of different pictures by 0.49.",
        paper="https://arxiv.org/abs/2008.00299",
        cost="one forward pass, one short backward pass per target",
        cost_class="low",
        max_layers=MAX_LAYERS,
        parameters=Parameters,
        run=eigengradcam,
    )
)
