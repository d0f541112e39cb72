"""Ratios that survive a noisy machine: contenders take turns, and each turn is compared with its own round's base."""

import statistics
import time
from collections.abc import Callable, Mapping


def ratios(contenders: Mapping[str, Callable[[], object]], *, base: str, rounds: int) -> dict[str, float]:
    """Return each contender's median time as a multiple of `base`'s, which runs in every round beside it."""
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {
        name: statistics.median(own / reference for own, reference in zip(times[name], times[base], strict=True))
        for name in contenders
    }


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
