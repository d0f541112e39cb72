"""The README cannot rot: its blocks are run, its tables are compared with the code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from flask.testing import FlaskClient
from safetensors.torch import save_file

import explainers
from app.config import Settings
from app.jobs.options import JobOptions
from app.schemas.options import ExplainOptions
from models import Registry, load
from tests.conftest import Server

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def column(heading: str, number: int = 0) -> list[str]:
    """Return a column of the table whose first heading is `heading`, without the back-ticks."""
    table = README.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [row.strip("| ").split(" | ")[number].strip("`") for row in table]


@pytest.mark.server
@pytest.mark.parametrize("block", blocks("bash"), ids=lambda block: block.splitlines()[0][:40])
def test_shell_blocks_run(server: Server, tmp_path: Path, block: str) -> None:
    done = _run(["bash", "-euo", "pipefail", "-c", block], server, tmp_path)
    assert done.returncode == 0, done.stderr
    for name in re.findall(r"-o (\S+\.jpg)", block):
        assert (tmp_path / name).read_bytes().startswith(b"\xff\xd8")


@pytest.mark.server
@pytest.mark.parametrize("block", blocks("python"))
def test_python_blocks_run(server: Server, tmp_path: Path, block: str) -> None:
    done = _run([sys.executable, "-c", block], server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heat.jpg").read_bytes().startswith(b"\xff\xd8")


def _run(command: list[str], server: Server, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "app").symlink_to(REPOSITORY / "app")
    command = [word.replace("http://127.0.0.1:8000", server.url) for word in command]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HEATLENS_TORCH_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_toml_block_is_a_model(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "defects.toml").write_text(block)
    save_file(timm.create_model("resnet18", num_classes=3).state_dict(), tmp_path / "defects.safetensors")
    model = load(Registry(tmp_path).get("defects"))
    assert model.labels == ("scratch", "dent", "fine")
    assert model.scores(torch.zeros(1, 3, 224, 224)).shape == (1, 3)


def test_make_targets_exist() -> None:
    for target in set(re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE)):
        done = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, check=False)
        assert done.returncode == 0, target


def test_the_error_block_is_what_the_server_answers(client: FlaskClient, cat: bytes) -> None:
    (block,) = blocks("json")
    shown = json.loads(block)
    answered = json.loads(client.put("/v1/explain?colourmap=jet", data=cat).data)
    assert set(shown) == set(answered)
    stable = set(shown) - {"request_id", "choices"}
    assert {name: shown[name] for name in stable} == {name: answered[name] for name in stable}


def test_every_setting_is_listed_with_its_default() -> None:
    listed = dict(zip(column("variable"), column("variable", 1), strict=True))
    assert listed == {
        f"HEATLENS_{name.upper()}": _shown(field.default) for name, field in Settings.model_fields.items()
    }


def _shown(default: object) -> str:
    return "" if default in ((), None, {}) else str(default)


def test_every_option_is_listed() -> None:
    assert column("option") == list(ExplainOptions.model_fields)


def test_every_option_of_a_job_is_listed() -> None:
    assert set(column("job option")) == set(JobOptions.model_fields) - set(ExplainOptions.model_fields)


def test_every_method_is_listed_with_its_family_and_its_cost() -> None:
    listed = dict(zip(column("method"), zip(column("method", 1), column("method", 2), strict=True), strict=True))
    methods = map(explainers.get, explainers.names())
    assert listed == {method.name: (method.family, method.cost_class) for method in methods}


def test_what_is_to_be_minded_of_a_method_is_not_passed_over() -> None:
    for name, mind in zip(column("method"), column("method", 4), strict=True):
        method = explainers.get(name)
        assert ("fails the randomisation check" in mind) == method.fails_randomisation, name
        assert ("same map for every class" in mind) == (not method.class_specific), name


def test_every_route_is_listed(client: FlaskClient) -> None:
    routes = README.split("\n| route |", 1)[1].split("\n\n", 1)[0]
    for rule in client.application.url_map.iter_rules():
        shown = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        if shown.startswith(("/v1", "/healthz", "/readyz", "/metrics")):
            assert shown in routes, shown
