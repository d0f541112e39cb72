"""What gunicorn's master does beyond what it does by itself: its methods are wrapped, as it has no hooks for that."""

import os
import signal
import time
from contextlib import suppress
from typing import Any

_RETRY_BOOT_S = 10.0
_NO_EXIT_CODE = -1
"""Not None, which gunicorn takes for that of a worker that a signal ended."""


def _answers(worker: Any) -> bool:
    return bool(worker.answers[0])


def _failed_to_start(worker: Any) -> bool:
    return not _answers(worker) and getattr(worker, "ended", "") != "asked"


def survive_replacements(server: Any) -> None:
    """Go on while some worker answers, though another cannot be replaced, and try that again after a while.

    gunicorn would end the whole server, as it should where none ever answered.
    """
    reap, manage = server.reap_workers, server.manage_workers
    fatal, not_before = server.WORKER_BOOT_ERROR, 0.0

    def reap_workers() -> None:
        nonlocal not_before
        before = dict(server.WORKERS)
        some_answer = any(map(_answers, before.values()))
        server.WORKER_BOOT_ERROR = _NO_EXIT_CODE if some_answer else fatal
        reap()
        ended = [worker for pid, worker in before.items() if pid not in server.WORKERS]
        if some_answer and any(map(_failed_to_start, ended)):
            not_before = time.monotonic() + _RETRY_BOOT_S

    def manage_workers() -> None:
        if time.monotonic() >= not_before:
            manage()

    server.reap_workers, server.manage_workers = reap_workers, manage_workers


def replace_all_without_a_gap(server: Any) -> None:
    """On SIGHUP let the old workers answer until as many new ones do, which load their models meanwhile.

    gunicorn would end the old ones first. Its reading of the settings anew is left out: ours are those of the
    environment, which cannot change. Another SIGHUP meanwhile is obeyed once this one was.
    """
    manage = server.manage_workers
    last_old, again = 0, False

    def are_old(worker: Any) -> bool:
        return bool(worker.age <= last_old)

    def reload() -> None:
        nonlocal last_old, again
        again = any(map(are_old, server.WORKERS.values()))
        if not again:
            last_old = server.worker_age
            server.log.reopen_files()
            manage_workers()

    def manage_workers() -> None:
        old = [worker for worker in server.WORKERS.values() if are_old(worker)]
        new = [worker for worker in server.WORKERS.values() if not are_old(worker)]
        if old and sum(map(_answers, new)) < server.num_workers:
            wanted, server.num_workers = server.num_workers, len(old) + server.num_workers
            try:
                manage()  # starts those that are missing, and ends none
            finally:
                server.num_workers = wanted
            return
        manage()
        if again and not old:
            reload()

    server.reload, server.manage_workers = reload, manage_workers


def count_the_ended(server: Any) -> None:
    """Have `child_exit` told how each worker ended, which gunicorn keeps to itself."""
    from app import metrics  # not before its folder is there

    kill, reap = server.kill_worker, server.reap_workers

    def kill_worker(pid: int, number: int) -> None:
        worker = server.WORKERS.get(pid)
        was_asked = getattr(worker, "ended", "") == "asked"
        if number == signal.SIGTERM and was_asked and _answers(worker):
            # gunicorn says it each second, of which a process would die that has nearly ended. One that only begins
            # may not have heard it yet.
            return
        if worker and number in (signal.SIGTERM, signal.SIGQUIT):
            worker.ended = "asked"
        kill(pid, number)

    def reap_workers() -> None:
        for pid, worker in server.WORKERS.items():
            with suppress(ChildProcessError):
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found and found.si_code != os.CLD_EXITED:
                    worker.ended = "killed"
        reap()

    server.kill_worker, server.reap_workers = kill_worker, reap_workers
    metrics.prepare_ended()
