"""The way in: explain a batch, each picture for itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import Tensor

from explainers import registry
from explainers.batch import Batch, Maps, ToGrid
from explainers.errors import BadParameter, ExplainError, LayerNotTaken, NonFiniteMap, NonFiniteScores
from explainers.subject import Subject
from explainers.targets import Score, Target
from explainers.work import Work


@dataclass(frozen=True)
class Attribution:
    """One map: `raw` is `(h, w)` float32, signed, and covers the whole model input evenly."""

    score: Score
    raw: NDArray[np.float32]
    completeness_gap: float | None = None
    """Where the map's values should add up to a difference of scores: by how much they do not, in logits."""


@dataclass(frozen=True)
class Explanation:
    """One picture's answer: all its scores `(K,)` float32 in logits, and one attribution per target."""

    scores: NDArray[np.float32]
    attributions: list[Attribution]


def explain(
    subject: Subject,
    inputs: Tensor,
    targets: Sequence[Sequence[Target]],
    *,
    method: str,
    layers: Sequence[str] = (),
    to_grid: Mapping[str, ToGrid] | None = None,
    token_grids: Mapping[int, ToGrid] | None = None,
    parameters: Mapping[str, object] | None = None,
    work: Work | None = None,
) -> list[Explanation | ExplainError]:
    """Explain each picture of a batch for its own targets.

    `inputs` is `(N, C, H, W)` on the model's device and is left untouched; `targets` has one sequence per picture;
    `to_grid` says for each layer whose output is not `(N, C, h, w)` already how it becomes so, and `token_grids` the
    same for so many tokens of a transformer. `work` bounds what is done at once, and hears of the progress. The model
    is afterwards as it was before. A picture with a bad target or with non-finite numbers gets its own error and the
    others their answers; what is wrong for all of them (method, layer, parameters) is raised.
    """
    if len(targets) != len(inputs):
        msg = f"{len(inputs)} pictures came with {len(targets)} lists of targets; each picture needs its own."
        raise ExplainError(msg)
    chosen = registry.get(method)
    check_layers(chosen, layers)
    checked = check_parameters(chosen, parameters or {})
    if not len(inputs):
        return []
    batch = Batch(subject, inputs.detach(), targets, layers, to_grid or {}, token_grids or {}, work or Work())
    maps = chosen.run(batch, checked)
    rounds = [round_.detach().float().cpu().numpy() for round_ in maps.rounds]
    return [_answer(maps, rounds, picture) for picture in range(len(inputs))]


def predict(subject: Subject, inputs: Tensor) -> list[NDArray[np.float32] | ExplainError]:
    """Return each picture's scores `(K,)` float32 in logits, or its own error if they are not finite."""
    with torch.inference_mode():
        scores = subject.scores(inputs.clone()).float().cpu().numpy()
    return [row.copy() if np.isfinite(row).all() else _non_finite_scores() for row in scores]


def check_parameters(method: registry.Method, parameters: Mapping[str, object]) -> BaseModel:
    """Return the method's own parameters, checked, or raise `BadParameter` that names the one at fault."""
    try:
        return method.parameters.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        choices = sorted(method.parameters.model_fields)
        if first["type"] == "extra_forbidden":
            takes = f"valid are {', '.join(choices)}" if choices else "it has none"
            msg = f"{method.name} has no parameter {name!r}; {takes}."
            raise BadParameter(msg, field=name, choices=choices) from error
        msg = f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}."
        schema = method.parameters.model_json_schema()["properties"].get(name, {})
        facts = {"enum": "choices", "minimum": "minimum", "maximum": "maximum"}
        raise BadParameter(
            msg, field=name, **{to: schema[key] for key, to in facts.items() if key in schema}
        ) from error


def check_layers(method: registry.Method, layers: Sequence[str]) -> None:
    """Raise `LayerNotTaken` for more or fewer layers than the method takes, or one given twice."""
    most = method.max_layers
    if not min(most, 1) <= len(layers) <= most:
        takes = "no layer" if most == 0 else "one layer" if most == 1 else f"one to {most} layers"
        msg = f"{method.name} takes {takes}; {len(layers)} were given."
        raise LayerNotTaken(msg, limit=most)
    if len(set(layers)) < len(layers):
        msg = f"A layer was given twice: {', '.join(map(repr, layers))}."
        raise LayerNotTaken(msg, limit=most)


def _answer(maps: Maps, rounds: Sequence[NDArray[np.float32]], picture: int) -> Explanation | ExplainError:
    scores = maps.scored.chosen[picture]
    if isinstance(scores, ExplainError):
        return scores
    gaps = [None] * len(scores) if maps.gaps is None else [float(gap[picture]) for gap in maps.gaps[: len(scores)]]
    # Copies: a view would keep the maps of the whole batch for as long as one picture's answer lives.
    attributions = [Attribution(score, rounds[k][picture].copy(), gaps[k]) for k, score in enumerate(scores)]
    if not all(_is_finite(attribution) for attribution in attributions):
        msg = "The attribution holds NaN or infinity, although the scores are finite; try another method or layer."
        return NonFiniteMap(msg)
    return Explanation(maps.scored.scores[picture].numpy().copy(), attributions)


def _is_finite(attribution: Attribution) -> bool:
    gap = attribution.completeness_gap
    return bool(np.isfinite(attribution.raw).all()) and (gap is None or math.isfinite(gap))


def _non_finite_scores() -> NonFiniteScores:
    return NonFiniteScores("The model answered NaN or infinity for this picture.")
