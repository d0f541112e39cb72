"""Pictures that are kept for a while, under an id that only their sender knows."""

import hashlib
import re
from collections.abc import Callable

from app.config import Settings
from app.errors import LimitExceeded, UnknownImage
from app.imaging import encode
from app.jobs.shelf import UNKNOWN_IMAGE, Kept, Shelf
from app.schemas.embedding import PictureFormat
from app.service import Service

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PICTURE = "picture"
_CHECKED_PX = 16


class Images:
    """Keeps pictures. Who has the id of one may use it, see it again, and delete it.

    Where `only_of` returns an owner, there are no others' pictures.
    """

    def __init__(
        self, settings: Settings, service: Service, shelf: Shelf, only_of: Callable[[], str | None] = lambda: None
    ) -> None:
        self._settings = settings
        self._service = service
        self._shelf = shelf
        self._only_of = only_of

    def keep(self, data: bytes, *, owner: str, expires_in_s: float | None = None) -> Kept:
        """Keep a picture that can be decoded.

        Raises what is wrong with it, as `Service.explain` does, `LimitExceeded`, and what `Shelf.put` does.
        """
        limit = self._settings.image_retention_s
        lifetime_s = limit if expires_in_s is None else expires_in_s
        if lifetime_s > limit:
            msg = f"expires_in_s is {lifetime_s:.15g}, the limit is {limit:.15g} (HEATLENS_IMAGE_RETENTION_S)."
            raise LimitExceeded(msg, field="expires_in_s", limit=limit)
        picture = self._service.viewer.picture(data, self._service.clock(None), max_side=_CHECKED_PX)
        facts = {"sha256": hashlib.sha256(data).hexdigest(), "width": picture.width, "height": picture.height}
        return self._shelf.put("image", {_PICTURE: data}, facts, owner=owner, lifetime_s=lifetime_s)

    def get(self, id_: str) -> Kept:
        """Return what is known of a picture; raises `UnknownImage`."""
        found = self._shelf.get("image", id_) if _ID.fullmatch(id_) else None
        if found is None or self._only_of() not in (None, found.owner):
            raise UnknownImage(UNKNOWN_IMAGE)
        return found

    def read(self, id_: str) -> bytes:
        """Return a picture's own bytes, for the models; raises `UnknownImage`."""
        data = self._shelf.read(self.get(id_), _PICTURE)
        if data is None:
            raise UnknownImage(UNKNOWN_IMAGE)
        return data

    def shown(self, id_: str, *, max_side: int, format_: PictureFormat) -> bytes:
        """Return a picture as it is displayed, without what else its file may hold, such as the place it shows."""
        self._service.check_side(max_side)
        picture = self._service.viewer.picture(self.read(id_), self._service.clock(None), max_side=max_side)
        size = encode.fit(picture.width, picture.height, max_side)
        return encode.encode(encode.resize(picture.pixels, size), format_)

    def delete(self, id_: str) -> None:
        """Forget a picture, and all embed links that show it; raises `UnknownImage`."""
        if not self._shelf.delete("image", self.get(id_).id):
            raise UnknownImage(UNKNOWN_IMAGE)
