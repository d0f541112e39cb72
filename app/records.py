"""What was measured of a model and stays, for every process that reads the same data folder."""

import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


class _Kept(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)  # a later version may know more


class StageRecord(_Kept):
    """How like the true maps those were after these layers, and all behind them, had been randomised."""

    layers: tuple[str, ...]
    similarity: float | None = Field(description="Mean absolute rank correlation; null where a map was constant.")


class SanityRecord(_Kept):
    """How a method's maps of a model changed when its weights were randomised, from the score downwards."""

    verdict: Literal["passes", "fails", "undecided"]
    words: str
    stages: tuple[StageRecord, ...]
    pictures: int = Field(ge=1)
    seed: int
    parameters: dict[str, object] = Field(description="The method's.")
    layers: tuple[str, ...] = Field(description="The target layers; empty where the method has none.")
    measured_at: datetime
    version: str = Field(description="Of HeatLens.")


class _Record(_Kept):
    sanity: dict[str, SanityRecord] = {}


class Records:
    """The records of all models, one JSON file each in `folder`, named by the model's fingerprint.

    Safe for threads and processes: a file is replaced as a whole, and writers wait for each other. A file that cannot
    be read, or is not what this class writes, is reported in the log, once, and counts as none; the next
    `remember` puts it aside.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int, int], _Record | None]] = {}

    def sanity(self, fingerprint: str) -> Mapping[str, SanityRecord]:
        """Return what is remembered of a model's methods, by name; `fingerprint` is that of the loaded model."""
        record = self._record(self._path(fingerprint))
        return {} if record is None else record.sanity

    def remember(self, fingerprint: str, method: str, sanity: SanityRecord) -> None:
        """Keep what was measured of a method, in place of what was remembered; raises `OSError` if that cannot be."""
        path = self._path(fingerprint)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            record = self._record(path)
            if record is None and path.exists():
                path.replace(path.with_suffix(".damaged"))
            known = {} if record is None else record.sanity
            text = _Record(sanity={**known, method: sanity}).model_dump_json(indent=2)
            _replace(path, text)

    def prepare(self) -> None:
        """See that something can be kept, before it takes minutes to measure; raises `OSError` if not."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked(), tempfile.TemporaryFile(dir=self._folder):
            pass

    def _path(self, fingerprint: str) -> Path:
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"{fingerprint[:100]!r} is no fingerprint of a model")
        return self._folder / f"{fingerprint}.json"

    def _record(self, path: Path) -> _Record | None:
        """Return what the file says, which is read again only when it has changed; None: nothing to be had."""
        try:
            facts = path.stat()
            state = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            known = self._read.get(path.name)
            if known is None or known[0] != state:
                known = state, _parsed(path)
                self._read[path.name] = known
        except FileNotFoundError:
            return None
        except OSError as error:
            known = (0, 0, 0), None
            if self._read.get(path.name) != known:
                self._read[path.name] = known
                _log.warning("%s cannot be read: %s", path, error)
        return known[1]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _parsed(path: Path) -> _Record | None:
    try:
        return _Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        _log.warning("%s is damaged and is ignored: %s: %s", path, where, first["msg"])
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file in such a way that whoever reads it finds the old or the new one, also after a loss of power."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
