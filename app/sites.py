"""What a page may have its reader's browser do here: nothing, unless it is the server's own or the operator's wish."""

import ipaddress
import re

from flask import request

from app.config import Settings
from app.errors import Forbidden

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOADING = frozenset({"models.layers", "models.labels"})
"""What is safe by its method, and has a model loaded all the same, which takes memory and a download."""
_OF_OTHERS = frozenset({"cross-site", "same-site"})
"""Another port of this host is the same site, and may be anybody's."""
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")
"""What a `Host` is: a name or an address, and a port."""
_DEFAULT_PORT = {"http": ":80", "https": ":443"}
_SHOWN = 100


class Sites:
    """Refuses requests that a browser makes for a page of another site."""

    def __init__(self, settings: Settings) -> None:
        public = settings.public_url.lower()
        self._origins = {origin.lower() for origin in settings.cors_origins}
        self._names = {"localhost", *(name.lower().removesuffix(".") for name in settings.hosts)}
        if public:
            scheme, _, host = public.partition("://")
            self._origins.add(_origin(scheme, host))
            self._names.add(_name(host))
        # Behind a proxy the proxy's name is what browsers ask for, which is not known here unless it is set, and who
        # reaches this machine alone reaches it through the proxy. At a public address anybody may ask in any case.
        is_named = bool(settings.hosts or (public and not settings.is_public))
        self._any_name = not is_named and (settings.is_public or settings.trusted_proxies > 0)

    def refuse_other_names(self) -> None:
        """Raise `Forbidden` where the server is asked under a name that is not its own, for when no key is needed.

        Whoever owns a name can have it lead to this machine. Their page is then of the same site as this server, for
        its reader's browser, and could read everything. Programs that send no `Host` are no browsers.
        """
        host = request.headers.get("Host", "")
        if self._any_name or not host or self._is_own(_name(host)):
            return
        msg = (
            f"Without API keys this server answers to localhost, and to the names that its operator gives it "
            f"(HEATLENS_HOSTS); Host is {host[:_SHOWN]!r}."
        )
        raise Forbidden(msg, field="Host")

    def refuse_other_pages(self, *, has_key: bool) -> None:
        """Raise `Forbidden` where a page of another site has its reader's browser change something here.

        To have a model loaded is a change, too. Browsers say themselves for whom they ask. Without keys, any page could
        otherwise use a service that only its reader reaches. Where a browser tells the origin alone, as by plain HTTP,
        a key shows that no other page sent the request: it could add none.
        """
        if request.method in _SAFE and request.endpoint not in _LOADING:
            return
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site == "same-origin" or (origin is not None and self._is_own_origin(origin)):
            return
        if site in _OF_OTHERS or (origin is not None and not has_key):
            msg = (
                "Pages of other sites change nothing here, unless the operator names them (HEATLENS_CORS_ORIGINS). "
                "Where this is the server's own page, behind a proxy, its address has to be set (HEATLENS_PUBLIC_URL)."
            )
            raise Forbidden(msg, field="Origin")

    def _is_own(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False

    def _is_own_origin(self, origin: str) -> bool:
        origin = origin.lower()
        return origin in self._origins or origin == _origin(request.scheme, request.headers.get("Host", ""))


def _name(host: str) -> str:
    """Return the name in a `Host`, without its port; nothing that is a name where it cannot be read."""
    found = HOST.fullmatch(host)
    return found[1].lower().removesuffix(".") if found else ""


def _origin(scheme: str, host: str) -> str:
    """Return an origin as browsers write it, without the port that its scheme has by itself."""
    return f"{scheme}://{host.lower().removesuffix(_DEFAULT_PORT.get(scheme, ''))}"
