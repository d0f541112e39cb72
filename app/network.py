"""A loaded model with what is known of its layers. It belongs to one thread, like the hooks that it bears."""

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import explainers
from app.layer_choice import Choice, choose_layer
from explainers import Explanation, Subject, Target, Work
from explainers.batch import ToGrid
from explainers.errors import ExplainError, LayerNotSpatial
from explainers.hooks import observe
from explainers.work import is_out_of_memory
from models import ModelError, ModelSpec
from models.layers import LayerInfo, LayerTracer
from models.loading import load
from models.order import OrderCheck, mixes
from models.preprocess import Preprocess
from models.trunk import NotSplit, split

_log = logging.getLogger(__name__)


class Network:
    """A model that can be explained: loaded, traced, its default layer found, and a quicker way to that layer.

    `layers` are those that ran in a forward pass. `default_layer` is None where none qualifies, and
    `why_no_default_layer` says why. `takes_batches` is whether it answers several pictures at once. `size_bytes` is
    the memory of parameters, buffers and folded copies.

    One that answers NaN or infinity (`model.flaw`) is kept to be looked into: it has no quicker way, and no default
    layer but the one that its specification names.
    """

    def __init__(self, spec: ModelSpec, device: torch.device, *, allow_download: bool) -> None:
        self.model = load(spec, device=device, allow_download=allow_download, allow_non_finite=True)
        self.subject = Subject(self.model.module, self.model.scores, black=_black(self.model.preprocess))
        sample = self._sample()
        tracer = LayerTracer(sample.shape)
        self._observe(tracer, sample)
        self.takes_batches = True
        check = self._check_order(tracer.layers)
        self.layers = check.layers
        self._by_name = {layer.name: layer for layer in self.layers}
        self._token_grids = _token_grids(self.layers)
        choice = self._default_layer(tracer.candidates, check, sample)
        self.default_layer, self.why_no_default_layer = choice.layer, choice.why_none
        self.size_bytes = _size_bytes(self.model.module)
        self._quick = self._quick_way(sample)

    def predict(self, inputs: NDArray[np.float32]) -> Sequence[NDArray[np.float32] | ExplainError]:
        """Return the scores `(K,)` of each of the pictures `(N, C, h, w)`; see `explainers.predict`."""
        return explainers.predict(self.scorer, self.to_device(inputs))

    def explain(
        self,
        inputs: NDArray[np.float32],
        targets: Sequence[Sequence[Target]],
        *,
        method: str,
        layers: Sequence[str],
        parameters: Mapping[str, object],
        work: Work,
        quick: bool = True,
    ) -> Sequence[Explanation | ExplainError]:
        """Explain each of the pictures `(N, C, h, w)` for its own targets; see `explainers.explain`.

        Without `quick` by the network itself, whose weights may have been changed since it was loaded.
        """
        subject = self._subject_for(method, layers) if quick else self.subject
        return self._explain(subject, self.to_device(inputs), targets, method, layers, parameters, work)

    @property
    def scorer(self) -> Subject:
        """The quickest way to scores."""
        return self._quick or self.subject

    def listed(self, layer: str) -> str:
        """Return the name in `layers` of a layer that has several; of an unknown one what was given."""
        try:
            part = self.model.module.get_submodule(layer)
        except AttributeError:
            return layer
        return next((name for name, each in self.model.module.named_modules() if each is part), layer)

    def layout_of(self, layer: str) -> ToGrid | None:
        """Return how a layer's output becomes a grid `(N, C, h, w)`; None where it has no spatial axes."""
        traced = self._by_name.get(layer)
        return traced.layout.to_grid if traced and traced.layout else None

    def grid_of(self, layer: str, output: Tensor) -> Tensor | None:
        """Return a layer's output as a grid `(N, C, h, w)`; None where it has no spatial axes."""
        to_grid = self.layout_of(layer)
        return to_grid(output) if to_grid else None

    def _check_order(self, layers: Sequence[LayerInfo]) -> OrderCheck:
        """Return what a second forward pass says of the grids; a network may take one picture at a time only."""
        check = OrderCheck(layers)
        try:
            self._observe(check, mixes(self.model.preprocess.channels, self.model.preprocess.input_size))
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - foreign code, which has answered one picture before
            self.takes_batches = isinstance(error, RuntimeError) and is_out_of_memory(error)
            why = "memory ran out" if self.takes_batches else "it takes one picture at a time"
            _log.info("%s: the order of its tokens is not checked, as %s", self.model.spec.name, why)
            return OrderCheck(layers)
        return check

    def _observe(self, on_output: Callable[[str, nn.Module, object], None], pictures: Tensor) -> None:
        with torch.inference_mode(), observe(self.model.module, on_output):
            self.model.scores(self._moved(pictures))

    def _sample(self) -> Tensor:
        height, width = self.model.preprocess.input_size
        generator = torch.Generator().manual_seed(0)
        sample = torch.randn((1, self.model.preprocess.channels, height, width), generator=generator)
        return self._moved(sample)

    def _default_layer(self, candidates: Sequence[LayerInfo], check: OrderCheck, sample: Tensor) -> Choice:
        """Return the layer that the specification names, if it can be explained, or the one that is found."""

        def raw_map(method: str, layers: Sequence[str]) -> NDArray[np.float32]:
            return self._raw_map(self.subject, sample, method, layers)

        named = None if self.model.spec.layer is None else self.listed(self.model.spec.layer)
        if self.model.flaw is not None:
            return Choice(named, None if named else "it answers NaN or infinity, so no layer can be tried out")
        if named is None:
            return choose_layer(candidates, check, raw_map)
        raw_map("gradcam", [named])
        return Choice(named)

    def _quick_way(self, sample: Tensor) -> Subject | None:
        """Return the network with a quicker way to its default layer, if there is one that gives the same map."""
        if self.default_layer is None or self.model.flaw is not None:
            return None
        try:
            found = split(self.model, self.default_layer)
            quick = Subject(found.module, found.scores, black=self.subject.black)
            self._require_same_map(quick, sample)
        except torch.AcceleratorError:
            raise
        except (NotSplit, ExplainError, ModelError, RuntimeError) as why:  # foreign code, which runs well as it is
            _log.info("%s is run as it is: %s", self.model.spec.name, why)
            return None
        self.size_bytes += found.size_bytes
        return quick

    def _require_same_map(self, quick: Subject, sample: Tensor) -> None:
        """Compare Grad-CAM of both ways, to half of the digits that the numbers have; raises `NotSplit`."""
        layers = [self.default_layer] if self.default_layer else []
        expected, got = (self._raw_map(subject, sample, "gradcam", layers) for subject in (self.subject, quick))
        allowed = torch.finfo(self.model.dtype).eps ** 0.5 * np.abs(expected).max()
        if not (np.abs(got - expected) <= allowed).all():
            raise NotSplit("the traced copy has another gradient")

    def _raw_map(self, subject: Subject, sample: Tensor, method: str, layers: Sequence[str]) -> NDArray[np.float32]:
        (found,) = self._explain(subject, sample, [[Target()]], method, layers, {}, Work())
        if isinstance(found, ExplainError):
            raise found
        return found.attributions[0].raw

    def _subject_for(self, method: str, layers: Sequence[str]) -> Subject:
        """Return the quick way for whoever looks at nothing before the default layer."""
        if self._quick is None or not set(layers) <= {self.default_layer}:
            return self.subject
        family = explainers.get(method).family
        return self._quick if family == "perturbation" or (family == "cam" and layers) else self.subject

    def _explain(
        self,
        subject: Subject,
        inputs: Tensor,
        targets: Sequence[Sequence[Target]],
        method: str,
        layers: Sequence[str],
        parameters: Mapping[str, object],
        work: Work,
    ) -> Sequence[Explanation | ExplainError]:
        return explainers.explain(
            subject,
            inputs,
            targets,
            method=method,
            layers=layers,
            to_grid={layer: to_grid for layer in layers if (to_grid := self._to_grid(layer))},
            token_grids=self._token_grids,
            parameters=parameters,
            work=work,
        )

    def _to_grid(self, layer: str) -> ToGrid | None:
        """Return how a layer's output becomes a grid, as the trace saw it; raise if it saw none."""
        traced = self._by_name.get(layer)
        if traced is None:
            return None  # it did not run, or does not exist: the explainers say which
        if traced.layout is None:
            shape = "no tensor" if traced.shape is None else f"shape {traced.shape}"
            msg = (
                f"Layer {layer!r} returns {shape}, in which no spatial grid was found; choose a layer that is spatial."
            )
            raise LayerNotSpatial(msg)
        return traced.layout.to_grid

    def to_device(self, inputs: NDArray[np.float32]) -> Tensor:
        """Return pictures `(N, C, h, w)` where the model is, in its memory layout."""
        return self._moved(torch.from_numpy(inputs))

    def _moved(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.model.device, memory_format=self.model.memory_format)


def _token_grids(layers: Sequence[LayerInfo]) -> dict[int, ToGrid]:
    """Return how a transformer's tokens lie in the picture, by their number, as the trace saw it."""
    tokens = [layer for layer in layers if layer.shape and layer.layout and layer.layout.kind == "tokens"]
    return {layer.shape[1]: layer.layout.to_grid for layer in tokens if layer.shape and layer.layout}


def _size_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in {*module.parameters(), *module.buffers()})


def _black(preprocess: Preprocess) -> tuple[float, ...]:
    """Return what a black pixel is in the model's input, per channel."""
    return tuple(-mean / std for mean, std in zip(preprocess.mean, preprocess.std, strict=True))
