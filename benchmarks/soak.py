"""Thousands of requests of every kind: one answer each, no hook and no place left, and memory that stays level.

Good ones of several methods, bad options, bad pictures, long work, clients that go away, deadlines that pass. They
come from 16 threads; the server and a small network are in this process, whose memory is measured.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from _timing import print_table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the requests and the network are those of a test

from tests import zoo
from tests.app.soaking import THREADS, hooks_left, resident_bytes, soak


def main() -> None:
    """Print the answers, what is left, and the memory after a fifth of the requests and after all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    settled = options.requests // 5
    with tempfile.TemporaryDirectory() as folder:
        zoo.write_model_files(Path(folder))
        with soak(Path(folder)) as soaked:
            started = time.monotonic()
            soaked.run(range(settled))
            before_bytes = resident_bytes()
            soaked.run(range(settled, options.requests))
            after_bytes = resident_bytes()
            took_s = time.monotonic() - started
            left = soaked.unanswered, soaked.inside, hooks_left()
    print(f"{options.requests} requests from {THREADS} threads in {took_s:.0f} s\n")
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
        f"{options.requests}: {growth:+.2%}"
    )


if __name__ == "__main__":
    main()
