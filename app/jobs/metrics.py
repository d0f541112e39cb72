"""What there is of jobs, in Prometheus' words: read from their database when asked, so the same whoever is asked."""

import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.errors import JobsUnavailable, OutOfSpace
from app.jobs.reading import Reading
from app.jobs.rows import Census

_log = logging.getLogger(__name__)


def page(book: Reading) -> bytes:
    """Return the numbers as Prometheus' text; none while the database is away or full: that is no zero."""
    try:
        census = book.census()
    except (JobsUnavailable, OutOfSpace) as error:
        _log.warning("the metrics are without jobs: %s", error)
        return b""
    registry = CollectorRegistry()
    registry.register(_Census(census))
    return generate_latest(registry)


class _Census(Collector):
    def __init__(self, census: Census) -> None:
        self._census = census

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("heatlens_jobs", "Jobs that are kept.", labels=["status"])
        for status, count in self._census.jobs.items():
            jobs.add_metric([status], count)
        yield jobs
        yield GaugeMetricFamily(
            "heatlens_job_pictures_waiting", "Pictures of jobs that no worker has explained yet.", self._census.waiting
        )
        yield GaugeMetricFamily(
            "heatlens_job_bytes", "Size of all jobs' pictures and results.", self._census.size_bytes
        )
