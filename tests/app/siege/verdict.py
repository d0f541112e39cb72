"""What a siege must show: every request answered once, nothing that grows, answers as fast in the end as before."""

import statistics
from collections.abc import Iterator
from itertools import chain

from tests.app.siege.faults import KILLS
from tests.app.siege.run import Story
from tests.app.siege.visits import BROKEN, LEFT, Visit, hostile_files
from tests.app.siege.watching import growth

LEAK_BYTES = 1024
"""Growth for one request, at most: one that is kept has its picture at least, of 96 x 72 x 3 = 20,736 bytes decoded."""
SLACK_BYTES = 32 * 2**20
"""What allocators keep for later, with another pattern of requests: half of what one arena of glibc may take."""
SLACK_FILES = 20
"""A pool's connections to SQLite stay open, five of three files each, and what is logged and measured, a few more."""
SLACK_THREADS = 8
"""Beyond those of a worker whose threads have all worked once: of pools that nothing had needed until then."""
RATIO, SLACK_S = 2.0, 1.0
"""The slowest answers, in the last third: as slow as in the first, times this, plus that on a machine with one core."""
_FULL = '"code": "queue_full"'
REFUSED = 0.001
"""Of all requests, those that may be told outside the faults to come again: at random they come many at once, too."""
_FEW = 100
"""Answers without which there is no percentile to speak of."""


def broken_promises(story: Story) -> list[str]:
    """Return what should not have been, in words; nothing, if all is well."""
    return list(
        chain(_refusals(story), _answers(story), _jobs(story), _left_behind(story), _growth(story), _speed(story))
    )


def _refusals(story: Story) -> Iterator[str]:
    refused = []
    for visit in story.visits:
        if (wrong := _fault_of(story, visit)) is not None:
            line = f"{visit.name}, {visit.kind}: {wrong}"
            if visit.status == 503 and visit.told_when and _FULL in visit.why:
                refused.append(line)
            else:
                yield line
    if len(refused) > REFUSED * len(story.visits):
        yield from refused


def _answers(story: Story) -> Iterator[str]:
    for visit in story.fault_visits:
        if not visit.right or (visit.status == 503 and not visit.told_when):
            yield f"{visit.name}, {visit.kind}: {visit.status} {visit.why}"
    answered = {visit.id: visit.status for visit in story.visits if visit.status not in (LEFT, BROKEN)}
    for name, status in answered.items():
        if (times := story.logged[name]) != 1:
            yield f"{name}: the client had {status}, and the server wrote down {times} answers"
    yield from (f"{name}: answered {times} times" for name, times in story.logged.items() if times > 1)


def _fault_of(story: Story, visit: Visit) -> str | None:
    """Return what is wrong with what a client was told; a fault of that moment excuses a clean refusal."""
    if visit.right:
        return None
    troubles = [fault.name for fault in story.in_trouble(visit)]
    if visit.status == BROKEN and KILLS in troubles:
        return None
    if visit.status == 503 and visit.told_when and troubles:
        return None
    return f"{visit.status} {visit.why} (during {', '.join(troubles) or 'no fault'})"


def _jobs(story: Story) -> Iterator[str]:
    yield from story.wrong_jobs
    if story.jobs_finished < story.jobs_accepted:
        yield f"of {story.jobs_accepted} jobs only {story.jobs_finished} ended"


def _left_behind(story: Story) -> Iterator[str]:
    yield from (f"still under way, says the server: {line}" for line in story.busy_gauges)
    yield from (f"half written: {name}" for name in story.half_written)
    yield from (f"in the log: {line}" for line in story.tracebacks)
    if story.exit_code:
        yield f"stopped with {story.exit_code}"


def _growth(story: Story) -> Iterator[str]:
    requests = len(story.visits)
    for pid, life in story.lives.items():
        grew = growth(life.after(_youth_s(story, life.role)), "bytes")
        allowed = LEAK_BYTES * requests + SLACK_BYTES
        if grew > allowed:
            yield f"{life.role} {pid} grew by {grew / 2**20:.1f} MiB; {allowed / 2**20:.1f} would be no leak"
    baselines = {life.role: life.held[0] for life in story.before.values()}
    for pid, life in story.after.items():
        begin, end = story.before[pid].held[0] if pid in story.before else baselines[life.role], life.held[0]
        if end.files > begin.files + SLACK_FILES:
            yield f"{life.role} {pid} has {end.files} files open, idle; before it were {begin.files}"
        warm = max(other.held[0].threads for other in story.before.values() if other.role == life.role)
        if end.threads > warm + SLACK_THREADS:
            yield f"{life.role} {pid} has {end.threads} threads, idle; before, the busiest of its kind had {warm}"


def _youth_s(story: Story, role: str) -> float:
    """Return how long a process may grow: a web worker until it can have met each hostile file, the largest too.

    What allocators took for that one stays; the kills leave one worker old enough to be judged, if the siege is long.
    """
    met = sum(visit.kind == "hostile file" for visit in story.visits)
    each_s = story.plan.minutes * 60 / met if met else 0.0
    return story.plan.warm_s + (len(hostile_files()) * each_s if role == "web worker" else 0.0)


def _speed(story: Story) -> Iterator[str]:
    if not story.plan.judges_speed:
        return
    first, last = p99_of_thirds(story)
    if first is None or last is None:
        yield f"in the first or the last third fewer than {_FEW} good answers came outside the faults: too few to judge"
    elif last > RATIO * first + SLACK_S:
        yield f"the slowest percent took {first:.2f} s in the first third, and {last:.2f} s in the last"


def calm(story: Story) -> list[Visit]:
    """The good requests during which there was no fault: those whose time counts."""
    return [visit for visit in story.visits if visit.kind == "good" and not story.in_trouble(visit)]


def p99_of_thirds(story: Story) -> tuple[float | None, float | None]:
    """Return the 99th percentile of the first and the last third of the time; None where too few were answered."""
    third = (story.ended - story.began) / 3
    first = [visit.took_s for visit in calm(story) if visit.due < story.began + third]
    last = [visit.took_s for visit in calm(story) if visit.due >= story.ended - third]
    return p99(first), p99(last)


def p99(times: list[float]) -> float | None:
    """Return the 99th percentile."""
    return statistics.quantiles(times, n=100)[98] if len(times) >= _FEW else None
