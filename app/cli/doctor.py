"""`heatlens doctor`: what is wrong with how a server is set up here, and what there is."""

import json
import logging
from typing import Annotated, Any

import typer
from rich.markup import escape

from app.cli.console import print_table, say, text
from app.cli.options import AsJson
from app.config import PREFIX, Settings, load_settings


def doctor(
    as_json: AsJson = False,
    brief: Annotated[bool, typer.Option("--brief", help="Only what is wrong.")] = False,
) -> None:
    """Find what is wrong with how the server is set up, and show what there is: devices, models, settings.

    Run it with the server's own environment and user. Exit code 1: something is wrong; warnings alone are 0.
    2: a setting cannot be read, and nothing else was looked at.
    """
    from app.doctor import examine

    settings = load_settings()
    logging.getLogger("app").addHandler(logging.NullHandler())  # what it would log is among the findings
    report = examine(settings)
    found = report["findings"]
    if as_json:
        print(json.dumps({"findings": found} if brief else report, indent=2))  # noqa: T201
    else:
        if not brief:
            given = {PREFIX + name.upper() for name in settings.model_fields_set}
            _show_facts(_apart({title: facts for title, facts in report.items() if title != "findings"}, given))
        _show_findings(found)
    raise typer.Exit(any(finding["level"] == "error" for finding in found))


def _apart(report: dict[str, dict[str, Any]], given: set[str]) -> dict[str, dict[str, Any]]:
    """Return the report with the settings that are given before the many that are not."""
    parts = {title: facts for title, facts in report.items() if title != "settings"}
    for title, are_given in (("settings given", True), ("settings not given", False)):
        facts = {name: value for name, value in report["settings"].items() if (name in given) is are_given}
        parts |= {title: facts} if facts else {}
    return parts


def _show_facts(report: dict[str, dict[str, Any]]) -> None:
    meanings = {PREFIX + name.upper(): field.description or "" for name, field in Settings.model_fields.items()}
    for title, facts in report.items():
        print_table([title, "", ""], [[key, text(value), meanings.get(key, "")] for key, value in facts.items()])
        say("")


def _show_findings(found: list[dict[str, str]]) -> None:
    """Say what is wrong last, where it is seen."""
    if not found:
        say("[green]Nothing wrong was found.[/]")
    for finding in found:
        colour = "red" if finding["level"] == "error" else "yellow"
        say(f"[{colour}]{finding['level']}[/]  {finding['setting']}: {escape(finding['what'])}")
        say(f"       {escape(finding['advice'])}")
