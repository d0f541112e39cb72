"""`heatlens evaluate`: the table, the files, what fails and what does not apply."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.cli.pictures import methods_of, pictures_of
from app.evaluation import Evaluation
from tests.support import PICTURES


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, models_dir: Path) -> None:
    monkeypatch.setenv("HEATLENS_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("HEATLENS_TORCH_THREADS", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deeper").mkdir(parents=True)
    for name, place in (("chelsea.png", "cat.png"), ("coffee.png", "deeper/cup.png"), ("rocket.jpg", "rocket 10.jpg")):
        shutil.copy(PICTURES / name, folder / place)
    (folder / "notes.txt").write_text("no picture, and no name of one")
    return folder


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["evaluate", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_table_of_methods_and_controls_and_the_files(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out_folder = tmp_path / "deep" / "out"
    methods = ["--method", "gradcam", "--method", "saliency", "--method", "legrad"]
    code, out, _ = run("small", "--images", str(folder), *methods, "--out", str(out_folder))
    assert code == 0
    lines = out.splitlines()
    assert max(len(line.rstrip()) for line in lines[:13]) <= 80
    assert "…" not in "".join(lines[:13])
    assert lines[0].split() == ["method", "insert", "delete", "lead", "better", "noise", "mirror", "secs"]
    firsts = [re.split(r"\s{2,}", line.strip())[0] for line in lines[1:13:2]]
    assert firsts == ["gradcam", "(elsewhere)", "saliency", "(elsewhere)", "(centre first)", "(edge first)"]
    assert [len(line.split()) for line in lines[3:13:2]] == [
        3,
        8,
        3,
        4,
        4,
    ]  # a control has insertion and deletion alone
    assert "left out legrad: " in out
    found = Evaluation.model_validate_json((out_folder / "evaluation.json").read_text())
    assert found.pictures == ["cat.png", "deeper/cup.png", "rocket 10.jpg"]
    assert [row.name for row in found.methods] == ["gradcam", "saliency"]
    assert len(found.outcomes) == 6
    assert all(0 < outcome.seconds < 60 for outcome in found.outcomes)
    assert found.methods[0].noise is not None
    assert "<svg" in (out_folder / "evaluation.html").read_text()
    assert lines[-1] == str(out_folder / "evaluation.html")


def test_a_picture_that_fails_is_counted_once_and_named(folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"not a picture")
    methods = ["--method", "gradcam", "--method", "gradcam++"]
    code, out, err = run("small", "--images", str(folder), *methods, "--no-stability")
    assert code == 1
    assert " ".join(err.split()).count("broken.jpg: The content is not a picture") == 1
    assert "gradcam++ " in out
    code, out, _ = run("small", "--images", str(folder), *methods, "--no-stability", "--json")
    found = json.loads(out)
    assert code == 1
    assert [failure["picture"] for failure in found["failures"]] == ["broken.jpg"]
    assert found["methods"][0]["pictures"] == 3
    assert found["methods"][0]["noise"] is None
    assert found["outcomes"][0]["stability"] is None


def test_a_picture_on_which_one_method_fails(folder: Path) -> None:
    """The network answers NaN to a white picture."""
    from PIL import Image

    Image.new("RGB", (64, 64), "white").save(folder / "white.png")
    code, _, err = run("nan", "--images", str(folder), "--method", "gradcam", "--no-stability")
    assert code == 1
    assert "failed white.png, gradcam: " in " ".join(err.split())


def test_nothing_that_applies_is_no_success(folder: Path) -> None:
    code, out, _ = run("small", "--images", str(folder), "--method", "legrad")
    assert code == 1
    assert out.startswith("left out legrad: ")


def test_limit_draws_the_same_pictures_for_the_same_seed(folder: Path) -> None:
    names = pictures_of(folder, None, 0)
    drawn = [pictures_of(folder, 2, seed) for seed in range(20)]
    assert all(len(two) == 2 and [name for name in names if name in two] == two for two in drawn)
    assert drawn == [pictures_of(folder, 2, seed) for seed in range(20)]
    assert {name for two in drawn for name in two} == set(names)  # each has its turn


def test_pictures_are_found_below_and_sorted_as_people_do(tmp_path: Path) -> None:
    for name in ("10.png", "2.PNG", ".hidden.png", "sub/1.jpg", "__MACOSX/3.png", "words.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert pictures_of(tmp_path, None, 0) == ["2.PNG", "10.png", "sub/1.jpg"]


def test_methods_are_taken_once_and_all_are_all() -> None:
    import explainers

    assert methods_of(["rise", "gradcam", "rise"]) == ["rise", "gradcam"]
    assert methods_of(["gradcam", "all"]) == explainers.names()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["small"], 2, "--images"),
        (["small", "--images", "nowhere"], 2, "nowhere"),
        (["small", "--images", "FOLDER", "--method", "grad-cam"], 2, "There is no method 'grad-cam'"),
        (["small", "--images", "EMPTY"], 2, "has no pictures"),
        (["smal", "--images", "FOLDER"], 1, "small"),
        (["small", "--images", "FOLDER", "--limit", "0"], 2, "--limit"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"FOLDER": str(folder), "EMPTY": str(tmp_path / "empty")}
    found, _, err = run(*(places.get(argument, argument) for argument in arguments))
    assert found == code
    assert said in " ".join(err.split())
