"""What a siege gave, as JSON and as a chart."""

import json
import statistics
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.app.siege.run import Story
from tests.app.siege.verdict import broken_promises, calm, p99, p99_of_thirds
from tests.app.siege.visits import BROKEN, LEFT
from tests.app.siege.watching import Life, growth

_WORDS = {LEFT: "left", BROKEN: "connection ended"}
_BINS = 60
_COLOURS = {"web worker": "tab:blue", "job worker": "tab:green", "master": "tab:grey", "supervisor": "tab:olive"}
_FAULT_COLOUR = "tab:red"


def figures(story: Story) -> dict[str, Any]:
    """Return all that is to be kept, which JSON can hold."""
    answers = Counter((visit.kind, _WORDS.get(visit.status, str(visit.status))) for visit in story.visits)
    first, last = p99_of_thirds(story)
    times = [visit.took_s for visit in calm(story)]
    return {
        "plan": asdict(story.plan),
        "capacity_per_s": round(story.capacity, 2),
        "requests": len(story.visits),
        "answers": [{"kind": kind, "answer": answer, "times": n} for (kind, answer), n in sorted(answers.items())],
        "faults": [
            {"name": fault.name, "at_s": round(fault.began - story.began, 1), "healed_s": round(fault.healed_s, 2)}
            for fault in story.faults
        ],
        "broken_connections": sum(visit.status == BROKEN for visit in story.visits),
        "refused_503": sum(visit.status == 503 for visit in (*story.visits, *story.fault_visits)),
        "jobs_accepted": story.jobs_accepted,
        "jobs_finished": story.jobs_finished,
        "p50_s": round(statistics.median(times), 3) if times else None,
        "p99_s": _rounded(p99(times)),
        "p99_first_third_s": _rounded(first),
        "p99_last_third_s": _rounded(last),
        "processes": [_process(story, pid, life) for pid, life in story.lives.items()],
        "broken_promises": broken_promises(story),
    }


def _process(story: Story, pid: int, life: Life) -> dict[str, Any]:
    held = life.after(story.plan.warm_s) or life.held[-1:]
    return {
        "pid": pid,
        "role": life.role,
        "lived_s": round(life.held[-1].at - life.held[0].at, 1),
        "mib": [round(held[0].bytes / 2**20, 1), round(held[-1].bytes / 2**20, 1)],
        "mib_at_most": round(max(each.bytes for each in life.held) / 2**20, 1),
        "grew_mib": round(growth(held, "bytes") / 2**20, 2),
        "files": [held[0].files, held[-1].files],
        "threads": [held[0].threads, held[-1].threads],
        "samples": [[round(each.at - story.began, 1), each.bytes, each.files, each.threads] for each in life.held],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def write(story: Story, json_file: Path, chart_file: Path | None) -> dict[str, Any]:
    """Write the figures, and a chart of them unless it is not wanted; return the figures."""
    found = figures(story)
    json_file.write_text(json.dumps(found, indent=1) + "\n")
    if chart_file is not None:
        chart(story).savefig(chart_file)
    return found


def chart(story: Story) -> Figure:
    """Draw the answers' times, and what each process held, with the faults."""
    figure = Figure(figsize=(10, 9), dpi=110, layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    _times(axes[0], story)
    for axis, of, label, unit in zip(
        axes[1:], ("bytes", "files", "threads"), ("memory, MiB", "open files", "threads"), (2**20, 1, 1), strict=True
    ):
        _held(axis, story, of, unit)
        axis.set_ylabel(label)
    for axis in axes:
        _shade(axis, story)
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=None if axis is axes[0] else 0)
    axes[-1].set_xlabel("minutes")
    kinds = ", ".join(f"{times} x {name}" for name, times in sorted(Counter(f.name for f in story.faults).items()))
    figure.suptitle(
        f"{len(story.visits)} requests at {story.plan.share:.0%} of {story.capacity:.1f}/s; faults (red):\n{kinds}",
        fontsize=9,
    )
    return figure


def _times(axis: Axes, story: Story) -> None:
    """The median and the slowest of each sixtieth of the time, all good requests, faults included."""
    width = (story.ended - story.began) / _BINS
    bins: list[list[float]] = [[] for _ in range(_BINS)]
    for visit in story.visits:
        if visit.kind == "good" and visit.status == 200:
            bins[min(_BINS - 1, int((visit.due - story.began) / width))].append(visit.took_s)
    minutes = [(number + 0.5) * width / 60 for number, times in enumerate(bins) if times]
    axis.plot(minutes, [statistics.median(times) for times in bins if times], label="median")
    axis.plot(minutes, [max(times) for times in bins if times], label="slowest", color="tab:orange")
    axis.set_yscale("log")
    axis.set_ylabel("answer after, s")
    axis.legend(loc="upper right", fontsize=8)


def _held(axis: Axes, story: Story, of: str, unit: int) -> None:
    named: set[str] = set()
    for life in story.lives.values():
        minutes = [(held.at - story.began) / 60 for held in life.held]
        label = life.role if life.role not in named else None
        named.add(life.role)
        axis.plot(minutes, [getattr(held, of) / unit for held in life.held], color=_COLOURS[life.role], label=label)
    if of == "bytes":  # the colours are those of all
        axis.legend(loc="upper left", fontsize=8)


def _shade(axis: Axes, story: Story) -> None:
    for fault in story.faults:
        began, ended = ((at - story.began) / 60 for at in (fault.began, fault.ended))
        axis.axvspan(began, ended, color=_FAULT_COLOUR, alpha=0.15, linewidth=0)
