"""The command line, as a process where it matters and in this process where not."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from app.cli import SAMPLE, app
from app.config import Settings
from tests.support import PICTURES

CAT = PICTURES / "chelsea.png"


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, models_dir: Path) -> None:
    monkeypatch.setenv("HEATLENS_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("HEATLENS_TORCH_THREADS", "1")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_explain_writes_a_picture_for_each_and_says_what_it_saw(tmp_path: Path) -> None:
    code, out, _ = run("explain", str(CAT), str(PICTURES / "coffee.png"), "--out", str(tmp_path), "--legend")
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"chelsea.heat.jpg", "coffee.heat.jpg"}
    assert "cat (" in out
    assert "espresso (" in out
    with Image.open(tmp_path / "chelsea.heat.jpg") as picture:
        assert picture.width == 451
        assert picture.height > 300  # the legend


def test_explain_goes_on_after_a_bad_picture_and_fails_at_the_end(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    code, out, err = run("explain", str(broken), str(CAT), "--out", str(tmp_path), "--format", "npy")
    assert code == 1
    assert "broken.jpg" in err
    assert "chelsea.heat.npy" in out
    assert np.load(tmp_path / "chelsea.heat.npy").shape == (300, 451)


def test_explain_as_json(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--json", "--method", "saliency", "--set", "reduction=signed_sum"]
    code, out, _ = run("explain", str(CAT), "--model", "small", "--target", "ant", *arguments)
    (row,) = json.loads(out)
    assert code == 0
    assert (row["target"], row["label"]) == (0, "ant")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "nowhere.jpg"], "nowhere.jpg"),
        (["explain", str(CAT), "--set", "reduction"], "NAME=VALUE"),
        (["explain"], "Missing argument"),
        (["nonsense"], "nonsense"),
        (["explain", str(CAT), "--view", "nonsense"], "view: input should be"),
        (["explain", str(CAT), "--set", "nonsense=1"], "There is no option 'nonsense'"),
    ],
)
def test_wrong_use_is_2(arguments: list[str], words: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert words in err


def test_an_unknown_model_is_1_and_named() -> None:
    code, _, err = run("models", "show", "efficientnet_lit0")
    assert code == 1
    assert "efficientnet_lite0" in err


def test_models_list_show_layers() -> None:
    code, out, _ = run("models", "list", "--json")
    assert code == 0
    assert json.loads(out)["models"][0]["name"] == "efficientnet_lite0"
    code, out, _ = run("models", "show", "small", "--json")
    assert json.loads(out)["default_layer"] == "second"
    code, out, _ = run("models", "layers", "small")
    assert "second (default)" in out


def test_models_verify_explains_the_sample_with_each() -> None:
    code, out, _ = run("models", "verify", "efficientnet_lite0", "small")
    assert code == 0
    assert "efficientnet_lite0: the sample picture is" in out
    code, out, _ = run("models", "verify", "small", "resnet50")
    assert code == 1
    assert "failed  resnet50: Weights file" in out


def test_models_fetch_says_what_is_there_and_what_cannot_be_had() -> None:
    code, out, _ = run("models", "fetch", "efficientnet_lite0", "small")
    assert code == 0
    assert "efficientnet_lite0: sha256 57934424" in out
    assert "small: random weights" in out


def test_methods_and_doctor() -> None:
    code, out, _ = run("methods", "--json")
    assert [method["name"] for method in json.loads(out)["methods"]] == ["gradcam", "saliency"]
    code, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["versions"]["torch"].startswith("2.")
    assert set(report["settings"]) == {f"HEATLENS_{name.upper()}" for name in Settings.model_fields}


def test_the_sample_is_the_cat() -> None:
    with Image.open(SAMPLE) as sample, Image.open(CAT) as cat:
        difference = np.abs(np.asarray(sample, float) - np.asarray(cat.convert("RGB"), float))
    assert difference.mean() < 3  # a JPEG of the same picture


def test_pictures_whose_results_would_overwrite_each_other_are_refused(tmp_path: Path) -> None:
    twin = tmp_path / "chelsea.jpg"
    twin.write_bytes(SAMPLE.read_bytes())
    code, _, err = run("explain", str(CAT), str(twin), "--out", str(tmp_path))
    assert code == 2
    assert "would both be written to" in err
    assert not (tmp_path / "chelsea.heat.jpg").exists()


def test_names_with_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    odd = tmp_path / "a[/b].jpg"
    odd.parent.mkdir(parents=True, exist_ok=True)
    odd.write_bytes(SAMPLE.read_bytes())
    code, out, _ = run("explain", str(odd))
    assert code == 0
    assert "a[/b].heat.jpg" in out


def test_help_names_the_commands_within_80_columns() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("serve", "explain", "models", "methods", "doctor"):
        assert command in out
    assert max(map(len, out.splitlines())) <= 80
