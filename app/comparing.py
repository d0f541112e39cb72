"""Two explanations of one picture, or what one layer of two models answers to it: both on one scale, and apart."""

import copy
import re
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import explainers
from app.class_names import most_classes
from app.diagnosing import check_feature_size
from app.engine import Watch
from app.errors import BadOption
from app.hosting import Host
from app.imaging.display import DisplayMap, display
from app.imaging.placement import Placed, place
from app.known_errors import KNOWN_ERRORS
from app.laying import Canvas, Laid
from app.schemas.diagnostics import CompareOptions
from app.schemas.options import MapOptions
from app.service import Explained, Service, Timings, default_layer
from app.tasks import CompareFeatures, Features, Payload, TakeFeatures
from app.viewing import View
from explainers.diagnostics.comparison import Comparison, compare
from models.loading import LoadedModel
from models.preprocess import Geometry

Unit = Literal["raw", "relative", "features"]

_COMPARED_PX = 256
"""The longest side at which agreement is measured: maps have no more detail than the model's input."""
_FAINT = 0.1
"""Differences smaller than this share of the maps' own scale are not drawn as if they were large."""
_SEEN_PX = 1.5
"""By how much the parts of the picture that two models see may differ, so that their features can be compared."""
_OF_MAPS = ("method", "target", "versus", "scale", "with_method", "with_target", "with_versus")
"""Options that features have no use for."""


@dataclass(frozen=True)
class ComparedMaps:
    """Two explanations, laid over the picture; `difference` is first minus second where both models looked, else 0."""

    first: Explained
    second: Explained
    canvas: Canvas
    sides: tuple[Laid, Laid]
    """Both maps in the unit of the comparison, and drawn on one scale."""
    divisors: tuple[float, float]
    """What each method's own map was divided by to come into that unit."""
    difference: NDArray[np.float32]
    seen: NDArray[np.bool_]
    unit: Unit
    scale: float
    """The value that is drawn at full heat in both maps, in the same unit."""
    difference_scale: float
    """The difference that is drawn at full colour."""
    agreement: Comparison
    laying_s: float
    """How long it took to lay them over the picture and compare them."""


@dataclass(frozen=True)
class ComparedFeatures:
    """How far two layers' answers to a picture are from each other, as a map `(h, w)`."""

    models: tuple[LoadedModel, LoadedModel]
    layers: tuple[str, str]
    view: View
    difference: NDArray[np.float32]
    timings: Timings


class Comparisons:
    """Asks a service twice."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def maps(
        self,
        picture: bytes,
        options: CompareOptions,
        parameters: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> ComparedMaps:
        """Explain a picture in two ways; `parameters` are the methods' own, those of the second as `with_NAME` too."""
        service = self._service
        _require_one_class(options)
        given = _given(options, parameters)
        explainers.get(options.method)  # raises in the name of the first
        with _named_as_given(given):
            questions, both = _questions(options, service.settings.default_model), _parameters(options, parameters)
        method, own = service.check(questions[0], both[0])
        with _named_as_given(given):
            other_method, other_own = service.check(questions[1], both[1])
        if questions[0] == questions[1] and own == other_own:
            raise _same(given)
        clocks = [service.clock(timeout_s, each) for each in (method, other_method)]
        whole = max(clocks, key=lambda clock: clock.remaining_s)
        first = service.explain(picture, questions[0], own, watch=watch, clock=clocks[0])
        # The second may have what is left, if that is not more than its method may have.
        clock = min(whole, service.clock(timeout_s, other_method), key=lambda clock: clock.remaining_s)
        with _named_as_given(given):
            second = service.explain(picture, questions[1], other_own, watch=watch, clock=clock)
        if _asked(first) == _asked(second):  # of `predicted` and its index, or of two classes where one map is for all
            raise _same(given)
        return _compared(first, second, options)

    def features(
        self,
        picture: bytes,
        options: CompareOptions,
        parameters: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        watch: Watch | None = None,
    ) -> ComparedFeatures:
        """Compare what a layer of each of two models answers to a picture (or two layers of one model).

        Options and `parameters` that say how to make a map are refused.
        """
        service = self._service
        _refuse_what_is_for_maps(options, parameters)
        service.check_side(options.max_side)
        names = options.model or service.settings.default_model, options.with_model or options.model
        names = names[0], names[1] or names[0]
        layers = options.layer, options.with_layer or options.layer
        for field, named in (("layer", layers[0]), ("with_layer", layers[1])):
            if len(named) > 1:
                raise BadOption(
                    f"{field}: features are compared of one layer; several were given.", field=field, limit=1
                )
        given = _given(options, {})
        clock = service.clock(timeout_s)
        with ExitStack() as stack:
            one = other = stack.enter_context(service.hosts.using(names[0], timeout_s=clock.remaining_s))
            if names[0] != names[1]:
                with _named_as_given(given):
                    other = stack.enter_context(service.hosts.using(names[1], timeout_s=clock.remaining_s))
            loaded_s = clock.lap()
            chosen = _chosen(one, layers[0], service), _chosen(other, layers[1], service, given)
            if one is other and chosen[0] == chosen[1]:
                msg = f"Both sides are layer {chosen[0]!r} of one model; say with_model or with_layer."
                raise BadOption(msg, field="with_layer")
            views = [
                service.viewer.view(picture, host.model.preprocess, clock, max_side=options.max_side)
                for host in dict.fromkeys((one, other))
            ]
            _require_same_view(views[0], views[-1])
            decode_s = clock.lap()
            taken = one.submit(
                TakeFeatures(chosen[0]), Payload(views[0].inputs[None]), timeout_s=clock.remaining_s, limit=clock.limit
            )
            features: Features = taken.result(watch)
            compared = other.submit(
                CompareFeatures(chosen[1], features.values if features.grid is None else features.grid),
                Payload(views[-1].inputs[None]),
                timeout_s=clock.remaining_s,
                limit=clock.limit,
            )
            with _named_as_given(given):
                (difference,) = compared.result(watch)
            timings = Timings(decode_s, loaded_s + taken.queue_s + compared.queue_s, taken.run_s + compared.run_s)
            return ComparedFeatures((one.model, other.model), chosen, views[0], difference, timings)


def _asked(side: Explained) -> tuple[object, ...]:
    """Return all that a map depends on."""
    score = side.attributions[0].score
    target = (score.index, score.versus) if side.method.class_specific else None
    return side.model.fingerprint, side.method.name, side.parameters, side.layers, target


def _same(given: Set[str]) -> BadOption:
    msg = (
        "Both sides are the same map; say with_model, with_method, with_layer, with_target or with a parameter what "
        "the second has in place of the first."
    )
    return BadOption(msg, field=f"with_{min(given)}" if given else "with_method")


def _chosen(host: Host, named: list[str], service: Service, given: Set[str] = frozenset()) -> str:
    """Return the layer of one side, if it is no larger than the operator allows."""
    with _named_as_given(given):
        layer = host.network.listed(named[0]) if named else default_layer(host)
        check_feature_size(host, layer, 1, service.settings)
        return layer


def _require_one_class(options: CompareOptions) -> None:
    others = [] if options.with_target is None else [options.with_target]
    for field, names in (("target", options.target), ("with_target", others)):
        if any(most_classes(name) > 1 for name in names):
            raise BadOption(f"{field}: each side shows one class; several were asked for.", field=field, limit=1)


def _refuse_what_is_for_maps(options: CompareOptions, parameters: Mapping[str, Any]) -> None:
    if parameters:
        name = min(parameters)
        raise BadOption(f"{name} is a parameter of a method, and features are compared without one.", field=name)
    for name in _OF_MAPS:
        if name in options.model_fields_set:
            raise BadOption(f"{name} is for maps; features are compared by model and layer alone.", field=name)


def _given(options: CompareOptions, parameters: Mapping[str, Any]) -> Set[str]:
    """Return what the second side has of its own, without the `with_`."""
    said = [name for name in options.model_fields_set if getattr(options, name) not in (None, [])]
    return {name.removeprefix("with_") for name in (*said, *parameters) if name.startswith("with_")}


@contextmanager
def _named_as_given(given: Set[str]) -> Iterator[None]:
    """Have errors of what the second side has of its own say `with_NAME`, which is what was written."""
    try:
        yield
    except KNOWN_ERRORS as error:
        field = getattr(error, "field", None)
        if field is None or field not in given:
            raise
        renamed: Any = copy.copy(error)  # others may be told of the same error
        renamed.args = (re.sub(rf"^{re.escape(field)}\b", f"with_{field}", str(error)),)
        renamed.field = f"with_{field}"
        raise renamed from error


def _questions(options: CompareOptions, default_model: str | None) -> tuple[MapOptions, MapOptions]:
    """Return what is asked on each side; what the second says nothing of is as on the first."""
    asked = {name: getattr(options, name) for name in ("model", "method", "target", "versus", "layer")}
    asked["model"] = options.model or default_model
    first = MapOptions(**asked, max_side=options.max_side)
    given = {name: getattr(options, f"with_{name}") for name in ("model", "method", "versus", "layer")}
    own = {name: value for name, value in given.items() if value not in (None, [])}
    if options.with_target is not None:
        own["target"] = [options.with_target]
    second = MapOptions(**(asked | own), max_side=options.max_side)
    if not options.with_layer and not explainers.get(second.method).max_layers:
        second = second.model_copy(update={"layer": []})
    return first, second


def _parameters(options: CompareOptions, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return each method's own parameters: one that only one of them takes is that one's."""
    takes = set(explainers.get(options.method).parameters.model_fields)
    takes_too = set(explainers.get(options.with_method or options.method).parameters.model_fields)
    plain = {name: value for name, value in given.items() if not name.startswith("with_")}
    own = {name.removeprefix("with_"): value for name, value in given.items() if name.startswith("with_")}
    first = {name: value for name, value in plain.items() if name in takes or name not in takes_too}
    second = {name: value for name, value in plain.items() if name in takes_too}
    return first, second | own


def _compared(first: Explained, second: Explained, options: CompareOptions) -> ComparedMaps:
    started = time.perf_counter()
    unit = _unit(first, second) if options.scale == "auto" else options.scale
    canvas = Canvas(first.picture, first.geometry, options.max_side)
    both = (first, second)
    divisors = _divisor(first, unit), _divisor(second, unit)
    raws = [each.attributions[0].raw / np.float32(divisor) for each, divisor in zip(both, divisors, strict=True)]
    placed = [place(raw, each.geometry, canvas.size) for raw, each in zip(raws, both, strict=True)]
    shown = [
        display(map_, raw, each.method.display_percentile) for map_, raw, each in zip(placed, raws, both, strict=True)
    ]
    scale = max(each.scale for each in shown) or max(float(np.abs(raw).max()) for raw in raws)
    seen = placed[0].seen & placed[1].seen
    difference = np.where(seen, placed[0].values - placed[1].values, np.float32(0))
    agreement = _agreement(raws, [first.geometry, second.geometry], canvas.size)
    return ComparedMaps(
        first=first,
        second=second,
        canvas=canvas,
        sides=(_side(raws[0], placed[0], shown[0], scale), _side(raws[1], placed[1], shown[1], scale)),
        divisors=divisors,
        difference=difference,
        seen=seen,
        unit=unit,
        scale=scale,
        difference_scale=max(float(np.abs(difference).max()), _FAINT * scale),
        agreement=agreement,
        laying_s=time.perf_counter() - started,
    )


def _side(raw: NDArray[np.float32], placed: Placed, own: DisplayMap, scale: float) -> Laid:
    """Draw a map on the scale of both."""
    values = np.clip(placed.values / np.float32(scale), 0.0, 1.0) if scale else np.zeros_like(placed.values)
    return Laid(raw, placed, replace(own, values=values, scale=scale, normalisation="the scale of both"))


def _agreement(raws: list[NDArray[np.float32]], geometries: list[Geometry], size: tuple[int, int]) -> Comparison:
    """Compare where both models looked, at no more pixels than it takes."""
    shrink = min(1.0, _COMPARED_PX / max(size))
    small = (max(1, round(size[0] * shrink)), max(1, round(size[1] * shrink)))
    one, other = (place(raw, geometry, small) for raw, geometry in zip(raws, geometries, strict=True))
    both = one.seen & other.seen
    if not both.any():
        msg = "The two models look at different parts of this picture, so their maps have no place in common."
        raise BadOption(msg, field="with_model")
    return compare(one.values[both], other.values[both])


def _unit(first: Explained, second: Explained) -> Unit:
    """Return raw where both maps are in the same unit: of one method, at the same layers of the same model."""
    same = (first.model.fingerprint, first.method.name, first.layers) == (
        second.model.fingerprint,
        second.method.name,
        second.layers,
    )
    return "raw" if same else "relative"


def _divisor(explained: Explained, unit: Unit) -> float:
    """Return what a raw map is divided by: 1, or a percentile of its absolute values, the method's own for drawing.

    A single pixel that sticks out would else make all the rest of a pixel-fine map invisible beside another one. Of
    the values that are not 0, as a map may have next to nothing but zeros; 1 where there are no others.
    """
    sizes = np.abs(explained.attributions[0].raw)
    sizes = sizes[sizes > 0]
    if unit == "raw" or not sizes.size:
        return 1.0
    return float(np.percentile(sizes, explained.method.display_percentile, method="lower"))


def _require_same_view(one: View, other: View) -> None:
    if np.abs(np.subtract(one.geometry.seen, other.geometry.seen)).max() > _SEEN_PX:
        msg = (
            "The two models look at different parts of this picture, so their features have no places in common; "
            "compare the maps instead (of=maps)."
        )
        raise BadOption(msg, field="with_model")
