"""What is remembered of models: written whole, read back as it was, and never trusted blindly."""

import json
import logging
import multiprocessing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.records import Records, SanityRecord, StageRecord

MODEL, OTHER = "a" * 64, "b" * 64
PASSES = SanityRecord(
    verdict="passes",
    words="The maps change with the weights.",
    stages=(StageRecord(layers=("head",), similarity=0.25), StageRecord(layers=("stem", "bn"), similarity=None)),
    pictures=4,
    seed=0,
    parameters={"samples": 20},
    layers=("blocks.6",),
    measured_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    version="0.1.0",
)
FAILS = PASSES.model_copy(update={"verdict": "fails"})


def test_what_is_remembered_is_read_back_by_others(tmp_path: Path) -> None:
    records = Records(tmp_path / "records")
    assert records.sanity(MODEL) == {}
    records.remember(MODEL, "gradcam", PASSES)
    records.remember(MODEL, "guided_backprop", FAILS)
    for reader in (records, Records(tmp_path / "records")):
        assert reader.sanity(MODEL) == {"gradcam": PASSES, "guided_backprop": FAILS}
        assert reader.sanity(OTHER) == {}


def test_measured_again_replaces_what_was_and_a_reader_notices(tmp_path: Path) -> None:
    writer, reader = Records(tmp_path), Records(tmp_path)
    writer.remember(MODEL, "gradcam", PASSES)
    assert reader.sanity(MODEL)["gradcam"].verdict == "passes"
    writer.remember(MODEL, "gradcam", FAILS)
    assert reader.sanity(MODEL)["gradcam"].verdict == "fails"


def test_who_is_reading_keeps_the_whole_old_record(tmp_path: Path) -> None:
    """A file is never written over, but replaced: what was opened before does not change."""
    records = Records(tmp_path)
    records.remember(MODEL, "gradcam", PASSES)
    path = tmp_path / f"{MODEL}.json"
    before = path.read_text()
    with path.open() as opened:
        records.remember(MODEL, "rise", FAILS)
        assert opened.read() == before
    assert path.read_text() != before


def test_the_file_is_json_with_the_time_in_iso_8601_and_no_draft_is_left(tmp_path: Path) -> None:
    Records(tmp_path).remember(MODEL, "gradcam", PASSES)
    found = json.loads((tmp_path / f"{MODEL}.json").read_text())
    assert found["sanity"]["gradcam"]["measured_at"] == "2026-01-02T03:04:05Z"
    assert found["sanity"]["gradcam"]["stages"][1] == {"layers": ["stem", "bn"], "similarity": None}
    assert {path.name for path in tmp_path.iterdir()} == {f"{MODEL}.json", ".lock"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sanity": {"gradcam": {"verdict": "shines"}}}', '{"sanity": {"gradcam": null}}']
)
def test_a_damaged_file_is_reported_once_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / f"{MODEL}.json"
    path.write_text(text)
    records = Records(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert records.sanity(MODEL) == {}
        assert records.sanity(MODEL) == {}
    (line,) = caplog.messages
    assert str(path) in line
    assert "damaged" in line
    records.remember(MODEL, "gradcam", PASSES)
    assert records.sanity(MODEL) == {"gradcam": PASSES}
    assert path.with_suffix(".damaged").read_text() == text


def test_a_file_that_cannot_be_read_is_reported_once_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{MODEL}.json").mkdir()
    records = Records(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert records.sanity(MODEL) == records.sanity(MODEL) == {}
    assert len(caplog.messages) == 1


def test_what_a_later_version_adds_is_no_damage(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.remember(MODEL, "gradcam", PASSES)
    path = tmp_path / f"{MODEL}.json"
    found = json.loads(path.read_text())
    found["later"] = found["sanity"]["gradcam"]["later"] = 1
    path.write_text(json.dumps(found))
    assert records.sanity(MODEL) == {"gradcam": PASSES}


@pytest.mark.parametrize("fingerprint", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_a_fingerprint_names_a_file(tmp_path: Path, fingerprint: str) -> None:
    with pytest.raises(ValueError, match="no fingerprint"):
        Records(tmp_path).sanity(fingerprint)


def test_a_record_is_never_nan() -> None:
    with pytest.raises(ValidationError):
        StageRecord(layers=("head",), similarity=float("nan"))


def _remember(folder: Path, method: str) -> None:
    Records(folder).remember(MODEL, method, PASSES)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_remember, args=(tmp_path, f"method_{n}")) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(Records(tmp_path).sanity(MODEL)) == {f"method_{n}" for n in range(6)}
