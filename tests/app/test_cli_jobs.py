"""`heatlens batch` as real processes that are killed, stopped and started again, and `heatlens jobs`."""

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from app.cli import app
from app.config import Settings
from app.jobs.layouts import _Naming
from app.jobs.local import Batch
from app.jobs.rows import ItemRow, JobRow
from tests.app.jobs.books import FAULT, Book, opened

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shell:
    """Runs `heatlens` as people do, with the small networks of `tests.zoo`."""

    environment: dict[str, str]

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "app", *map(str, arguments)],
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def shell(models_dir: Path) -> Shell:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    ours = {"MODELS_DIR": str(models_dir), "DEFAULT_MODEL": "small", "TORCH_THREADS": "1", "JOB_SHARD_PICTURES": "8"}
    environment |= {f"HEATLENS_{name}": value for name, value in ours.items()}
    return Shell(environment | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"})


def picture(path: Path, colour: int = 128, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 255 - colour, 60)).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in ("a/cat.png", "b/cat.png", "b/dog.png"):
        picture(folder / name)
    (folder / "bad.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("not meant")
    return folder


def summary(out: Path) -> dict[str, dict[str, str]]:
    with open(out / "summary.csv", encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def visible(out: Path) -> set[str]:
    files = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return {str(path) for path in files if path.parts[0] != ".heatlens"}


@dataclass(frozen=True)
class Inside:
    """What the ledger in a batch's folder says."""

    jobs: list[JobRow]
    items: list[ItemRow]


def inside(out: Path) -> Inside:
    with opened(Settings(data_dir=out / ".heatlens")) as book:
        jobs = book.ledger.jobs(limit=100)[::-1]
        return Inside(jobs, [item for job in jobs for item in book.ledger.items(job.id, limit=10_000)])


def until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def at_work_in(out: Path) -> list[int]:
    """The processes that were started for a batch, however they are called."""
    wanted = f"HEATLENS_DATA_DIR={out / '.heatlens'}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.server
def test_a_folder_is_explained_once_and_what_is_new_in_it_later(shell: Shell, photos: Path, tmp_path: Path) -> None:
    out = photos / "results"  # among the pictures, but none of them
    code, said, errors = shell.run("batch", photos, "--out", out)
    assert code == 1
    assert "3 of 4 pictures explained, 1 failed" in said
    assert "bad.jpg" in errors
    assert visible(out) == {"summary.csv", "cat.overlay.jpg", "cat-2.overlay.jpg", "dog.overlay.jpg"}
    rows = summary(out)
    assert set(rows) == {"a/cat.png", "b/cat.png", "b/dog.png", "bad.jpg"}
    assert rows["b/dog.png"]["overlay"] == "dog.overlay.jpg"
    assert rows["b/dog.png"]["source"] == str(photos / "b/dog.png")
    assert float(rows["b/dog.png"]["confidence"]) > 0
    assert (rows["bad.jpg"]["status"], rows["bad.jpg"]["error_code"]) == ("failed", "unsupported_image_format")
    with Image.open(out / "cat.overlay.jpg") as overlay:
        assert overlay.size == (40, 30)
    before = inside(out)

    code, said, _ = shell.run("batch", photos, "--out", out, "--json")
    assert (code, json.loads(said)["pictures"]) == (1, 4)
    assert inside(out) == before  # nothing was done again

    picture(photos / "0.png")
    picture(photos / "bad.jpg")
    code, said, _ = shell.run("batch", photos, "--out", out, "--retry", "--json")
    assert (code, json.loads(said)) == (
        0,
        {"pictures": 5, "failed": 0, "out": str(out), "summary": str(out / "summary.csv")},
    )
    after = inside(out)
    assert [item.name for item in after.items] == ["a/cat.png", "b/cat.png", "b/dog.png", "bad.jpg", "0.png"]
    assert after.items[:3] == before.items[:3]
    assert at_work_in(out) == []


@pytest.mark.server
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_that_is_ended_goes_on_and_every_picture_is_explained_once(
    shell: Shell, tmp_path: Path, ending: signal.Signals
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    for number in range(40):
        picture(photos / f"{number}.png", colour=6 * number)
    command = ["batch", photos, "--out", out, "--model", "sleepy", "--method", "rise", "--set", "samples=50"]
    first = shell.start(*command)
    until(lambda: (out / ".heatlens/jobs.db").exists() and any(job.done for job in jobs_of(out)))
    first.send_signal(ending)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 1)
    if ending != signal.SIGKILL:
        assert "run the same command again" in said
        assert at_work_in(out) == []
    until(lambda: at_work_in(out) == [])  # whoever lost its parent goes too
    then = inside(out)
    (job,) = then.jobs
    assert 0 < job.done < 40
    assert shell.run(*command)[0] == 0
    (job,), items = inside(out).jobs, inside(out).items
    assert (job.status, job.total, job.done, job.failed) == ("succeeded", 40, 40, 0)
    assert sorted(item.event or 0 for item in items) == list(range(1, 41))
    done_before = [item for item in then.items if item.status == "succeeded"]
    assert done_before == [item for item in items if item.number in {item.number for item in done_before}]
    assert len(list(out.glob("*.overlay.jpg"))) == len(summary(out)) == 40


def jobs_of(out: Path) -> Sequence[JobRow]:
    return inside(out).jobs


@pytest.mark.server
def test_an_archive_laid_out_as_it_was(shell: Shell, photos: Path, tmp_path: Path) -> None:
    packed, out = tmp_path / "photos.zip", tmp_path / "out"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos))
    options = ["--layout", "mirror", "--artifact", "overlay", "--artifact", "arrays", "--format", "png"]
    assert shell.run("batch", packed, "--out", out, "--summary", "parquet", *options)[0] == 0
    pictures = ("a/cat", "b/cat", "b/dog")
    assert visible(out) == {"summary.parquet", *(f"{p}.{kind}" for p in pictures for kind in ("overlay.png", "npz"))}
    with np.load(out / "a/cat.npz") as arrays:
        assert arrays["maps"].shape == (1, 30, 40)
    table = pyarrow.parquet.read_table(out / "summary.parquet").to_pylist()
    assert [row["name"] for row in table] == [f"{p}.png" for p in pictures]
    assert table[0]["arrays"] == "a/cat.npz"
    assert Path(table[0]["source"]).read_bytes() == (photos / "a/cat.png").read_bytes()
    assert isinstance(table[0]["confidence"], float)


@pytest.mark.server
def test_fiftyone_gets_maps_and_what_to_make_of_them(shell: Shell, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    targets = ["--target", "0", "--target", "1", "--artifact", "arrays"]  # and maps, without which there is nothing
    assert shell.run("batch", f"{photos}/**/*.png", "--out", out, "--layout", "fiftyone", *targets)[0] == 0
    rows = [json.loads(line) for line in (out / "heatmaps.ndjson").read_text().splitlines()]
    assert len(rows) == 3 * 2
    for row in rows:
        assert set(row) == {"field", "filepath", "map_path", "range", "label", "confidence", "method"}
        assert row["field"] == {"ant": "gradcam_ant_0", "bee": "gradcam_bee_1"}[row["label"]]
        assert Path(row["filepath"]).is_relative_to(photos)
        assert Path(row["map_path"]).parent == out / "maps"
        with Image.open(row["map_path"]) as map_, Image.open(row["filepath"]) as original:
            assert (map_.mode, map_.size) == ("L", original.size)
        assert (row["range"], row["method"]) == ([0, 255], "gradcam")
        assert 0 <= row["confidence"] <= 1
    assert {row["label"] for row in rows} == {"ant", "bee"}
    samples = recipe(tmp_path)
    fields = {"filepath", "gradcam_ant_0", "gradcam_bee_1", "gradcam_raw_0", "gradcam_raw_1"}
    assert {path: set(sample) for path, sample in samples.items()} == {row["filepath"]: fields for row in rows}
    for row in rows:
        index = {"ant": 0, "bee": 1}[row["label"]]
        raw = samples[row["filepath"]][f"gradcam_raw_{index}"]
        with np.load(row["map_path"].rsplit(".map", 1)[0] + ".npz") as arrays:
            assert np.array_equal(raw["map"], arrays["maps"][index])  # they were asked for in this order
        low, high = raw["range"]
        assert -low == high > 0
        assert np.abs(raw["map"]).max() <= high
        assert samples[row["filepath"]][row["field"]]["map_path"] == row["map_path"]


def recipe(folder: Path) -> dict[str, dict[str, Any]]:
    """Run the blocks of docs/fiftyone.md with a double of FiftyOne, which is not installed here; return the samples."""
    text = (REPOSITORY / "docs" / "fiftyone.md").read_text()
    program = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    added: list[dict[str, Any]] = []
    dataset = SimpleNamespace(add_samples=lambda samples, dynamic: added.extend(samples))
    double = SimpleNamespace(
        Sample=dict,
        Heatmap=dict,
        Dataset=lambda name: dataset,
        launch_app=lambda shown: SimpleNamespace(wait=lambda: None),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "fiftyone", double)
        exec(program.replace('["heat"]', '["out"]'), {})  # noqa: S102
    return {sample["filepath"]: sample for sample in added}


@pytest.fixture
def small(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("HEATLENS_DEFAULT_MODEL", "small")


def refused(*arguments: str | Path) -> tuple[int, str]:
    """What becomes of a batch that never starts a worker."""
    result = CliRunner().invoke(app, ["batch", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stderr.split())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/nowhere"], "There is no"),
        (["{}/empty"], "no pictures"),
        (["{}/empty/*.jpg"], "no pictures"),
        (["{}/photos", "--set", "samples"], "NAME=VALUE"),
        (["{}/photos", "--method", "grad-cam"], "There is no method"),
        (["{}/photos", "--format", "npy"], "artifacts=arrays"),
        (["{}/photos", "--layout", "tree"], "tree"),
        (["{}/broken.zip"], "damaged"),
        (["s4://bucket"], "Protocol not known: s4"),
        (["{}/out"], "another folder"),
    ],
)
def test_wrong_use_is_2_and_lays_nothing_out(photos: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    out = tmp_path / "out"
    for folder in (out, tmp_path / "empty"):
        folder.mkdir()
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 and no more")
    code, said = refused(*(argument.format(tmp_path) for argument in arguments), "--out", out)
    assert (code, words in said) == (2, True), said
    assert visible(out) == set()


@pytest.mark.usefixtures("small")
def test_a_folder_is_for_one_source_and_one_set_of_options_and_one_command_at_a_time(
    photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / ".heatlens").mkdir(parents=True)
    with open(out / ".heatlens/batch.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = refused(photos, "--out", out)
        assert (code, "Another `heatlens batch` is at work" in said) == (1, True)
    (out / ".heatlens/batch.json").write_text(json.dumps({"source": str(photos), "options": {}}))
    for other in ([photos / "a"], [photos, "--method", "saliency"]):
        code, said = refused(*other, "--out", out)
        assert (code, "results of another batch" in said) == (2, True)


@pytest.mark.usefixtures("small")
def test_a_database_that_cannot_be_opened_is_no_wrong_use(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out/.heatlens/jobs.db").mkdir(parents=True)
    code, said = refused(photos, "--out", tmp_path / "out")
    assert (code, "database does not answer" in said) == (1, True), said


def test_results_among_the_pictures_are_known_however_their_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.jpg", "results/a.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"a picture")
    batch = Batch(Settings(), str(tmp_path), tmp_path / "sub/../results")
    assert batch.out == tmp_path / "results"
    assert [found.name for found in batch.source.found(batch.settings, batch.out)] == ["a.jpg"]


@given(
    names=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), max_size=30),
    layout=st.sampled_from(["flat", "mirror", "fiftyone"]),
)
def test_no_two_pictures_have_one_place_and_none_is_outside(names: list[str], layout: Any) -> None:
    naming = _Naming(layout)
    bases = [naming.base(name) for name in names]
    assert len({base.casefold() for base in bases}) == len(names)
    for base in bases:
        parts = base.split("/")
        assert not set(parts) & {"", ".", ".."}
        assert not any(part.startswith(".") for part in parts)
        assert layout == "mirror" or len(parts) == (2 if layout == "fiftyone" else 1)
        assert all(len(part.encode()) <= 170 for part in parts)


def test_names_that_clash_are_told_apart_in_their_order() -> None:
    naming = _Naming("flat")
    names = ["a/cat.png", "b/cat.png", "CAT.jpg", "cat-2.png", "../x/.hidden.png"]
    assert [naming.base(name) for name in names] == ["cat", "cat-2", "CAT-3", "cat-2-2", "hidden"]


def test_no_folder_is_in_the_place_of_a_file() -> None:
    naming = _Naming("mirror")
    names = ["cat.png", "cat.overlay.JPG/cat.png", "summary.csv/cat.png", "cat.v2/cat.png"]
    assert [naming.base(name) for name in names] == ["cat", "cat.overlay.JPG_/cat", "summary.csv_/cat", "cat.v2/cat"]


def test_names_that_macos_takes_for_one_are_told_apart() -> None:
    naming = _Naming("flat")
    assert [naming.base(name) for name in ["\u00e9.png", "e\u0301.png"]] == ["\u00e9", "\u00e9-2"]


# `heatlens jobs`


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    with opened(Settings()) as book:
        yield book


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["jobs", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_jobs_are_listed_and_shown(book: Book) -> None:
    ids = [book.submit(["a.jpg", "b.jpg"]) for _ in range(3)]
    book.succeed(ids[0], 0)
    book.fail(ids[0], 1)
    code, out, _ = run("list")
    assert code == 0
    assert re.findall(r"[0-9a-f]{32}", out) == ids[::-1]
    assert re.search(rf"{ids[0]}\s+mine\s+completed_with_errors\s+2/2\s+1\s", out)
    assert [job["id"] for job in json.loads(run("list", "--json", "--status", "queued")[1])] == ids[:0:-1]
    assert len(json.loads(run("list", "--json", "--limit", "1")[1])) == 1
    shown = json.loads(run("show", ids[0], "--json")[1])
    assert (shown["id"], shown["progress"]["failed"]) == (ids[0], 1)
    code, out, _ = run("show", ids[0])
    assert "completed_with_errors" in out


def test_ids_are_whole_on_a_narrow_terminal(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = book.submit(["a.jpg"])
    monkeypatch.setattr("app.cli.console._out", Console(width=80))
    assert job_id in run("list")[1]


def test_jobs_are_cancelled_retried_and_deleted(book: Book) -> None:
    job_id = book.submit(["a.jpg"])
    assert json.loads(run("cancel", job_id, "--json")[1])["status"] == "cancelled"
    assert json.loads(run("retry", job_id, "--json")[1])["status"] == "queued"
    code, _, err = run("retry", job_id)
    assert (code, "still queued" in err) == (1, True)
    assert run("delete", job_id)[0] == 0
    assert book.ledger.jobs(limit=1) == []


def test_a_job_is_watched_until_it_is_over_and_the_code_says_how_it_went(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.jobs._POLL_S", 0.01)
    good, bad = book.submit(["a.jpg"]), book.submit(["a.jpg"])
    book.succeed(good, 0)
    code, out, _ = run("watch", good, "--json")
    assert (code, json.loads(out)["status"]) == (0, "succeeded")
    finishing = book.ledger.job
    monkeypatch.setattr("app.cli.jobs.time.sleep", lambda _s: book.fail(bad, 0))
    assert finishing(bad).status == "queued"
    code, out, _ = run("watch", bad, "--json")
    assert (code, json.loads(out)["status"]) == (1, "failed")
    assert FAULT["code"] == book.ledger.item(bad, 0).error["code"]  # type: ignore[index]


@pytest.mark.parametrize("command", ["show", "cancel", "retry", "delete", "watch"])
def test_an_unknown_job_is_1(book: Book, command: str) -> None:
    code, _, err = run(command, "0" * 32)
    assert code == 1
    assert "There is no job" in err


def test_an_unknown_state_is_2(book: Book) -> None:
    code, _, err = run("list", "--status", "lost")
    assert (code, "completed_with_errors" in err) == (2, True)


def test_without_jobs_it_says_where_it_looked_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path / "nowhere"))
    code, _, err = run("list")
    assert (code, str(tmp_path / "nowhere") in err) == (1, True)
    assert not (tmp_path / "nowhere").exists()
