"""`docs/OPERATIONS.md` names settings, metrics, errors, commands and files that there are."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command
from typer.testing import CliRunner

from app.cli import app
from app.config import Settings
from app.jobs.database import Database
from app.jobs.metrics import page as jobs_page
from app.jobs.reading import Reading
from app.metrics import Metrics, _workers_ended, prepare_ended
from app.problems import documented_errors

REPOSITORY = Path(__file__).parents[1]
TEXT = (REPOSITORY / "docs" / "OPERATIONS.md").read_text()
RULES = [rule for block in re.findall(r"^```yaml\n(groups:.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
         for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]  # fmt: skip


def test_every_setting_that_is_named_is_one() -> None:
    known = {f"HEATLENS_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"HEATLENS_[A-Z_]+\b", TEXT)) <= known


def test_every_metric_and_its_labels_are_there(tmp_path: Path) -> None:
    metrics, database = Metrics(), Database(Settings(data_dir=tmp_path))
    database.migrate()
    metrics.request("/v1/explain", "POST", 500, 1.0)
    metrics.problem("queue_full")
    metrics.entered("m")
    metrics.ran("m", "gradcam", [0.0], 1.0)
    prepare_ended()
    page = (metrics.page() + jobs_page(Reading(database))).decode()
    database.close()
    families = [*text_string_to_metric_families(page), *_workers_ended().collect()]
    samples = [sample for family in families for sample in family.samples]
    labels = {sample.name: set(sample.labels) for sample in samples}
    names = re.findall(r"\b(heatlens_\w+)(?:\{([^}]*)\})?", " ".join(rule["expr"] for rule in RULES))
    assert names
    for name, asked in names:
        assert name in labels
        assert set(re.findall(r"(\w+)=~?\"", asked)) <= labels[name]


def test_a_comparison_of_metrics_with_other_labels_says_which_count() -> None:
    """Else nothing is equal to anything, and the alert never comes."""
    for rule in RULES:
        parts = re.split(r" (?:and|or|unless) (?!on )", rule["expr"])
        labels = [set(re.findall(r"(\w+)=~?\"", re.split(r" (?:and|or|unless) on ", part)[0])) for part in parts]
        assert all(label == labels[0] for label in labels), rule["alert"]


def test_every_error_that_is_named_can_be_answered() -> None:
    codes = {error.code: error.status for error in documented_errors()}
    for status, code in re.findall(r"\b([45]\d\d) `(\w+)`", TEXT):
        assert codes[code] == int(status)
    for names in re.findall(r'code=~?"([a-z_|]+)"', TEXT):
        assert set(names.split("|")) <= codes.keys()


def test_rules_have_a_name_of_their_own_and_wait() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("line", sorted(set(re.findall(r"heatlens ((?:keys|models|doctor)\b[a-z ,\-\d]*)", TEXT))))
def test_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)
    command = get_command(app)
    path = []
    while words and hasattr(command, "commands") and words[0] in command.commands:
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    assert not hasattr(command, "commands"), f"{line}: of {path} there is no such command"
    shown = CliRunner().invoke(app, [*path, "--help"]).stdout
    for option in (word for word in words if word.startswith("--")):
        assert option in shown


def test_files_that_are_named_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (REPOSITORY / "docs" / target).exists(), target
