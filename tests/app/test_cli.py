"""The command line, as a process where it matters and in this process where not."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import explainers
from app.cli import SAMPLE, app
from app.cli.console import watched
from app.config import Settings
from app.engine import Job
from tests.support import PICTURES

CAT = PICTURES / "chelsea.png"
COSTS = {"low", "medium", "high"}


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
        (["explain", str(CAT), "--set", "samples=20"], "gradcam has no parameter 'samples'; valid are fusion"),
        (["explain", str(CAT), "--method", "rise", "--set", "samples=1"], "samples: input should be greater"),
        (["explain", str(CAT), "--method", "grad-cam"], "There is no method 'grad-cam'"),
        (["explain", str(CAT), "--method", "eigencam", "--versus", "1"], "leave versus out"),
        (["methods", "gradcam", "rise"], "unexpected extra argument"),
    ],
)
def test_wrong_use_is_2_and_loads_no_model(monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.setattr("app.network.load", None)
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


@pytest.mark.parametrize("columns", [80, 120])
def test_methods_are_listed_by_family_with_their_cost(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run("methods")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= columns
    listed = {line.split()[0]: line.split()[1] for line in lines if line.split()[1:2] and line.split()[1] in COSTS}
    assert listed == {name: explainers.get(name).cost_class for name in explainers.names()}
    assert out.index("Class activation") < out.index("gradcam ") < out.index("Gradients:") < out.index("saliency ")
    words = " ".join(out.split())
    assert f"{explainers.get('guided_backprop').summary} Fails the randomisation check." in words
    assert f"{explainers.get('gradcam').summary} Fails" not in words


def test_one_method_tells_all_of_itself() -> None:
    code, out, _ = run("methods", "rise")
    words = " ".join(out.split())
    method = explainers.get("rise")
    assert code == 0
    for fact in (method.summary, method.weakness, method.sanity, method.paper, f"high: {method.cost}"):
        assert fact in words
    samples = method.parameters.model_json_schema()["properties"]["samples"]
    assert f"samples {samples['default']} from {samples['minimum']} to {samples['maximum']}" in words
    code, out, _ = run("methods", "rise", "--json")
    assert json.loads(out)["name"] == "rise"
    code, _, err = run("methods", "rize")
    assert code == 2
    assert "There is no method 'rize'" in err


def test_a_long_method_with_its_parameters(tmp_path: Path) -> None:
    arguments = ["--model", "small", "--method", "rise", "--set", "samples=200", "--format", "npy"]
    code, _, _ = run("explain", str(CAT), "--out", str(tmp_path), *arguments)
    assert code == 0
    assert np.load(tmp_path / "chelsea.heat.npy").any()
    code, out, _ = run("explain", str(CAT), "--out", str(tmp_path), "--model", "small", "--method", "eigencam")
    assert code == 0
    assert "the map is the same for every class" in out


def test_a_bar_shows_the_steps_of_long_work_and_none_that_of_short(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr("app.cli.console.err", Console(file=terminal, force_terminal=True, width=80))
    job: Job[int, int] = Job("k", 0, deadline=1, limit="its time", clock=lambda: 0)
    for _, watch in watched(["cat.jpg"], "explaining"):
        watch(job)
        assert "/" not in terminal.getvalue()
        job.progress = (30, 200)
        watch(job)
        assert "30/200" in terminal.getvalue()
        assert "explaining" not in terminal.getvalue()  # one picture needs no bar of pictures
    for _ in watched(["cat.jpg", "dog.jpg"], "explaining"):
        pass
    assert "explaining" in terminal.getvalue()


def test_doctor() -> None:
    code, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["versions"]["torch"].startswith("2.")
    assert set(report["settings"]) == {f"HEATLENS_{name.upper()}" for name in Settings.model_fields}


def test_doctor_cuts_nothing_off_and_shows_first_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "/" + "Z" * 100
    monkeypatch.setenv("HEATLENS_DATA_DIR", folder)
    monkeypatch.setenv("COLUMNS", "80")
    out = run("doctor")[1]
    given = out[out.index("settings given") : out.index("settings not given")]
    assert "…" not in out
    assert given.count("Z") == 100
    assert "HEATLENS_DATA_DIR" in given
    assert "HEATLENS_PORT" not in given


def test_doctor_shows_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_DATABASE_URL", "postgresql://me:hush@host/jobs")
    assert (
        json.loads(run("doctor", "--json")[1])["settings"]["HEATLENS_DATABASE_URL"] == "postgresql://me:***@host/jobs"
    )


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
