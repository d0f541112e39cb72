"""gunicorn's settings, from ours: `gunicorn -c python:app.gunicorn_conf "app.wsgi:application()"`.

The master imports no torch and touches no CUDA; each worker loads the app after the fork.
"""

import os
import sys
from typing import Any

from app.config import load_settings

_settings = load_settings()

bind = f"[{_settings.host}]:{_settings.port}" if ":" in _settings.host else f"{_settings.host}:{_settings.port}"
worker_class = "gthread"
workers = _settings.worker_count
threads = _settings.threads
timeout = 3600  # loading counts, and a first download; a request has its own, shorter limit
graceful_timeout = _settings.graceful_timeout_s
keepalive = 5
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - heartbeat files; a disk can block
loglevel = _settings.log_level
accesslog = "-" if _settings.log_level in ("debug", "info") else None
proc_name = "heatlens"
control_socket_disable = True


def on_starting(server: Any) -> None:
    """Refuse `--preload`: torch and CUDA do not survive a fork."""
    if server.cfg.preload_app:
        sys.exit("heatlens cannot run with --preload: torch's threads and CUDA do not survive a fork.")


def post_fork(_server: Any, _worker: Any) -> None:
    """Give OpenMP its number of threads before torch is imported, and import our own packages first.

    gunicorn puts the working directory on the path, where a folder called `models` would be taken for the package.
    """
    os.environ["OMP_NUM_THREADS"] = str(_settings.torch_thread_count)
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if os.path.abspath(entry) != os.getcwd()]
    try:
        import app.wsgi  # noqa: F401
    finally:
        sys.path[:] = path


def post_worker_init(worker: Any) -> None:
    """Tell the operator, once, that the first worker answers and how to try it."""
    if worker.age == 1:
        from app.cli import welcome

        host, port = worker.sockets[0].getsockname()[:2]
        welcome(host, port)
