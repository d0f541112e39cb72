"""`heatlens diagnose`: what it prints, what it writes, and how it ends."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from app.cli import app, tables
from app.records import Records, SanityRecord, StageRecord
from tests.app.test_records import PASSES
from tests.support import PICTURES

CAT, COFFEE = str(PICTURES / "chelsea.png"), str(PICTURES / "coffee.png")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, models_dir: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("HEATLENS_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("HEATLENS_TORCH_THREADS", "1")
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["diagnose", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_gradient_flow_has_every_layer_the_verdict_and_a_chart(tmp_path: Path) -> None:
    code, out, _ = run("gradient-flow", CAT, COFFEE, "--model", "small", "--chart", str(tmp_path / "flow.svg"))
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["first", "second", "head"]
    assert "of 2 picture(s)" in out
    assert lines[-1] == str(tmp_path / "flow.svg")
    assert "Gradient flow" in (tmp_path / "flow.svg").read_text()


def test_gradient_flow_as_json_of_a_loss() -> None:
    code, out, _ = run("gradient-flow", CAT, "--model", "small", "--label", "ant", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["objective"]["kind"] == "cross_entropy"
    assert answer["objective"]["classes"] == [0]
    assert [layer["name"] for layer in answer["layers"]] == ["first", "second", "head"]


def test_a_model_that_always_answers_nan_is_told_where() -> None:
    code, out, _ = run("gradient-flow", CAT, "--model", "always_nan")
    assert code == 0
    assert "score that is not finite of 1 picture(s)" in out
    assert "\nnon finite\n- " in out
    assert "second" in out.partition("\nnon finite\n")[2]
    code, out, _ = run("activations", CAT, "--model", "always_nan")
    assert code == 0
    assert [("NaN" in line) for line in out.splitlines()[1:4]] == [False, True, True]
    verified = CliRunner().invoke(app, ["models", "verify", "always_nan"])
    assert verified.exit_code == 1
    assert "answers NaN or infinity" in " ".join(verified.output.split())


def test_windows_have_no_similarity_and_it_is_said_why() -> None:
    code, out, _ = run("activations", CAT, COFFEE, "--model", "windows", "--layer", "window")
    assert code == 0
    assert "Similarity" not in out
    assert "no vector per picture" in " ".join(out.split())


def test_parameters_of_no_layer_and_notes_are_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from app.schemas.diagnostics import FlowVerdict, ParameterFlow

    own = ParameterFlow(
        name="pos_embed", shape=[1, 5, 8], norm=2.0, gradient_norm=0.5, ratio=0.25, zero_fraction=0.0, nan=0, inf=1
    )
    assert tables._parameter_row(own) == ["pos_embed", "-", "-", "-", "0.25", "0%", "1x5x8", "1 Inf"]
    tables._say_verdict(FlowVerdict(kind="ok", findings=[], notes=["scale starts at zero."]))
    assert capsys.readouterr().out.splitlines() == ["ok: nothing stands out", "- scale starts at zero."]


def test_activations_of_all_layers_and_of_one(tmp_path: Path) -> None:
    chart, arrays, picture = (tmp_path / name for name in ("all.png", "deep/second.npz", "second.jpg"))
    code, out, _ = run("activations", CAT, "--model", "small", "--chart", str(chart))
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [
        ["first", "6x16x16"],
        ["second", "8x8x8"],
        ["head", "4"],
    ]
    with Image.open(chart) as drawn:
        assert drawn.format == "PNG"
    code, out, _ = run("activations", CAT, COFFEE, "--model", "small", "--layer", "second", "--out", str(arrays))
    assert code == 0
    assert "Similarity of the pictures in second" in out
    with np.load(arrays) as found:
        assert found["features"].shape == (2, 8, 8, 8)
    code, _, _ = run("activations", CAT, "--model", "small", "--layer", "second", "--out", str(picture))
    assert code == 0
    with Image.open(picture) as drawn:
        assert drawn.format == "JPEG"


def test_sensitivity_lies_beside_the_picture_unless_told_otherwise(tmp_path: Path) -> None:
    image = tmp_path / "cat.png"
    image.write_bytes(Path(CAT).read_bytes())
    code, out, _ = run("sensitivity", str(image), "--model", "small", "--layer", "second", "--channel", "3")
    assert code == 0
    assert out.splitlines()[0].startswith("second, channel 3: ")
    with Image.open(tmp_path / "cat.sensitivity.jpg") as drawn:
        assert drawn.size == (451, 300)
    code, out, _ = run(
        "sensitivity", str(image), "--model", "small", "--row", "2", "--column", "5", "--out", str(tmp_path / "s.npy"),
        "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["unit"]["column"] == 5
    assert np.load(tmp_path / "s.npy").shape == (300, 451)


def test_compare_two_methods_and_two_models(tmp_path: Path) -> None:
    out_file = tmp_path / "compared.png"
    code, out, _ = run("compare", CAT, "--model", "small", "--with-method", "layercam", "--out", str(out_file))
    assert code == 0
    assert "layercam" in out
    assert "rank correlation" in out
    with Image.open(out_file) as drawn:
        assert drawn.width > 3 * 451
    code, out, _ = run(
        "compare", CAT, "--model", "small", "--with-model", "binary", "--target", "0", "--json", "--out", str(out_file)
    )
    answer = json.loads(out)
    assert code == 0
    assert (answer["first"]["model"]["name"], answer["second"]["model"]["name"]) == ("small", "binary")


def test_compare_takes_each_sides_own_parameters(tmp_path: Path) -> None:
    arguments = ["--model", "small", "--method", "saliency", "--set", "with_reduction=signed_sum", "--json"]
    code, out, _ = run("compare", CAT, *arguments, "--out", str(tmp_path / "c.npz"))
    answer = json.loads(out)
    assert code == 0
    assert answer["first"]["parameters"] != answer["second"]["parameters"]
    assert answer["second"]["parameters"]["reduction"] == "signed_sum"
    with np.load(tmp_path / "c.npz") as found:
        assert found["difference"].shape == (300, 451)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["gradient-flow", CAT, "--target", "1", "--label", "2"], 2, "give one of them"),
        (["gradient-flow", CAT, "--chart", "flow.pdf"], 2, "flow.pdf: the name has to end in .svg, .png"),
        (["gradient-flow", "nowhere.png"], 2, "nowhere.png"),
        (
            ["gradient-flow", CAT, CAT, "--model", "small", "--target", "0", "--target", "1", "--target", "2"],
            2,
            "3 times",
        ),
        (["gradient-flow", CAT, "--model", "small", "--target", "7"], 1, "0 to 3"),
        (["gradient-flow", CAT, "--model", "smal"], 1, "small"),
        (["activations", CAT, "--out", "a.npz"], 2, "name it with --layer"),
        (["activations", CAT, "--model", "small", "--layer", "secnd"], 1, "second"),
        (["activations", CAT, "--model", "small", "--layer", "head", "--out", "head.png"], 2, "no spatial axes"),
        (["sensitivity", CAT, "--model", "small", "--row", "1"], 2, "column: a place has a row and a column"),
        (["sensitivity", CAT, "--model", "small", "--channel", "8", "--out", "s.jpg"], 2, "0 to 7"),
        (["sensitivity", CAT, "--view", "sideways", "--out", "s.jpg"], 2, "view: input should be"),
        (
            ["compare", CAT, "--of", "features", "--with-layer", "bn1", "--set", "samples=3", "--out", "c.jpg"],
            2,
            "samples",
        ),
        (["compare", CAT, "--model", "small", "--out", "c.jpg"], 2, "Both sides are the same"),
        (
            ["compare", CAT, "--model", "small", "--with-method", "rize", "--out", "c.jpg"],
            2,
            "There is no method 'rize'",
        ),
        (["compare", CAT, "--set", "reduction", "--out", "c.jpg"], 2, "NAME=VALUE"),
        (["compare", CAT, "--out", "c.tiff"], 2, ".jpg, .png, .webp, .npy, .npz"),
        (["randomisation", "small", "--method", "grad-cam"], 2, "There is no method 'grad-cam'"),
    ],
)
def test_what_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    """2 for wrong use, 1 for what only the model or the picture can tell; and no file is left."""
    monkeypatch.chdir(tmp_path)
    found, _, err = run(*arguments)
    assert found == code
    assert said in " ".join(err.split())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_picture_that_is_none_is_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    for command in ("gradient-flow", "activations", "sensitivity", "compare"):
        code, _, err = run(
            command, str(broken), "--model", "small", *["--with-method", "saliency"] * (command == "compare")
        )
        assert code == 1, command
        assert "not a picture" in err


def test_a_verdict_is_told_with_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    from app.schemas.diagnostics import FlowFinding, FlowVerdict

    found = FlowFinding(kind="non_finite", layers=["a[0]"], reason="a[0] is the first to answer NaN.")
    tables._say_verdict(FlowVerdict(kind="non_finite", findings=[found]))
    tables._say_verdict(FlowVerdict(kind="ok", findings=[]))
    assert capsys.readouterr().out.splitlines() == [
        "non finite",
        "- a[0] is the first to answer NaN.",
        "ok: nothing stands out",
    ]


def test_sanity_is_told_stage_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    layers = tuple(f"layer{n}" for n in range(6))
    record = PASSES.model_copy(update={"stages": (StageRecord(layers=layers, similarity=0.125), *PASSES.stages)})
    tables.print_sanity({"gradcam": record}, {"lime": "No."})
    told = capsys.readouterr()
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert lines[:2] == ["passes gradcam", "The maps change with the weights."]
    assert lines[3] == "0.12 layer0 to layer5, 6 layers"
    assert lines[5] == "- stem, bn"
    assert "failed lime: No." in " ".join(told.err.split())


def test_randomisation_is_measured_and_remembered(tmp_path: Path) -> None:
    """What is printed is what a later process reads of the model."""
    code, out, _ = run("randomisation", "small", "--method", "gradcam", "--method", "saliency", "--seed", "3", "--json")
    assert code == 0
    told = json.loads(out)["sanity"]
    folder = tmp_path / "data" / "records"
    (file,) = folder.glob("*.json")
    remembered = Records(folder).sanity(file.stem)
    assert set(remembered) == {"gradcam", "saliency"}
    assert SanityRecord.model_validate(told["gradcam"]) == remembered["gradcam"]
    assert remembered["gradcam"].layers == ("second",)
    assert remembered["gradcam"].seed == 3
    assert remembered["gradcam"].pictures == 5
    assert sorted(layer for stage in remembered["saliency"].stages for layer in stage.layers) == [
        "first",
        "head",
        "second",
    ]


def test_randomisation_of_a_model_that_takes_one_picture_at_a_time() -> None:
    """It has the numbers of one that takes several, and so the same is found."""
    found = []
    for name in ("single", "small"):
        code, out, _ = run("randomisation", name, "--method", "saliency", "--json")
        assert code == 0
        found.append(json.loads(out)["sanity"]["saliency"])
    assert found[0]["pictures"] == 5
    assert found[0]["verdict"] == found[1]["verdict"]
    for one, other in zip(found[0]["stages"], found[1]["stages"], strict=True):
        assert one["layers"] == other["layers"]
        assert one["similarity"] == pytest.approx(other["similarity"], abs=1e-3)


def test_randomisation_of_a_folder_goes_on_after_a_method_that_fails(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("one.png", "two.png"):
        (folder / name).write_bytes(Path(CAT).read_bytes())
    arguments = ["--method", "legrad", "--method", "gradcam", "--images", str(folder), "--limit", "1"]
    code, out, err = run("randomisation", "small", *arguments)
    assert code == 1
    assert "failed legrad" in " ".join(err.split())
    assert " gradcam" in out
