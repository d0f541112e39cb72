"""Who may ask, and how it is known who does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.checkup.finding import Finding, error, warning
from app.config import Settings
from app.errors import JobsUnavailable, KeysUnavailable, OutOfSpace
from app.jobs.database import Database
from app.keys import Keys

_MAKE_A_KEY = "heatlens keys create NAME --scope explain,jobs"


def keys(settings: Settings) -> Iterator[Finding]:
    """Nobody without a key may ask at an address that others reach."""
    if not settings.is_public:
        return
    if settings.insecure:
        what = f"whoever reaches {settings.host} may ask, and needs no key"
        what += "; also to load and unload models" if settings.model_admin else ""
        yield warning("insecure", what, f"{_MAKE_A_KEY}, and unset it")
    elif _ask(settings, Keys.any_usable) is False:
        what = f"{settings.host} is a public address and there is no usable key: the server does not start"
        yield error("host", what, f"{_MAKE_A_KEY}; or HEATLENS_HOST=127.0.0.1")
    if settings.metrics == "open":
        yield warning("metrics", "whoever reaches this server may read /metrics", "HEATLENS_METRICS=key")


def proxies(settings: Settings) -> Iterator[Finding]:
    """A proxy in front of this server, as far as the settings tell of one."""
    if settings.trusted_proxies and not settings.is_public and _ask(settings, Keys.are_needed) is False:
        what = "there is a proxy in front, and no key was ever made: whoever reaches the proxy may ask"
        yield warning("trusted_proxies", what, f"{_MAKE_A_KEY}, unless the proxy itself asks who it is")
    if settings.public_url.startswith("https:") and not settings.trusted_proxies:
        what = f"{settings.public_url} needs a proxy for TLS, and none is trusted: all clients count as one"
        yield warning("trusted_proxies", what, "HEATLENS_TRUSTED_PROXIES=1, for one proxy")
    if settings.public_url.startswith("http:") and urlsplit(settings.public_url).hostname not in _LOCAL:
        what = f"links and keys go to {settings.public_url} unencrypted"
        yield warning("public_url", what, "a proxy with TLS in front, and https:// here")


def signatures(settings: Settings) -> Iterator[Finding]:
    """Several machines have to believe each other's signatures."""
    if settings.database_url and not settings.embed_secrets:
        what = "a link or ticket that one machine signs is refused by the others that share this database"
        yield warning("embed_secrets", what, "the same on all web servers, made by: openssl rand -base64 32")


def sources(settings: Settings) -> Iterator[Finding]:
    """No job may read what is kept for others."""
    for prefix in settings.job_sources:
        url = urlsplit(prefix)
        folder = Path(unquote(url.path)).resolve()
        if url.scheme in ("file", "local") and settings.data_dir.resolve().is_relative_to(folder):
            what = f"jobs may read {prefix}, which holds everybody's pictures (HEATLENS_DATA_DIR={settings.data_dir})"
            yield error("job_sources", what, "name a folder that holds pictures and nothing else")


def webhooks(settings: Settings) -> Iterator[Finding]:
    """Webhooks must not reach what only this machine reaches."""
    if settings.webhook_private and settings.is_public:
        what = "clients may have this server POST to addresses of the private network"
        yield warning("webhook_private", what, "unset it, unless all clients are trusted")


def rate_limit(settings: Settings) -> Iterator[Finding]:
    """A limit that each worker counts for itself is a larger limit."""
    if settings.rate_limit and settings.rate_limit_storage == "memory://" and settings.worker_count > 1:
        what = f"each of {settings.worker_count} workers counts for itself, so that the limit is as many times larger"
        yield warning("rate_limit_storage", what, "redis://HOST:PORT/DB")


_LOCAL = ("localhost", "127.0.0.1", "::1")


def _ask(settings: Settings, question: Callable[[Keys], bool]) -> bool | None:
    """Return the answer of the keys' database; None where it does not answer, which is found elsewhere."""
    database = Database(settings)
    try:
        return question(Keys(settings, database))
    except (JobsUnavailable, KeysUnavailable, OutOfSpace):
        return None
    finally:
        database.close()
