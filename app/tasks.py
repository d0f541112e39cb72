"""What the owner thread of a model can be asked to do with pictures.

A task is a value: pictures of equal tasks run together. One that is about a single request holds what it needs of that
request and equals only itself. Tasks run in the owner thread, where alone the network may be touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import explainers
from app.network import Network
from explainers import Explanation, Score, Target, Work
from explainers.diagnostics.activations import LayerActivation, activations, embedding, features, similarity
from explainers.diagnostics.comparison import feature_difference
from explainers.diagnostics.gradient_flow import GradientFlow, Objective, gradient_flow
from explainers.diagnostics.sensitivity import Reduction, Sensitivity, Unit, sensitivity
from explainers.errors import ExplainError
from explainers.faithfulness import Faithfulness, faithfulness
from explainers.randomisation import Randomisation, randomisation

Raw = NDArray[np.float32]


@dataclass(frozen=True)
class Payload:
    """One picture as the model takes it, `(C, h, w)` float32, and its targets.

    Of tasks that are about several pictures at once, `inputs` is `(N, C, h, w)`.
    """

    inputs: NDArray[np.float32]
    targets: tuple[Target, ...] = ()


class Task(Protocol):
    """Work on pictures of equal shape."""

    @property
    def name(self) -> str:
        """What the metrics call it, and by what is remembered how many pictures fitted into the memory."""
        ...

    @property
    def alone(self) -> bool:
        """Whether a picture has the device to itself, since its work runs the model many times."""
        ...

    @property
    def remedy(self) -> str:
        """What helps where one picture does not fit into the memory."""
        ...

    def run(self, network: Network, payloads: Sequence[Payload], work: Work) -> Sequence[Any]:
        """Return an answer for each payload, an `ExplainError` where one fails alone."""
        ...


@dataclass(frozen=True)
class Predict:
    """Ask for the scores `(K,)`."""

    name: ClassVar[str] = "predict"
    alone: ClassVar[bool] = False
    remedy: ClassVar[str] = "the model needs a smaller input_size or another device"

    def run(
        self, network: Network, payloads: Sequence[Payload], _work: Work
    ) -> Sequence[NDArray[np.float32] | ExplainError]:
        """Return the scores of each picture."""
        return network.predict(_stacked(payloads))


@dataclass(frozen=True)
class Classify:
    """Ask for the class with the highest score, of the network itself and whatever its scores are."""

    name: ClassVar[str] = "predict"
    alone: ClassVar[bool] = False
    remedy: ClassVar[str] = Predict.remedy

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[int]:
        """Return the class of each picture; NaN is lower than all else, so that without any number it is class 0."""
        with torch.inference_mode():
            scores = _as_numpy(network.subject.scores(network.to_device(_stacked(payloads))))
        return [int(np.argmax(row)) for row in np.where(np.isnan(scores), -np.inf, scores)]


@dataclass(frozen=True)
class Explain:
    """Ask for the maps of a method, one for each of a picture's targets."""

    method: str
    layers: tuple[str, ...]
    parameters: tuple[tuple[str, object], ...]
    remedy: ClassVar[str] = "ask for fewer targets or layers, or have HEATLENS_MAX_CHUNK_PICTURES lowered"

    @classmethod
    def by(cls, method: str, layers: Sequence[str], parameters: Mapping[str, object]) -> "Explain":
        """Return the task; the order of the parameters does not matter."""
        return cls(method, tuple(layers), tuple(sorted(parameters.items())))

    @property
    def name(self) -> str:
        """The method's."""
        return self.method

    @property
    def alone(self) -> bool:
        """Whether the method runs the model many times, which fills the device alone."""
        return explainers.get(self.method).cost_class != "low"

    def run(self, network: Network, payloads: Sequence[Payload], work: Work) -> Sequence[Explanation | ExplainError]:
        """Return the explanation of each picture."""
        return network.explain(
            _stacked(payloads),
            [payload.targets for payload in payloads],
            method=self.method,
            layers=self.layers,
            parameters=dict(self.parameters),
            work=work,
        )


@dataclass(frozen=True, eq=False)
class MeasureFaithfulness:
    """Ask how the probability follows a picture's maps when parts are taken away; see `explainers.faithfulness`."""

    scores: Sequence[Score]
    maps: Sequence[Raw]
    name: ClassVar[str] = "faithfulness"
    alone: ClassVar[bool] = True
    remedy: ClassVar[str] = "have HEATLENS_MAX_CHUNK_PICTURES lowered"

    def run(self, network: Network, payloads: Sequence[Payload], work: Work) -> Sequence[list[Faithfulness]]:
        """Return one figure for each map of the one picture."""
        (payload,) = payloads
        picture = network.to_device(payload.inputs[None])[0]
        probabilities = network.model.probabilities
        return [faithfulness(network.scorer, picture, self.scores, self.maps, probabilities=probabilities, work=work)]


@dataclass(frozen=True, eq=False)
class MeasureGradientFlow:
    """Ask how the gradient of an objective flows back from the scores of the pictures `(N, C, h, w)`."""

    objective: Objective
    name: ClassVar[str] = "gradient_flow"
    alone: ClassVar[bool] = True
    remedy: ClassVar[str] = "send fewer pictures"

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[GradientFlow]:
        """Return the flow of all pictures together."""
        (payload,) = payloads
        return [gradient_flow(network.subject, network.to_device(payload.inputs), self.objective)]


@dataclass(frozen=True)
class Features:
    """What one layer answered to some pictures."""

    values: NDArray[np.float32]
    """`(N, ...)` in the layer's own shape."""
    grid: NDArray[np.float32] | None
    """The same as `(N, C, h, w)`, where it has spatial axes."""
    embeddings: NDArray[np.float32] | None
    """`(N, C)`: the channels, averaged over the places; None where it is not known which axes those are."""
    similarity: NDArray[np.float32] | None
    """`(N, N)`: the cosine of the angle between each two embeddings; NaN where one of them is not finite."""
    missing: str | None
    """Why embeddings, or numbers of the similarity, are missing."""


@dataclass(frozen=True, eq=False)
class MeasureActivations:
    """Ask what the layers answer to the pictures `(N, C, h, w)`, in numbers; `also` may have others inside."""

    also: str | None = None
    name: ClassVar[str] = "activations"
    alone: ClassVar[bool] = True
    remedy: ClassVar[str] = "send fewer pictures"

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[tuple[LayerActivation, ...]]:
        """Return the statistics over all pictures."""
        (payload,) = payloads
        return [activations(network.subject, network.to_device(payload.inputs), also=self.also)]


@dataclass(frozen=True, eq=False)
class TakeFeatures:
    """Ask for all that a layer answers to the pictures `(N, C, h, w)`."""

    layer: str
    name: ClassVar[str] = "features"
    alone: ClassVar[bool] = True
    remedy: ClassVar[str] = "send fewer pictures"

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[Features]:
        """Return what the layer answers."""
        (payload,) = payloads
        values = features(network.subject, network.to_device(payload.inputs), self.layer)
        grid = _grid(network, self.layer, values, len(payload.inputs))
        source = values if grid is None and values.dim() == 2 and len(values) == len(payload.inputs) else grid
        arrays = _as_numpy(values), None if grid is None else _as_numpy(grid)
        if source is None:
            msg = (
                f"{self.layer} answers {len(payload.inputs)} picture(s) with {tuple(values.shape)}, in which neither "
                "a grid nor one row per picture was found, so there is no vector per picture."
            )
            return [Features(*arrays, None, None, msg)]
        embeddings = embedding(source)
        alike, missing = _similarity(self.layer, embeddings)
        return [Features(*arrays, _as_numpy(embeddings), _as_numpy(alike), missing)]


@dataclass(frozen=True, eq=False)
class CompareFeatures:
    """Ask how what a layer answers to the pictures `(N, C, h, w)` differs from `other`, a grid `(N, C, h, w)`."""

    layer: str
    other: NDArray[np.float32]
    name: ClassVar[str] = "features"
    alone: ClassVar[bool] = True
    remedy: ClassVar[str] = "choose a layer with a coarser grid"

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[NDArray[np.float32]]:
        """Return the difference `(N, h, w)`."""
        (payload,) = payloads
        values = features(network.subject, network.to_device(payload.inputs), self.layer)
        grid = network.grid_of(self.layer, values)
        return [
            _as_numpy(feature_difference(torch.from_numpy(self.other).to(values), values if grid is None else grid))
        ]


@dataclass(frozen=True)
class MeasureSensitivity:
    """Ask which pixels a unit of a layer is sensitive to."""

    layer: str
    unit: Unit
    reduction: Reduction
    name: ClassVar[str] = "sensitivity"
    alone: ClassVar[bool] = False
    remedy: ClassVar[str] = "have HEATLENS_BATCH_SIZE lowered"

    def run(self, network: Network, payloads: Sequence[Payload], _work: Work) -> Sequence[Sensitivity | ExplainError]:
        """Return the unit's sensitivity to each picture."""
        inputs, to_grid = network.to_device(_stacked(payloads)), network.layout_of(self.layer)
        return sensitivity(network.subject, inputs, self.layer, self.unit, to_grid=to_grid, reduction=self.reduction)


@dataclass(frozen=True, eq=False)
class Randomise:
    """Ask whether the maps of a method change with the weights; each of the pictures has its own targets.

    Only for processes that serve nobody else: meanwhile the model's weights are made up.
    """

    explain: Explain
    targets: Sequence[Sequence[Target]]
    seed: int = 0
    remedy: ClassVar[str] = "take fewer pictures"
    name: ClassVar[str] = "randomisation"
    alone: ClassVar[bool] = True

    def run(self, network: Network, payloads: Sequence[Payload], work: Work) -> Sequence[Randomisation]:
        """Return what becomes of the maps of the pictures `(N, C, h, w)`."""
        (payload,) = payloads
        order = [layer.name for layer in network.layers if _has_parameters(network, layer.name)]

        each = 1 if not network.takes_batches else len(payload.inputs)
        parts = [slice(first, first + each) for first in range(0, len(payload.inputs), each)]
        reached = (0, 0)

        def step(done: int, total: int) -> None:
            nonlocal reached
            reached = done, total
            work.on_step(done, total)

        inside = work.within(lambda: work.on_step(*reached))

        def maps() -> list[Raw | None]:
            answers = [
                answer
                for part in parts
                for answer in network.explain(
                    payload.inputs[part],
                    self.targets[part],
                    method=self.explain.method,
                    layers=self.explain.layers,
                    parameters=dict(self.explain.parameters),
                    work=inside,
                    quick=False,
                )
            ]
            return [None if isinstance(answer, ExplainError) else answer.attributions[0].raw for answer in answers]

        return [randomisation(network.model.module, order, maps, seed=self.seed, on_step=step)]


def _grid(network: Network, layer: str, values: Tensor, pictures: int) -> Tensor | None:
    """Return what a layer answered as `(N, C, h, w)`, if it has spatial axes and one row per picture."""
    grid = network.grid_of(layer, values) if len(values.shape) and len(values) == pictures else None
    return grid if grid is not None and len(grid) == pictures else None


def _similarity(layer: str, embeddings: Tensor) -> tuple[Tensor, str | None]:
    """Return how alike the embeddings are, NaN for those that are not finite, and why numbers are missing."""
    finite = torch.isfinite(embeddings).all(dim=1)
    if bool(finite.all()):
        return similarity(embeddings), None
    found = embeddings.new_full((len(embeddings),) * 2, torch.nan)
    found[finite.nonzero(), finite.nonzero().T] = similarity(embeddings[finite])
    which = ", ".join(str(place + 1) for place in (~finite).nonzero().flatten().tolist())
    return found, f"{layer} answers NaN or infinity to picture {which}, which is like no other."


def _has_parameters(network: Network, layer: str) -> bool:
    module = network.model.module.get_submodule(layer)
    return any(True for _ in module.parameters(recurse=False))


def _stacked(payloads: Sequence[Payload]) -> NDArray[np.float32]:
    return np.stack([payload.inputs for payload in payloads])


def _as_numpy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().to("cpu", torch.float32).numpy()
