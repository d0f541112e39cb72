"""The results of a batch laid out in a folder for people and for other tools, and a table of them."""

import csv
import json
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from app.jobs.artifacts import STORED, result_key
from app.jobs.fields import field
from app.jobs.local import Batch
from app.jobs.names import portable
from app.jobs.results import names_of
from app.jobs.rows import ItemRow, JobRow

Layout = Literal["flat", "mirror", "fiftyone"]
Summary = Literal["csv", "parquet", "none"]

_MAPS = "maps"
_NAME_BYTES = 150
_RANGE = [0, 255]
_LIKE_OURS = re.compile(r"\.(jpg|png|webp|npz|csv|parquet)$", re.IGNORECASE)
"""How the files end that are laid out: a folder of such a name could be in the place of one."""
_COLUMNS: dict[str, type] = {
    "name": str, "source": str, "sha256": str, "status": str, "target": int, "label": str, "confidence": float,
    "model": str, "method": str, "layers": str, "width": int, "height": int, "map_min": float, "map_max": float,
    "map_mean": float, "no_positive_evidence": bool, "faithfulness": str, "margin": float, "stability_noise": float,
    "stability_mirror": float, "overlay": str, "map": str, "arrays": str, "error_code": str,
    "error": str,
}  # fmt: skip
"""The columns of the summary; a picture has a row for each of its targets, or one row if there are none."""
_ROWS_AT_ONCE = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet takes for a program."""

Row = Mapping[str, Any]


def lay_out(batch: Batch, layout: Layout, summary: Summary) -> Iterator[JobRow]:
    """Lay out all that is there, and write the summary; yields each job before its turn.

    Files that are there already stay, and names are given in the order of the jobs, so doing it again after further
    pictures changes nothing of what was. Files are links to those of the store where the disk can do that.
    """
    naming = _Naming(layout)
    with _listing(batch.out, layout) as heatmaps, _table(batch.out, summary) as table:
        for job in batch.jobs():
            yield job
            for item in batch.items(job):
                placed = _place(batch, job, item, naming.base(item.name))
                rows = list(_rows(batch, item, placed))
                for place, row in enumerate(rows):
                    table.write(row)
                    if heatmaps is not None and row["map"]:
                        heatmap = {"field": _field(job, row, place, len(rows)), **_heatmap(batch, row)}
                        heatmaps.write(json.dumps(heatmap) + "\n")


class _Naming:
    """Gives each picture a path without extension, so that no two are the same, even where case makes no difference."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def base(self, name: str) -> str:
        path = PurePosixPath(name)
        folders = [_folder(part) for part in path.parts[:-1] if part != "/"] if self._layout == "mirror" else []
        wanted = "/".join([*folders, _clean(path.stem)])
        found = wanted
        while found.casefold() in self._taken:
            number = self._next.get(wanted, 2)
            self._next[wanted] = number + 1
            found = f"{wanted}-{number}"
        self._taken.add(found.casefold())
        return f"{_MAPS}/{found}" if self._layout == "fiftyone" else found


def _folder(part: str) -> str:
    """Return a folder's name as it may be one, and unlike that of any file which is laid out."""
    clean = _clean(part)
    return f"{clean}_" if _LIKE_OURS.search(clean) else clean


def _clean(part: str) -> str:
    """Return a part of a name as it may be a file's on any system, and none that is hidden or leads elsewhere."""
    composed = unicodedata.normalize("NFC", part)  # macOS makes no difference
    plain = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]', "_", composed).strip(" .")
    return portable(plain.encode()[:_NAME_BYTES].decode(errors="ignore"))


def _place(batch: Batch, job: JobRow, item: ItemRow, base: str) -> dict[str, str]:
    """Put a picture's files in their places, and return these by the names of the artifacts."""
    placed = {}
    for name in names_of(item):
        path = f"{base}.{name.partition('.')[2]}"
        kept = batch.settings.data_dir / "jobs" / result_key(job.id, name, item.number)
        if _put(kept, batch.out / path):
            placed[name] = path
    return placed


def _put(kept: Path, wanted: Path) -> bool:
    """Make a file appear in its place whole; say whether it is there."""
    with suppress(FileNotFoundError):
        if os.path.samefile(kept, wanted):
            return True
    temporary = wanted.with_name(f".{wanted.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        _link(kept, temporary)
    except FileNotFoundError:
        if not kept.exists():
            return False
        wanted.parent.mkdir(parents=True, exist_ok=True)
        _link(kept, temporary)
    temporary.replace(wanted)
    return True


def _link(kept: Path, path: Path) -> None:
    try:
        os.link(kept, path)
    except FileNotFoundError:
        raise
    except OSError:  # the disk has no links, or too many to this file
        shutil.copyfile(kept, path)


def _rows(batch: Batch, item: ItemRow, placed: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a picture in the summary."""
    result, error = item.result or {}, item.error or {}
    common = {
        "name": item.name,
        "source": _where(batch, item),
        "sha256": item.sha256,
        "status": item.status,
        "error_code": error.get("code"),
        "error": error.get("detail"),
    }
    if not result:
        yield dict.fromkeys(_COLUMNS) | common
        return
    common |= {
        "model": result["model"]["name"],
        "method": result["method"]["name"],
        "layers": ",".join(result["layers"]),
        "width": result["image"]["width"],
        "height": result["image"]["height"],
        "arrays": placed.get(result["artifacts"].get("arrays", "")),
    }
    for explanation in result["explanations"]:
        target, map_, names = explanation["target"], explanation["map"], explanation["artifacts"]
        yield (
            dict.fromkeys(_COLUMNS)
            | common
            | {
                "target": target["index"],
                "label": target["label"],
                "confidence": target["probability"],
                "map_min": map_["min"],
                "map_max": map_["max"],
                "map_mean": map_["mean"],
                "no_positive_evidence": map_["no_positive_evidence"],
                **_trust(explanation),
                "overlay": placed.get(names.get("overlay", "")),
                "map": placed.get(names.get("map", "")),
            }
        )


def _trust(explanation: Row) -> dict[str, Any]:
    """Return what was measured of a map, where that was asked for."""
    faithfulness, stability = explanation.get("faithfulness") or {}, explanation.get("stability") or {}
    return {
        "faithfulness": faithfulness.get("verdict"),
        "margin": faithfulness.get("margin"),
        "stability_noise": stability.get("noise"),
        "stability_mirror": stability.get("mirror"),
    }


def _where(batch: Batch, item: ItemRow) -> str:
    """Return where a picture is: a path on this machine, or a URL."""
    if item.input.startswith(STORED):
        return str(batch.settings.data_dir / "jobs" / item.input.removeprefix(STORED))
    return item.input.removeprefix("file://")


def _heatmap(batch: Batch, row: Row) -> dict[str, Any]:
    """Return what FiftyOne needs of a map, see docs/fiftyone.md."""
    return {
        "filepath": row["source"],
        "map_path": str(batch.out / row["map"]),
        "range": _RANGE,
        "label": row["label"],
        "confidence": row["confidence"],
        "method": row["method"],
    }


def _field(job: JobRow, row: Row, place: int, count: int) -> str:
    targets = job.options.get("target", ["predicted"])
    return field(row["method"], place, targets, count, (row["label"], row["target"]))


@contextmanager
def _listing(out: Path, layout: Layout) -> Iterator[Any]:
    if layout != "fiftyone":
        yield None
        return
    with _whole(out / "heatmaps.ndjson") as path, open(path, "w", encoding="utf-8") as file:
        yield file


class _Table(Protocol):
    def write(self, row: Row) -> None: ...


@contextmanager
def _table(out: Path, summary: Summary) -> Iterator[_Table]:
    if summary == "none":
        yield _NoTable()
    elif summary == "csv":
        with _whole(out / "summary.csv") as path, open(path, "w", encoding="utf-8", newline="") as file:
            yield _Csv(file)
    else:
        with _whole(out / "summary.parquet") as path:
            table = _Parquet(path)
            try:
                yield table
            finally:
                table.close()


class _NoTable:
    def write(self, row: Row) -> None:
        pass


class _Csv:
    def __init__(self, file: Any) -> None:
        self._writer = csv.DictWriter(file, _COLUMNS)
        self._writer.writeheader()

    def write(self, row: Row) -> None:
        self._writer.writerow({name: _plain_text(value) for name, value in row.items()})


def _plain_text(value: object) -> object:
    """Return what a cell is to hold: a text that a spreadsheet would compute has an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class _Parquet:
    """Rows are written by the thousand, so that the table is never held."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        self._schema = pyarrow.schema([(name, kinds[kind]) for name, kind in _COLUMNS.items()])
        self._from_rows = pyarrow.Table.from_pylist
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._from_rows(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Lend a temporary path, which takes the place of `path` once all is written."""
    temporary = path.with_name(f".{path.name}.new")
    yield temporary
    temporary.replace(path)
