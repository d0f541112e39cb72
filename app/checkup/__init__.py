"""What is most likely wrong with how a server is set up: each finding says what happens, and what to do.

Nothing is changed, but for small files that are written to the folders and the store of the jobs and deleted again.
"""

from collections.abc import Callable, Iterator

from app.checkup import access, place, stores
from app.checkup.finding import Finding
from app.config import Settings

CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    access.keys,
    access.proxies,
    access.signatures,
    access.sources,
    access.webhooks,
    access.rate_limit,
    place.models,
    place.device,
    place.memory,
    place.threads,
    place.data_folder,
    place.metrics_folder,
    stores.database,
    stores.artifacts,
    stores.counters,
)


def findings(settings: Settings) -> list[Finding]:
    """Look for everything, and return what was found, errors first; takes seconds where a server does not answer."""
    found = [finding for check in CHECKS for finding in check(settings)]
    return sorted(found, key=lambda finding: finding.level != "error")
