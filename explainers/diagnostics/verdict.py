"""Whether a network's gradients are healthy, and if not, what ails them and where."""

import math
from collections.abc import Iterator, Sequence

from explainers.diagnostics.answer import Finding, Kind, Verdict
from explainers.diagnostics.evidence import Evidence, listed, named, unique
from explainers.diagnostics.non_finite import find_non_finite
from explainers.diagnostics.recording import Call
from explainers.diagnostics.trend import Point, trends

_WORST_FIRST: tuple[Kind, ...] = ("non_finite", "dead", "exploding", "vanishing", "disconnected")
_ROUNDING = 1e4
"""A gradient of so many times the smallest number of its format may be rounded to zero by an ordinary slope."""


def judge(evidence: Evidence) -> Verdict:
    """Look for each illness.

    - `non_finite`: NaN or infinity in an output, or else in a gradient; named is the first layer that shows them. What
      else there is may be a consequence, and is not told.
    - `dead`: a layer passes back exactly zero although it gets some, and not because its weights start at zero.
    - `exploding`, `vanishing`: a trend over neighbouring layers with weights, see `explainers.diagnostics.trend`, or
      a gradient too small for its number format.
    - `disconnected`: a layer ran and gets no gradient while others do.
    """
    stops = [call for call in evidence.calls if _stops(call)]
    at_zero = [call for call in stops if _starts_at_zero(call, evidence)]
    rounded = [call for call in stops if call not in at_zero and _is_rounded_off(call)]
    dead = [call for call in stops if call not in at_zero and call not in rounded]
    lost = _lost(evidence, stops)
    scaled = [call for call in lost if _zero_scale(call, evidence)]
    non_finite = find_non_finite(evidence)
    found = non_finite or [
        *_dead(evidence, dead),
        *_lost_between(evidence, [call for call in lost if call not in scaled]),
        *trends(_points(evidence.calls)),
        *_rounded_off(evidence, rounded),
        *_disconnected(evidence),
    ]
    found.sort(key=lambda finding: _WORST_FIRST.index(finding.kind))
    return Verdict(found[0].kind if found else "ok", tuple(found), tuple(_notes(evidence, at_zero, scaled)))


def _points(calls: Sequence[Call]) -> list[Point]:
    points = []
    for call in calls:
        gradient, output = call.gradient_output, call.output
        if not call.has_weights or gradient is None or output is None or not gradient.finite or not output.finite:
            continue
        if gradient.norm and output.norm:
            points.append(Point(call.name, gradient.norm, output.norm))
    return points


def _stops(call: Call) -> bool:
    """Whether the call gets some gradient and passes exactly zero back."""
    arrived, passed = call.gradient_output, call.gradient_input
    if arrived is None or passed is None or not arrived.finite or not passed.finite:
        return False
    return arrived.norm > 0 and passed.norm == 0


def _is_starved(call: Call) -> bool:
    arrived = call.gradient_output
    return arrived is not None and arrived.count > 0 and arrived.finite and arrived.norm == 0


def _starts_at_zero(call: Call, evidence: Evidence) -> bool:
    """Whether the layer stops the gradient because a weight of it is zero, and that weight learns."""
    weights = [p for p in evidence.parameters[call.name] if not p.name.endswith("bias")]
    return any(weight.norm == 0 and weight.gradient_norm for weight in weights)


def _is_rounded_off(call: Call) -> bool:
    arrived = call.gradient_output
    if arrived is None or _is_silent(call):
        return False
    return arrived.norm / math.sqrt(arrived.count) < _ROUNDING * call.smallest


def _lost(evidence: Evidence, stops: Sequence[Call]) -> list[Call]:
    """Return the calls that get exactly zero though no layer that ran later stops the gradient."""
    last_stop = max((evidence.calls.index(call) for call in stops), default=-1)
    return [call for call in evidence.calls[last_stop + 1 :] if _is_starved(call)]


def _zero_scale(call: Call, evidence: Evidence) -> str | None:
    """Return the zero that the layer's answer is multiplied by, if it is a parameter that learns."""
    for parameter in evidence.loose:
        owner = parameter.name.rpartition(".")[0]
        inside = not owner or call.name.startswith(owner + ".")
        if inside and parameter.norm == 0 and parameter.gradient_norm:
            return parameter.name
    return None


def _dead(evidence: Evidence, dead: Sequence[Call]) -> Iterator[Finding]:
    if not dead:
        return
    last = dead[-1]
    before = evidence.calls[: evidence.calls.index(last)]
    silent = [call for call in before if _is_silent(call)] if _is_silent(last) else []
    what = "its output is zero everywhere" if _is_silent(last) else "its slope is zero"
    reason = f"{named(last, evidence)} gets a gradient and passes exactly zero back: {what}."
    if silent:
        reason += f" So is that of {listed(unique(silent))}, which ran before: the first of them is the cause."
    if others := [name for name in unique(dead) if name not in (last.name, *unique(silent))]:
        reason += f" Exactly zero is passed back by {listed(others)}, too."
    if starved := unique(call for call in before if _is_starved(call)):
        reason += f" Starved by that, with a gradient of exactly zero: {listed(starved)}."
    ill = [call for call in evidence.calls if call in dead or call in silent]
    yield Finding("dead", unique(ill), reason[0].upper() + reason[1:])


def _is_silent(call: Call) -> bool:
    """Whether an activation gives nothing but zeros; a layer with parameters gives them for want of an input."""
    output = call.output
    parameters = next(call.module.parameters(), None)
    return parameters is None and output is not None and output.count > 0 and output.finite and output.norm == 0


def _lost_between(evidence: Evidence, lost: Sequence[Call]) -> Iterator[Finding]:
    if not lost:
        return
    layers = unique(lost)
    if lost[-1] is evidence.calls[-1]:
        cause = "The objective is flat where the scores lie (such as a loss that is saturated)"
    else:
        cause = "It stops in code between the layers (such as a function whose inputs are all negative)"
    yield Finding("dead", layers, f"The gradient is exactly zero when it arrives at {listed(layers)}. {cause}.")


def _rounded_off(evidence: Evidence, rounded: Sequence[Call]) -> Iterator[Finding]:
    if not rounded:
        return
    last = rounded[-1]
    reason = (
        f"The gradient that arrives at {named(last, evidence)} is so small that its number format rounds it to zero "
        "on the way to the layers before."
    )
    starved = unique(call for call in evidence.calls[: evidence.calls.index(last)] if _is_starved(call))
    if starved:
        reason += f" Exactly zero is what arrives at {listed(starved)}."
    yield Finding("vanishing", unique(rounded), reason)


def _disconnected(evidence: Evidence) -> Iterator[Finding]:
    without = [
        call for call in evidence.calls if call.gradient_output is None and call.output is not None and not call.hidden
    ]
    if not any(call.could_have_gradient for call in without):
        return
    layers = unique(without)
    reason = (
        f"No gradient arrives at {listed(layers)}, while others get one: the model cuts it off there (detach, "
        "no_grad), or the objective does not use what they give."
    )
    yield Finding("disconnected", layers, reason)


def _notes(evidence: Evidence, at_zero: Sequence[Call], scaled: Sequence[Call]) -> Iterator[str]:
    if at_zero:
        yield (
            f"Exactly zero is passed back by {listed(unique(at_zero))}, for the weights there are zero; they get a "
            "gradient, so that the layers before learn after the first step."
        )
    scales = dict.fromkeys(scale for call in scaled if (scale := _zero_scale(call, evidence)))
    if scales:
        yield (
            f"What {listed(unique(scaled))} give is multiplied by {', '.join(map(repr, scales))}, which is zero and "
            "gets a gradient: it starts at zero."
        )
