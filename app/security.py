"""Who may ask for what: one table of all routes, and the gate that each request goes through before all else."""

import math
import time
from collections.abc import Iterator
from enum import Enum
from http import HTTPStatus

import limits
from flask import Response, abort, current_app, g, request
from flask_openapi3 import OpenAPI
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from werkzeug.datastructures import ImmutableMultiDict

from app.config import Settings
from app.errors import Forbidden, KeysUnavailable, RateLimited, Unauthorized
from app.keys import Key, Keys
from app.sites import Sites
from app.tickets import Tickets

API_KEY_HEADER = "X-API-Key"
TICKET = "ticket"


class Rule(Enum):
    """Access that is not a matter of scopes."""

    PUBLIC = "public"
    """Needs no key: it holds nothing, or is opened by what stands in its URL."""
    ANY_KEY = "any key"
    METRICS = "metrics"
    """As HEATLENS_METRICS says."""
    DOCS = "docs"
    """As HEATLENS_DOCS says."""


Access = Rule | frozenset[str]
"""A rule, or the scopes of which a key needs one."""

_EXPLAIN, _JOBS, _ADMIN = frozenset({"explain"}), frozenset({"jobs"}), frozenset({"admin"})
_EITHER = _EXPLAIN | _JOBS

ACCESS: dict[str, Access] = {
    "health.healthz": Rule.PUBLIC,
    "health.readyz": Rule.PUBLIC,
    "metrics.metrics": Rule.METRICS,
    "pages.index": Rule.PUBLIC,
    "pages.batch": Rule.PUBLIC,
    "pages.models": Rule.PUBLIC,
    "pages.static": Rule.PUBLIC,
    "pages.docs": Rule.DOCS,
    "pages.errors": Rule.DOCS,
    "pages.openapi": Rule.DOCS,
    "pages.swagger.static": Rule.DOCS,
    "embedded.frame": Rule.PUBLIC,
    "embedded.image": Rule.PUBLIC,
    "embedded.picture": Rule.PUBLIC,
    "embedded.heat": Rule.PUBLIC,
    "embedded.file": Rule.PUBLIC,
    "explain.explain": _EXPLAIN,
    "explain.predict": _EXPLAIN,
    "explain.methods": _EITHER,
    "compare.compare": _EXPLAIN,
    "diagnostics.activations": _EXPLAIN,
    "diagnostics.gradient_flow": _EXPLAIN,
    "diagnostics.sensitivity": _EXPLAIN,
    "models.models": _EITHER,
    "models.model": _EITHER,
    "models.layers": _EITHER,
    "models.labels": _EITHER,
    "models.load": _ADMIN,
    "models.unload": _ADMIN,
    "images.keep_image": _EXPLAIN,
    "images.image_facts": _EXPLAIN,
    "images.image_picture": _EXPLAIN,
    "images.delete_image": _EXPLAIN,
    "embed.embed_link": _EXPLAIN,
    "embed.delete_embed_link": _EXPLAIN,
    "tickets.make_ticket": Rule.ANY_KEY,
    "jobs.create_job": _JOBS,
    "jobs.list_jobs": _JOBS,
    "jobs.job": _JOBS,
    "jobs.job_items": _JOBS,
    "jobs.job_item": _JOBS,
    "jobs.job_overlay": _JOBS,
    "jobs.job_artifact": _JOBS,
    "jobs.job_events": _JOBS,
    "jobs.results_ndjson": _JOBS,
    "jobs.results_zip": _JOBS,
    "jobs.cancel_job": _JOBS,
    "jobs.retry_job": _JOBS,
    "jobs.delete_job": _JOBS,
    "kserve.predict_instances": _EXPLAIN,
    "kserve.explain_instances": _EXPLAIN,
    "kserve.post_alone": _EXPLAIN,
    "open_inference.server_live": Rule.PUBLIC,
    "open_inference.server_ready": Rule.PUBLIC,
    "open_inference.server_metadata": _EXPLAIN,
    "open_inference.model_metadata": _EXPLAIN,
    "open_inference.model_ready": _EXPLAIN,
    "open_inference.infer": _EXPLAIN,
    "open_inference.post_alone": _EXPLAIN,
    "torchserve.ping": Rule.PUBLIC,
    "torchserve.predictions": _EXPLAIN,
    "torchserve.explanations": _EXPLAIN,
    "label_studio.label_studio_health": Rule.PUBLIC,
    "label_studio.label_studio_setup": _EXPLAIN,
    "label_studio.label_studio_versions": _EXPLAIN,
    "label_studio.label_studio_predict": _EXPLAIN,
    "label_studio.label_studio_webhook": _EXPLAIN,
    "label_studio.label_studio_train": _EXPLAIN,
}
"""What each endpoint needs where keys are needed. One that is missing here is answered to nobody."""

_GATE = "heatlens_gate"
_KEYS_BEGIN = "hl_"
_CHALLENGE = 'Bearer realm="HeatLens"'


def register(app: OpenAPI, settings: Settings, keys: Keys) -> None:
    """Have each request of `app` checked before its body is read or anything is done."""
    gate = Gate(settings, keys)
    app.extensions[_GATE] = gate
    app.before_request(gate.admit)
    app.after_request(_mark)


def gate() -> "Gate":
    """Return the gate of the current app."""
    found: Gate = current_app.extensions[_GATE]
    return found


def caller() -> str:
    """Return who owns what this request makes: its key, or without keys its address, see HEATLENS_TRUSTED_PROXIES."""
    key_id = caller_key_id()
    return f"key:{key_id}" if key_id else request.remote_addr or "unknown"


def caller_key_id() -> str | None:
    """Return the id of the key that this request came with."""
    key: Key | None = g.get("key")
    return key.id if key else None


def is_admin() -> bool:
    """Whether this request came with an admin's key."""
    key: Key | None = g.get("key")
    return key is not None and "admin" in key.scopes


def sees_all() -> bool:
    """Whether this request may see what others made: an admin's may, and any where no key is needed."""
    return bool(g.get("is_open")) or is_admin()


def only_of() -> str | None:
    """Return the owner whose jobs, pictures and links are all that this request sees; None: it sees all."""
    return None if sees_all() else caller()


def require_scope(scope: str) -> None:
    """Raise `Forbidden` where the key of this request is not for this, too, as only its body could tell."""
    key: Key | None = g.get("key")
    if key is not None and scope not in key.scopes:
        raise _forbidden(frozenset({scope}), key)


class Gate:
    """Lets requests in, or raises why not."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._failures = Failures(settings.key_failure_limit)
        self._sites = Sites(settings)
        self.tickets = Tickets(settings)

    def admit(self) -> None:
        """Check the current request, and note on `g` whose it is."""
        if request.endpoint is None:  # there is no such route, which is no secret
            return
        access = self._access(ACCESS[request.endpoint])
        if request.method == "OPTIONS":  # a browser asks so, before it sends a key
            return
        self._sites.refuse_other_pages(has_key=_has_key())
        if access is Rule.PUBLIC:
            return
        ticket = _take_ticket()
        if not self._keys.are_needed():
            self._sites.refuse_other_names()
            g.is_open = True
            return
        g.key = key = self._key(ticket)
        if isinstance(access, frozenset) and not access & key.scopes:
            raise _forbidden(access, key)

    def are_keys_needed(self) -> bool:
        """Whether keys are needed, or may be, while nobody can tell."""
        try:
            return self._keys.are_needed()
        except KeysUnavailable:
            return True

    def alternatives(self, endpoint: str) -> list[list[str]]:
        """Return the scopes of keys, of which any one lets a request in; none where no key is needed."""
        access = ACCESS[endpoint]
        if access is Rule.PUBLIC or self._setting_of(access) == "open":
            return []
        if access is Rule.METRICS:
            access = _ADMIN
        return [[scope] for scope in sorted(access)] if isinstance(access, frozenset) else [[]]

    def while_good(self, pieces: Iterator[bytes], *, whole: bool = False) -> Iterator[bytes]:
        """Yield the pieces of a long answer for as long as the key of the current request is good.

        One that has to be `whole` ends then with `Unauthorized`.
        """
        return self._while_good(pieces, caller_key_id(), whole)

    def _while_good(self, pieces: Iterator[bytes], key_id: str | None, whole: bool) -> Iterator[bytes]:
        for piece in pieces:
            if key_id is not None and not self._is_good(key_id):
                if whole:
                    raise Unauthorized
                return
            yield piece

    def _is_good(self, key_id: str) -> bool:
        try:
            self._keys.get(key_id)
        except (Unauthorized, KeysUnavailable):
            return False
        return True

    def _access(self, access: Access) -> Access:
        """Return what a route needs, by the settings of those that have one."""
        setting = self._setting_of(access)
        if setting == "off":
            abort(HTTPStatus.NOT_FOUND)
        if setting == "open":
            return Rule.PUBLIC
        return _ADMIN if access is Rule.METRICS else access

    def _setting_of(self, access: Access) -> str:
        if access is Rule.METRICS:
            return self._settings.metrics
        return self._settings.docs if access is Rule.DOCS else "key"

    def _key(self, ticket: str | None) -> Key:
        """Return the key of the request. What is wrong is counted, so the next may be told to wait."""
        text, address = _credentials(), request.remote_addr or "unknown"
        try:
            if text is not None:
                return self._keys.check(text, fresh=not self._failures.are_too_many(address))
            if ticket is not None:
                return self._keys.get(self.tickets.holder(ticket, request.path))
        except Unauthorized:
            self._failures.count(address)
            raise
        raise Unauthorized


class Failures:
    """Wrong keys by address, counted in this process. Those of one client do not shut out others of its address."""

    def __init__(self, limit: str) -> None:
        self._limits = limits.parse_many(limit) if limit else []
        self._counts = FixedWindowRateLimiter(MemoryStorage())

    def are_too_many(self, address: str) -> bool:
        """Whether the next one is beyond the limit: for none of this address the database is asked then."""
        return not all(self._counts.test(limit, address) for limit in self._limits)

    def count(self, address: str) -> None:
        """Count one; raises `RateLimited` beyond the limit."""
        over = [limit for limit in self._limits if not self._counts.hit(limit, address)]
        if over:
            left_s = math.ceil(self._counts.get_window_stats(over[0], address).reset_time - time.time())
            wait_s = min(over[0].get_expiry(), max(1, left_s))
            msg = (
                f"More wrong API keys than the limit of {over[0]} for one address (HEATLENS_KEY_FAILURE_LIMIT); "
                f"try again in {wait_s} s."
            )
            raise RateLimited(msg, limit=str(over[0]), retry_after_s=wait_s)


def _credentials() -> str | None:
    """Return the key that the request has in its headers; what is there of a proxy, and no key, is no matter."""
    bearer, plain = _bearer(), _plain()
    if bearer is not None and plain is not None and bearer != plain:
        abort(HTTPStatus.BAD_REQUEST, f"Authorization and {API_KEY_HEADER} have different keys; send one of them.")
    return plain if bearer is None else bearer


def _bearer() -> str | None:
    found = request.authorization
    if found is not None and found.type == "basic" and request.blueprint == "label_studio":
        token = found.password  # Label Studio can send a key in no other way
    else:
        token = found.token if found is not None and found.type == "bearer" else None
    return _ours(token)


def _plain() -> str | None:
    return _ours(request.headers.get(API_KEY_HEADER))


def _ours(text: str | None) -> str | None:
    """Return what may be a key of this server, right or wrong, and not of a gateway before it."""
    return text if text and text.startswith(_KEYS_BEGIN) else None


def _has_key() -> bool:
    """Whether there is a key, right or wrong, in a header that no browser sends by itself."""
    found = request.authorization
    return _plain() is not None or (found is not None and found.type == "bearer" and _bearer() is not None)


def _take_ticket() -> str | None:
    """Take the ticket out of the query, where the route would find an option that it does not know."""
    if request.method not in ("GET", "HEAD") or request.blueprint != "jobs" or TICKET not in request.args:
        return None
    rest = [(name, value) for name, value in request.args.items(multi=True) if name != TICKET]
    ticket = request.args[TICKET]
    request.args = ImmutableMultiDict(rest)
    return ticket


def _forbidden(access: frozenset[str], key: Key) -> Forbidden:
    needed, has = sorted(access), sorted(key.scopes)
    msg = f"This needs a key with the scope {' or '.join(needed)}; the one that was sent has {', '.join(has)}."
    return Forbidden(msg, needed=needed, scopes=has)


def _mark(response: Response) -> Response:
    """Say how to be let in, and let nobody on the way keep what was for one key alone."""
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = _CHALLENGE
        response.headers["Cache-Control"] = "no-store"
    elif "key" in g:
        response.headers.setdefault("Cache-Control", "private, no-cache")
    return response
