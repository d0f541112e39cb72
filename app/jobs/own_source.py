"""What `heatlens batch` is to explain: a folder, a picture, a pattern, an archive, or a URL.

Who gives the command may read what they may read, so HEATLENS_JOB_SOURCES does not hold here.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from app.config import Settings
from app.errors import BadOption, SourceUnreadable
from app.jobs import archives, sources
from app.jobs.archives import ArchiveLimits, Member
from app.jobs.sources import Found
from app.jobs.unpacking import kind_of

_ANYWHERE = "file:///."
"""Every file of this machine: links in a folder of one's own may lead out of it."""
_MAGIC = frozenset("*[")
_HEAD_BYTES = 512


class OwnSource:
    """A source as it was written. Raises `SourceUnreadable` where it is a path that is not there."""

    def __init__(self, text: str) -> None:
        self.path = None if "://" in text else Path(os.path.abspath(os.path.expanduser(text)))
        """Where it is on this machine; it may be a pattern. None: somewhere else."""
        self.text = text if self.path is None else str(self.path)
        """The source as it is known in whatever folder the command is given."""
        if self.path is not None and not self.path.exists() and not _MAGIC & set(text):
            raise SourceUnreadable(f"There is no {text!r}.", field="source")

    @property
    def allowed(self) -> str:
        """What workers have to be allowed to read (HEATLENS_JOB_SOURCES)."""
        if self.path is not None:
            return _ANYWHERE
        scheme, _, rest = self.text.partition("://")
        return f"{scheme}://{rest.partition('/')[0] or '.'}"

    @property
    def is_archive(self) -> bool:
        """Whether it is a file with others in it."""
        if self.path is None or not self.path.is_file():
            return False
        with open(self.path, "rb") as file:
            return kind_of(file.read(_HEAD_BYTES)) is not None

    def require_apart(self, results: Path) -> None:
        """Raise `BadOption` if the folder for the results is the source: they would be taken for pictures."""
        if self.path == results:
            msg = f"The results would lie among the pictures of {results}; take another folder for --out."
            raise BadOption(msg, field="out")

    def members(self, settings: Settings) -> Iterator[Member]:
        """Yield the files of an archive, as `archives.members` does."""
        limits = ArchiveLimits(
            items=settings.max_job_items,
            bytes=settings.max_archive_bytes,
            ratio=settings.max_archive_ratio,
            picture_bytes=settings.max_body_bytes,
        )
        with open(self.text, "rb") as file:
            yield from archives.members(file, limits)

    def found(self, settings: Settings, results: Path) -> Iterator[Found]:
        """Yield the pictures that are found, but none of those in the folder `results`, if that lies among them."""
        within = self.path is not None and not self.path.is_relative_to(results)
        own = f"file://{results}/" if within else None
        for found in sources.find(self._pattern, settings):
            if own is None or not found.url.startswith(own):
                yield found

    @property
    def _pattern(self) -> str:
        """What `sources.find` is asked for: a path that exists means itself, whatever is in its name."""
        if self.path is None:
            return self.text
        if not self.path.exists():
            return f"file://{self.text}"
        plain = "".join(f"[{letter}]" if letter in _MAGIC else letter for letter in self.text)
        return f"file://{plain}/**" if self.path.is_dir() and plain != self.text else f"file://{plain}"
