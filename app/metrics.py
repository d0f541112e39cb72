"""What the service counts, in Prometheus' words.

Under gunicorn every worker writes its numbers to files in PROMETHEUS_MULTIPROC_DIR, which `app.gunicorn_conf` sets, and
whichever worker is asked adds up the files of all. prometheus-client decides between files and memory when it is
imported, so nothing may import this module before the variable is set.
"""

import logging
import os
import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_OURS = re.compile(r"(counter|histogram|gauge_livesum)_\d+\.db")
_log = logging.getLogger(__name__)
ENDED = ("asked", "killed", "failed")
_PICTURES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The numbers of one app. Labels take few values: routes, registered models and methods, codes, statuses.

    Gauges are those of the living workers, added up; counters and histograms keep what dead workers counted.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._size_bytes: dict[str, int] = {}
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        seconds = partial(Histogram, registry=self._registry, buckets=_SECONDS)

        labels = ["route", "method", "status"]
        self._requests = counter("heatlens_requests_total", "Requests answered.", labels)
        self._request_seconds = seconds("heatlens_request_seconds", "From the headers to the answer.", ["route"])
        self._problems = counter("heatlens_problems_total", "Requests answered with a problem.", ["code"])
        self._pending = gauge("heatlens_pending", "Requests that wait for a model or are run by it.", ["model"])
        self._queue_seconds = seconds("heatlens_queue_seconds", "How long a picture waited for its batch.", ["model"])
        self._batch_size = Histogram(
            "heatlens_batch_size", "Pictures in a batch.", ["model"], registry=self._registry, buckets=_PICTURES
        )
        self._model_seconds = seconds("heatlens_model_seconds", "How long a batch ran.", ["model", "method"])
        self._loaded = gauge("heatlens_loaded_models", "Models in memory, each counted in every worker that has it.")
        self._loaded_bytes = gauge("heatlens_loaded_model_bytes", "Memory of the models' weights.", ["model"])
        self._cache = counter("heatlens_result_cache_lookups_total", "Results looked up in the cache.", ["result"])
        self._cache_bytes = gauge("heatlens_result_cache_bytes", "Size of the cached results.")
        self._gpu = gauge("heatlens_gpu_memory_bytes", "GPU memory after the latest batch, as torch sees it.", ["kind"])
        for result in ("hit", "miss"):
            self._cache.labels(result)  # a rate needs the zero

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Note an answered request; `route` is a rule of the app, never a path."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def expect_problems(self, codes: Iterable[str]) -> None:
        """Have a zero for each of these codes: of a series that begins with its first problem no rate sees that one."""
        for code in codes:
            self._problems.labels(code)

    def problem(self, code: str) -> None:
        """Note that a request was answered with a problem."""
        self._problems.labels(code).inc()

    def entered(self, model: str) -> None:
        """Note that a request was let in to a model's queue."""
        self._pending.labels(model).inc()

    def left(self, model: str) -> None:
        """Note that such a request has its answer, or was given up."""
        self._pending.labels(model).dec()

    def ran(self, model: str, method: str, queue_s: Sequence[float], run_s: float) -> None:
        """Note a batch: how long each of its pictures waited, and how long the model ran; `method` may be "predict"."""
        waited = self._queue_seconds.labels(model)
        for seconds in queue_s:
            waited.observe(seconds)
        self._batch_size.labels(model).observe(len(queue_s))
        self._model_seconds.labels(model, method).observe(run_s)

    def loaded(self, model: str, size_bytes: int) -> None:
        """Note that a model is in memory."""
        self._size_bytes[model] = size_bytes
        self._loaded.inc()
        self._loaded_bytes.labels(model).inc(size_bytes)

    def unloaded(self, model: str) -> None:
        """Note that a model that was `loaded` has left the memory."""
        self._loaded.dec()
        self._loaded_bytes.labels(model).dec(self._size_bytes.get(model, 0))

    def cache(self, hit: bool) -> None:
        """Note that a result was looked up, and whether it was there."""
        self._cache.labels("hit" if hit else "miss").inc()

    def cache_bytes(self, n: int) -> None:
        """Note the size of the cached results."""
        self._cache_bytes.set(n)

    def gpu_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Note what tensors take of the GPU's memory, and what torch holds of it."""
        self._gpu.labels("allocated").set(allocated_bytes)
        self._gpu.labels("reserved").set(reserved_bytes)

    def page(self) -> bytes:
        """Return all numbers, of all workers, as Prometheus' text."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        registry.register(_Readable(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        return generate_latest(registry)


@cache
def _workers_ended() -> Counter:
    text = "Worker processes that ended: asked to, killed by a signal, or failed by themselves."
    return Counter("heatlens_workers_ended_total", text, ["how"], registry=CollectorRegistry())


def prepare_ended() -> None:
    """Begin to count workers, in the process that keeps them; the workers read its file as they do those of others."""
    for how in ENDED:
        _workers_ended().labels(how)  # a rate needs the zero


def worker_ended(how: str) -> None:
    """Note, in that process, that a worker ended, in one of the ways of `ENDED`."""
    _workers_ended().labels(how).inc()


class _Readable(Collector):
    """Adds up the files of all workers; one that is foreign, or half written, is left out, and the rest is told."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = [str(file) for file in Path(self._folder).glob("*.db") if _OURS.fullmatch(file.name)]
        found = _merged(files)
        if found is not None:
            return found
        readable = [file for file in files if _merged([file]) is not None]
        _log.warning("the metrics are without %s, which cannot be read", sorted(set(files) - set(readable)))
        return _merged(readable) or ()


def _merged(files: list[str]) -> Iterable[Metric] | None:
    """Return what the files have, or None where one of them cannot be read, or is gone by now."""
    try:
        return cast("Iterable[Metric]", MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RuntimeError, struct.error):
        return None
