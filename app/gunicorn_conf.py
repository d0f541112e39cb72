"""gunicorn's settings, from ours: `gunicorn -c python:app.gunicorn_conf "app.wsgi:application()"`.

The master imports no torch and touches no CUDA; each worker loads the app after the fork.
"""

import fcntl
import logging
import mmap
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gunicorn import systemd
from gunicorn.glogging import Logger

from app import arbiter, logs, opening
from app.config import BOOT_FAILED, SLOT, load_settings
from app.errors import DatabaseTooNew
from app.jobs import supervisor
from app.jobs.supervisor import Supervisors

_settings = load_settings()
_settings = _settings.model_copy(update={"workers": _settings.worker_count})

bind = f"[{_settings.host}]:{_settings.port}" if ":" in _settings.host else f"{_settings.host}:{_settings.port}"
worker_class = "app.http_worker.Worker"
workers = _settings.workers
threads = _settings.threads
timeout = 120
"""Seconds after which a worker in which no thread runs any more is killed; no request and no loading is meant."""
graceful_timeout = _settings.graceful_timeout_s
keepalive = 75
"""Seconds for which an idle connection is kept: longer than proxies keep theirs (60 s), or they would answer 502."""
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - heartbeat files; a disk can block
loglevel = _settings.log_level
accesslog = None  # `app.telemetry` logs every request
proc_name = "heatlens"
control_socket_disable = True
forwarded_allow_ips = ""
"""Headers change neither path nor scheme, from wherever they come; for proxies there is `HEATLENS_TRUSTED_PROXIES`."""


class _Logger(Logger):  # type: ignore[misc]
    """gunicorn's own lines look like all others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(logs.formatter(_settings.log_format))


logger_class = _Logger

_LAST_ANSWERS_S = 1.0
_ENDING_S = 5.0

_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_METRICS_PREFIX = "heatlens-metrics-"
_METRICS_YOUNG_S = 60.0
_named_by_operator = os.environ.get(_METRICS_FOLDER)


def on_starting(server: Any) -> None:
    """Refuse `--preload`, since torch and CUDA do not survive a fork, and settle how many workers there are.

    They, and a master that replaces this one, would count anew by the memory that is free when all of these run.
    """
    for environment in (os.environ, server.cfg.env_orig):
        environment["HEATLENS_WORKERS"] = str(_settings.workers)
    if server.cfg.preload_app:
        sys.exit("heatlens cannot run with --preload: torch's threads and CUDA do not survive a fork.")
    if server.cfg.is_ssl:
        sys.exit(
            "heatlens does not speak TLS itself (--certfile, --keyfile): with it slow clients could take every thread."
            " Leave it to a proxy in front, as examples/nginx does, and set HEATLENS_TRUSTED_PROXIES."
        )
    _require_keys(server)


def _require_keys(server: Any) -> None:
    """End where others can reach this server and nobody has an API key; `--bind` and sockets of systemd count, too.

    The workers are told of that address, since they let nobody in without a key there.
    """
    settings = _settings
    first = systemd.SD_LISTEN_FDS_START
    inherited = range(first, first + systemd.listen_fds(unset_environment=False))
    if host := opening.public_host(settings, opening.hosts_of([*server.cfg.address, *inherited])):
        settings = settings.model_copy(update={"host": host})
        for environment in (os.environ, server.cfg.env_orig):
            environment["HEATLENS_HOST"] = host
    try:
        reason = opening.refusal(settings)
    except DatabaseTooNew as error:
        reason = str(error)
    if reason:
        server.log.critical("cannot start: %s", reason)
        sys.exit(BOOT_FAILED)


def when_ready(server: Any) -> None:
    """Prepare what the workers, soon to be forked, have in common, and start what works beside them."""
    _make_metrics_folder(server)
    arbiter.count_the_ended(server)
    arbiter.survive_replacements(server)
    arbiter.replace_all_without_a_gap(server)
    _work_on_jobs(server)


def _make_metrics_folder(server: Any) -> None:
    """Make the folder through which the workers add up their metrics.

    A folder that the operator names is emptied, unless the workers of a master that this one replaces (USR2) use it.
    """
    if not _named_by_operator:
        own = Path(tempfile.mkdtemp(prefix=f"{_METRICS_PREFIX}{os.getpid()}-", dir=worker_tmp_dir))
        server.metrics_lock = _lock(own)
        _remove_what_dead_masters_left(own.parent)
        os.environ[_METRICS_FOLDER] = str(own)
        return
    folder = Path(_named_by_operator)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"{_METRICS_FOLDER}={folder}: {error.strerror}.")
    for file in () if server.master_pid else folder.glob("*.db"):
        if re.fullmatch(r"(counter|histogram|gauge_[a-z]+)_\d+\.db", file.name):
            file.unlink()


def _lock(folder: Path) -> int | None:
    """Return the descriptor of a folder that is locked while this process, or one forked from it, lives; None if it is.

    A lock, since the number of another container's process says nothing here.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_what_dead_masters_left(shared: Path) -> None:
    """Remove the metrics' folders of masters that were killed: they are memory, in /dev/shm."""
    for folder in shared.glob(f"{_METRICS_PREFIX}*-*"):  # without a pid it is an older HeatLens's, which locks none
        try:
            found = folder.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _METRICS_YOUNG_S:
                continue  # somebody else's, or made just now and not locked yet
            descriptor = _lock(folder)
        except OSError:
            continue
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _work_on_jobs(server: Any) -> None:
    """Keep the processes that work on jobs: gunicorn looks after them whenever it looks after its own workers.

    No thread does, since the master forks. They are told to stop when its own are, and waited for in the end.
    """
    own = {"HEATLENS_TORCH_THREADS": str(_settings.torch_thread_count)}
    own["OMP_NUM_THREADS"] = own["HEATLENS_TORCH_THREADS"]
    environment = {name: value for name, value in os.environ.items() if name != _METRICS_FOLDER} | own
    grace_s = _settings.graceful_timeout_s + _LAST_ANSWERS_S
    command = supervisor.command(
        stall_s=_settings.job_stall_s, grace_s=grace_s, parent=os.getpid(), never_gives_up=True
    )
    server.job_workers = Supervisors(_settings.job_workers, command, environment, grace_s=grace_s + _LAST_ANSWERS_S)
    manage_workers, stop = server.manage_workers, server.stop

    def manage_all() -> None:
        manage_workers()
        server.job_workers.keep()

    def stop_all(graceful: bool = True) -> None:
        server.job_workers.tell()
        stop(graceful)

    server.manage_workers, server.stop = manage_all, stop_all


def pre_exec(server: Any) -> None:
    """Keep gunicorn's folder off the path of the master that replaces this one (USR2): it is run from a file there.

    Its `app` would be taken for ours, and its `http` for the standard library's.
    """
    server.cfg.env_orig["PYTHONSAFEPATH"] = "1"


def child_exit(_server: Any, worker: Any) -> None:
    """Take a dead worker's gauges out of the metrics, and count it; what it counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    from app import metrics

    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
    metrics.worker_ended(getattr(worker, "ended", "failed"))


def on_exit(server: Any) -> None:
    """Wait for who works on jobs, and remove the metrics' folder, if it is our own."""
    server.job_workers.wait()
    if not _named_by_operator:
        shutil.rmtree(os.environ[_METRICS_FOLDER])


def pre_fork(server: Any, worker: Any) -> None:
    """Give each worker a device of its own: of those with the fewest workers the first, also when one is replaced.

    Through `answers`, which both share, it tells the master that it has begun to.
    """
    worker.answers = mmap.mmap(-1, 1)
    taken = Counter(getattr(other, "slot", None) for other in server.WORKERS.values())
    worker.slot = min(range(len(_settings.devices)), key=taken.__getitem__)


def pre_request(_worker: Any, _request: Any) -> None:
    """Log nothing, in the place of gunicorn's own hook, which logs the path at debug: it may hold what is secret."""


def post_fork(server: Any, worker: Any) -> None:
    """Name the worker's device, give OpenMP its threads before torch is imported, and import our own packages first.

    Until gunicorn looks after signals again this process ends by those that are to end it: it has the master's
    handlers, which put them into a queue that nobody reads here.

    gunicorn puts the working directory on the path, where a folder called `models` would be taken for the package.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_signal: os._exit(0))  # nothing is at work yet that could be finished
    server.WORKER_BOOT_ERROR = BOOT_FAILED  # also in one of `arbiter.survive_replacements`
    worker.begin_loading()
    os.environ[SLOT] = str(worker.slot)
    os.environ["OMP_NUM_THREADS"] = str(_settings.torch_thread_count)
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != os.getcwd()]
    try:
        import app.wsgi  # noqa: F401
    finally:
        sys.path[:] = path


def post_worker_init(worker: Any) -> None:
    """Tell the operator, once, that the first worker answers and how to try it."""
    _answer_before_the_grace_is_over(worker)
    worker.answers[0] = 1
    if worker.age != 1 or not worker.alive:
        return
    address = worker.sockets[0].getsockname()
    if not isinstance(address, tuple):  # a socket in a folder, for a proxy
        logging.getLogger(__name__).info("ready at %s", worker.sockets[0])
        return
    from app.cli import trial, welcome
    from app.security import gate

    url = opening.url_of(*address[:2])
    with worker.wsgi.app_context():
        keyed = gate().are_keys_needed()
    if _settings.log_format == "json":
        logging.getLogger(__name__).info("ready; try: %s", trial(url, keyed=keyed))
    else:
        welcome(url, keyed=keyed)


def _answer_before_the_grace_is_over(worker: Any) -> None:
    """Have whoever still waits shortly before gunicorn ends a stopping worker told so, instead of cut off.

    The kernel ends a process that does not end even then: a thread in foreign code may hold up everything else.
    """
    stop: Any = signal.getsignal(signal.SIGTERM)  # gunicorn's own handler
    service, streams = worker.wsgi.extensions["heatlens"], worker.wsgi.extensions["heatlens_streams"]
    grace_s = max(_settings.graceful_timeout_s / 2, _settings.graceful_timeout_s - _LAST_ANSWERS_S)

    is_stopping = False

    def on_sigterm(number: int, frame: Any) -> None:
        nonlocal is_stopping
        if is_stopping:  # the master says it each second; what follows takes locks that this thread may hold by now
            return
        is_stopping = True
        signal.setitimer(signal.ITIMER_REAL, _settings.graceful_timeout_s + _ENDING_S)
        streams.ending.set()
        refuse_the_rest = threading.Timer(grace_s, service.close, kwargs={"grace_s": 0.0})
        refuse_the_rest.daemon = True
        refuse_the_rest.start()
        stop(number, frame)

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, on_sigterm)
