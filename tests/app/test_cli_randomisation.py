"""`heatlens diagnose randomisation` where what it finds cannot be kept."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.records import Records


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, models_dir: Path, tmp_path: Path) -> Path:
    """Return the data folder, which is not there yet."""
    monkeypatch.setenv("HEATLENS_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("HEATLENS_TORCH_THREADS", "1")
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["diagnose", "randomisation", "small", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_what_could_not_be_kept_is_not_measured(data: Path) -> None:
    data.write_text("no folder")
    code, out, err = run("--json")
    assert code == 1
    assert "cannot be kept in HEATLENS_DATA_DIR" in err
    assert str(data) in err
    assert out == ""


def test_what_is_found_is_told_though_it_is_not_remembered(data: Path) -> None:
    """In the record's place is a folder, which cannot be put aside either: a file has that name."""
    assert run()[0] == 0
    (file,) = (data / "records").glob("*.json")
    file.unlink()
    (file / "in").mkdir(parents=True)
    file.with_suffix(".damaged").touch()
    code, out, _ = run("--method", "gradcam", "--method", "saliency", "--json")
    told = json.loads(out)
    assert code == 1
    assert set(told["sanity"]) == set(told["failed"]) == {"gradcam", "saliency"}
    assert "not remembered" in told["failed"]["gradcam"]
    code, out, err = run("--method", "saliency")
    assert code == 1
    assert " saliency" in out
    assert "failed saliency: What was found is not remembered" in " ".join(err.split())


def test_to_prepare_leaves_nothing_behind(tmp_path: Path) -> None:
    Records(tmp_path / "deep" / "records").prepare()
    assert [path.name for path in (tmp_path / "deep" / "records").iterdir()] == [".lock"]
