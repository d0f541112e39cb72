"""`docs/OPERATIONS.md` names settings, metrics, errors, commands and files that there are."""

import re
import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command
from typer.testing import CliRunner

from app import create_app
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


def test_each_error_that_a_rule_counts_has_a_zero_before_the_first(models_dir: Path, tmp_path: Path) -> None:
    """Of a series that begins at one, Prometheus sees no increase, so the first incident would be silent."""
    service = create_app(Settings(models_dir=models_dir, default_model="small", data_dir=tmp_path))
    page = service.test_client().get("/metrics").text
    service.extensions["heatlens"].close()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    zeros = {each.labels["code"] for each in samples if each.name == "heatlens_problems_total" and each.value == 0}
    asked = re.findall(r'heatlens_problems_total\{code=~?"([a-z_|]+)"', " ".join(rule["expr"] for rule in RULES))
    assert asked
    assert {code for codes in asked for code in codes.split("|")} <= zeros


def test_no_rule_takes_what_was_never_counted_for_zero() -> None:
    """A sum of nothing is nothing, which equals no number; `unless` says what is meant."""
    for rule in RULES:
        assert not re.search(r"\) == 0", rule["expr"]), rule["alert"]


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


def test_the_backup_takes_what_is_there_and_shows_it_to_nobody_else(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    database = Database(Settings(data_dir=data))
    database.migrate()
    database.close()
    (block,) = re.findall(r"^(# one machine, .*?)^# Postgres", TEXT, re.DOTALL | re.MULTILINE)
    command = ["bash", "-euc", block.replace("/data", str(data)).replace("/backup", str(backup))]
    subprocess.run(command, check=True)
    assert [file.name for file in backup.iterdir()] == ["jobs.db"]
    assert (backup.stat().st_mode & 0o777, (backup / "jobs.db").stat().st_mode & 0o777) == (0o700, 0o600)
    (data / "jobs" / "1").mkdir(parents=True)
    (data / "jobs" / "1" / "0.jpg").write_bytes(b"picture")
    (data / "embed.secret").write_text("secret")
    subprocess.run(command, check=True)
    assert (backup / "jobs" / "1" / "0.jpg").read_bytes() == b"picture"
    assert (backup / "embed.secret").read_text() == "secret"
    with sqlite3.connect(backup / "jobs.db") as restored:
        assert restored.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert restored.execute("SELECT count(*) FROM sqlite_master").fetchone() > (0,)
    restored.close()
