"""Thousands of requests of every kind: one answer each, nothing left behind, and memory that stays level.

Without arguments: good ones of several methods, bad options, bad pictures, long work, clients that go away, deadlines
that pass, from 16 threads; the server and a small network are in this process, whose memory and hooks are looked at.

With `--minutes`, as `make soak` does: a real server with two workers and one for jobs, at 70 % of the capacity that is
measured first, with hostile files, slow and silent clients, jobs, links and live streams besides, while workers are
killed and restarted, queues are filled, the database is locked and many clients hang up at once. What all processes
held is written to a JSON file and drawn; the exit code is 1 if a promise was broken.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from _timing import print_table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the requests, the network and the faults are those of a test

from tests import zoo
from tests.app.siege.record import write
from tests.app.siege.run import Plan, besiege
from tests.app.soaking import THREADS, hooks_left, resident_bytes, soak

REPOSITORY = Path(__file__).parents[1]


def main() -> None:
    """Do what is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="how many, of the server in this process")
    parser.add_argument("--minutes", type=float, help="how long, of a real server with faults")
    parser.add_argument("--share", type=float, default=0.7, help="how much of the capacity is asked for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=REPOSITORY / "docs" / "soak.json")
    parser.add_argument("--chart", type=Path, default=REPOSITORY / "docs" / "soak.png")
    options = parser.parse_args()
    if options.minutes is None:
        soak_inside(options.requests)
    else:
        plan = Plan(minutes=options.minutes, share=options.share, seed=options.seed)
        sys.exit(soak_server(plan, options.json, options.chart))


def soak_inside(requests: int) -> None:
    """Print the answers, what is left, and the memory after a fifth of the requests and after all."""
    settled = requests // 5
    with tempfile.TemporaryDirectory() as folder:
        zoo.write_model_files(Path(folder))
        with soak(Path(folder)) as soaked:
            started = time.monotonic()
            soaked.run(range(settled))
            before_bytes = resident_bytes()
            soaked.run(range(settled, requests))
            after_bytes = resident_bytes()
            took_s = time.monotonic() - started
            left = soaked.unanswered, soaked.inside, hooks_left()
    print(f"{requests} requests from {THREADS} threads in {took_s:.0f} s\n")
    print_table(
        ["request", "answer", "times"],
        [[kind, status, str(times)] for (kind, status), times in sorted(soaked.answers.items())],
    )
    print(f"\nrequests that reached the app: {soaked.counting.requests}, answers: {soaked.counting.answers.total()}")
    print(f"without an answer, places taken, hooks left: {left[0]}, {left[1]}, {left[2]}")
    print(f"wrong answers: {len(soaked.wrong)}", *soaked.wrong[:10], sep="\n")
    growth = after_bytes / before_bytes - 1
    print(
        f"resident memory: {before_bytes / 2**20:.1f} MiB after {settled}, {after_bytes / 2**20:.1f} MiB after "
        f"{requests}: {growth:+.2%}"
    )


def soak_server(plan: Plan, json_file: Path, chart_file: Path) -> int:
    """Print the answers, the faults and what each process held; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="heatlens-soak-") as folder:
        found = write(besiege(plan, Path(folder)), json_file, chart_file)
    print(f"{found['requests']} requests at {plan.share:.0%} of {found['capacity_per_s']} a second\n")
    print_table(
        ["request", "answer", "times"],
        [[row["kind"], row["answer"], str(row["times"])] for row in found["answers"]],
    )
    times = Counter(fault["name"] for fault in found["faults"])
    longest = {name: max(f["healed_s"] for f in found["faults"] if f["name"] == name) for name in times}
    print()
    print_table(
        ["fault", "times", "healed after, at most"],
        [[name, str(times[name]), f"{longest[name]:.1f} s"] for name in sorted(times)],
    )
    print()
    print_table(
        ["process", "lived", "MiB", "grew", "files", "threads"],
        [
            [
                process["role"],
                f"{process['lived_s']:.0f} s",
                " - ".join(map(str, process["mib"])),
                f"{process['grew_mib']:+.1f} MiB",
                " - ".join(map(str, process["files"])),
                " - ".join(map(str, process["threads"])),
            ]
            for process in found["processes"]
        ],
    )
    print(
        f"\njobs: {found['jobs_finished']} of {found['jobs_accepted']} ended well; "
        f"connections that a kill ended: {found['broken_connections']}; answers 503: {found['refused_503']}\n"
        f"good answers outside the faults: p50 {found['p50_s']} s, p99 {found['p99_s']} s; in the first third "
        f"{found['p99_first_third_s']} s, in the last {found['p99_last_third_s']} s\n"
        f"{json_file} and {chart_file} are written\n\n"
        f"broken promises: {len(found['broken_promises'])}",
        *found["broken_promises"],
        sep="\n",
    )
    return 1 if found["broken_promises"] else 0


if __name__ == "__main__":
    main()
