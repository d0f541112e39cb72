"""`heatlens keys`, and what `heatlens serve` and gunicorn say where there is none."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import requests
from typer.testing import CliRunner

from app.cli import app
from app.config import Settings, load_settings
from app.jobs.database import Database
from app.keys import Keys
from tests.conftest import start_server, stop_server

DAY_S = 24 * 3600
KEY = re.compile(r"hl_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}\n")
ANYWHERE = "0.0.0.0"  # noqa: S104 - for a moment, in tests
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `heatlens keys` for a data folder of its own."""
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["keys", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def keys_of(folder: Path) -> Keys:
    settings = Settings(data_dir=folder)
    return Keys(settings, Database(settings))


def listed(run: Run) -> dict[str, dict[str, object]]:
    return {facts["name"]: facts for facts in json.loads(run("list", "--json")[1])}


def test_a_key_is_printed_alone_and_opens_what_it_is_for(run: Run, tmp_path: Path) -> None:
    code, out, err = run("create", "ci", "--scope", "explain,jobs")
    assert code == 0
    assert KEY.fullmatch(out)
    key = keys_of(tmp_path).check(out.strip())
    assert (key.name, key.scopes) == ("ci", {"explain", "jobs"})
    assert "ci" in err
    assert key.id in err
    assert "explain, jobs; never expires" in err
    assert out.strip() not in err
    assert f"It is in {tmp_path}/jobs.db: the server has to have the same HEATLENS_DATA_DIR" in err


def test_scopes_may_be_given_one_by_one(run: Run, tmp_path: Path) -> None:
    out = run("create", "ci", "--scope", "admin", "--scope", " jobs , explain")[1]
    assert keys_of(tmp_path).check(out.strip()).scopes == {"explain", "jobs", "admin"}


def test_json_has_all_there_is_and_the_list_no_secret(run: Run) -> None:
    made = json.loads(run("create", "ci", "--scope", "jobs", "--expires", "2h", "--json")[1])
    text = made.pop("key")
    assert KEY.fullmatch(text + "\n")
    created, expires = (datetime.fromisoformat(made[name]) for name in ("created_at", "expires_at"))
    assert (expires - created).total_seconds() == 2 * 3600
    assert (made["name"], made["scopes"], made["state"], made["revoked_at"]) == ("ci", ["jobs"], "usable", None)
    code, out, _ = run("list", "--json")
    assert (code, json.loads(out)) == (0, [made])
    table = run("list")[1]
    assert [line.split()[:3] for line in table.splitlines()] == [["id", "name", "state"], [made["id"], "ci", "usable"]]
    for shown in (out, table):
        assert text[-43:] not in shown


def test_the_list_breaks_no_date_on_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(run("create", "review-team", "--scope", "explain,jobs", "--expires", "30d", "--json")[1])
    monkeypatch.setenv("COLUMNS", "80")
    days = [datetime.fromisoformat(made[name]).astimezone() for name in ("created_at", "expires_at")]
    assert f"{days[0]:%Y-%m-%d}  {days[1]:%Y-%m-%d %H:%M}  explain, jobs" in run("list")[1]


@pytest.mark.parametrize(("expires", "lifetime_s"), [("30d", 30 * DAY_S), ("12h", 12 * 3600), ("45m", 45 * 60)])
def test_a_key_lives_as_long_as_was_said(run: Run, expires: str, lifetime_s: int) -> None:
    before = time.time()
    run("create", "ci", "--scope", "jobs", "--expires", expires)
    ends = datetime.fromisoformat(str(listed(run)["ci"]["expires_at"])).timestamp()
    assert before + lifetime_s <= ends <= time.time() + lifetime_s


def test_a_key_of_a_day_ends_as_that_day_begins_here(run: Run) -> None:
    run("create", "ci", "--scope", "jobs", "--expires", "2099-12-31")
    ends = datetime.fromisoformat(str(listed(run)["ci"]["expires_at"])).astimezone()
    assert ends.replace(tzinfo=None).isoformat(timespec="milliseconds") == "2099-12-31T00:00:00.000"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a b", "--scope", "jobs"], "heatlens: 'a b' is no name for a key"),
        (["ci", "--scope", "job"], "heatlens: There is no scope 'job'; scopes are explain, jobs, admin."),
        (["ci", "--scope", ","], "heatlens: A key is for something"),
        (["ci", "--scope", "jobs", "--expires", "soon"], "heatlens: --expires 'soon' is no time; it reads 30d"),
        (["ci", "--scope", "jobs", "--expires", "0d"], "heatlens: --expires '0d' is no time"),
        (["ci", "--scope", "jobs", "--expires", "30000000d"], "heatlens: --expires 30000000d is too far away; leave"),
        (["ci", "--scope", "jobs", "--expires", "9" * 5000 + "h"], "9 is too far away"),
        (["ci", "--scope", "jobs", "--expires", "2020-01-01"], "heatlens: --expires 2020-01-01 is over."),
        (["ci"], "Missing option '--scope'"),
    ],
)
def test_wrong_words_are_wrong_use_and_make_nothing(run: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    code, out, err = run("create", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_revoked_key_is_listed_as_such_and_its_name_is_free(run: Run, tmp_path: Path) -> None:
    first = run("create", "ci", "--scope", "jobs")[1].strip()
    code, out, err = run("create", "ci", "--scope", "jobs")
    assert (code, out) == (1, "")
    assert "There is a key 'ci' already" in err
    code, out, _ = run("revoke", "ci")
    assert code == 0
    assert re.search(r"^revoked ci \(\w{12}\) on ", out)
    assert listed(run)["ci"]["state"] == "revoked"
    second = run("create", "ci", "--scope", "jobs")[1].strip()
    keys = keys_of(tmp_path)
    assert {keys.check(second).id} == {key.id for key in keys.all() if key.revoked_at is None}
    assert first != second


def test_who_revokes_what_there_is_not_is_told_so(run: Run) -> None:
    code, out, err = run("revoke", "ci")
    assert (code, out) == (1, "")
    assert "There is no key 'ci'" in err


def test_looking_at_keys_makes_no_database(run: Run, tmp_path: Path) -> None:
    code, out, err = run("list")
    assert (code, out) == (1, "")
    assert f"there are no keys: {tmp_path} has no jobs.db" in err
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_does_not_answer_is_said_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_DATABASE_URL", "postgresql://postgres@127.0.0.1:1/none")
    for command in (["list"], ["revoke", "ci"], ["create", "ci", "--scope", "jobs"]):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert "heatlens: The jobs' database does not answer" in err


# Servers at a public address.


def environment_of(folder: Path, **settings: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEATLENS_")}
    ours = {"data_dir": str(folder), "port": "0", "job_workers": "0", **settings}
    return environment | {f"HEATLENS_{name.upper()}": value for name, value in ours.items()}


def refused(folder: Path, *command: str, **settings: str) -> tuple[int, str]:
    command = (sys.executable, "-m", *command)
    environment = environment_of(folder, **settings)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


GUNICORN = "gunicorn", "-c", "python:app.gunicorn_conf"


@pytest.mark.parametrize(
    ("command", "settings", "code"),
    [
        (["app", "serve", "--host", ANYWHERE], {}, 2),
        ([*GUNICORN, "app.wsgi:application()"], {"host": ANYWHERE}, 3),
        ([*GUNICORN, "--bind", f"{ANYWHERE}:0", "app.wsgi:application()"], {}, 3),
        ([*GUNICORN, "-b", ":0", "app.wsgi:application()"], {}, 3),
    ],
    ids=["serve", "gunicorn", "gunicorn --bind", "gunicorn of no host"],
)
def test_nobody_serves_everybody_by_mistake(
    tmp_path: Path, command: list[str], settings: dict[str, str], code: int
) -> None:
    returned, said = refused(tmp_path, *command, **settings)
    assert returned == code, said
    reason = next(line for line in said.splitlines() if "cannot start" in line)
    for part in (f"HEATLENS_HOST={ANYWHERE}", "heatlens keys create NAME --scope explain,jobs", "--insecure"):
        assert part in reason
    assert "Traceback" not in said


@pytest.mark.parametrize("how", ["fd://", "systemd"])
def test_a_socket_that_was_opened_by_another_counts_as_well(tmp_path: Path, how: str) -> None:
    with socket.create_server((ANYWHERE, 0)) as listening:
        command = [sys.executable, "-m", *GUNICORN, "app.wsgi:application()"]
        if how == "systemd":  # its sockets begin at 3, and it names the process that they are for
            script = f'exec 3<&{listening.fileno()}; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
            command = ["bash", "-c", script, "bash", *command]
        else:
            command[-1:-1] = ["--bind", f"fd://{listening.fileno()}"]
        done = subprocess.run(
            command,
            env=environment_of(tmp_path),
            pass_fds=[listening.fileno()],
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 3, done.stderr
    assert f"cannot start: others can reach HEATLENS_HOST={ANYWHERE}" in done.stderr


def test_a_running_server_follows_the_file_that_is_there(tmp_path: Path, models_dir: Path) -> None:
    small = {"models_dir": str(models_dir), "default_model": "small", "workers": "1", "torch_threads": "1"}
    folder, away = tmp_path / "data", tmp_path / "away"
    _, first = keys_of(folder).create("first", ["explain", "jobs"])
    server = start_server(data_dir=str(folder), log_level="warning", **small)  # a line a request would fill its pipe

    def status(path: str, key: str) -> int:
        return requests.get(server.url + path, headers={"X-API-Key": key}, timeout=60).status_code

    def eventually(path: str, key: str, wanted: int) -> None:
        deadline = time.monotonic() + 60
        while (found := status(path, key)) != wanted:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    try:
        assert status("/v1/jobs", first) == 200
        folder.rename(away)
        assert status("/v1/jobs", first) == 503
        assert requests.get(f"{server.url}/readyz", timeout=60).status_code == 200
        assert not folder.exists()
        _, second = keys_of(folder).create("second", ["explain", "jobs"])  # which makes a new file
        eventually("/v1/jobs", second, 200)
        eventually("/v1/jobs", first, 401)
    finally:
        said = stop_server(server)
    assert "was removed" in said
    assert "was replaced by another" in said
    assert "Traceback" not in said


def test_a_server_with_a_damaged_database_lets_nobody_in_and_says_why(tmp_path: Path, models_dir: Path) -> None:
    small = {"models_dir": str(models_dir), "default_model": "small", "workers": "1", "torch_threads": "1"}
    (tmp_path / "jobs.db").write_bytes(b"garbage" * 1000)
    server = start_server(data_dir=str(tmp_path), **small)
    try:
        answer = requests.get(f"{server.url}/v1/methods", timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (503, "keys_unavailable")
        assert requests.get(f"{server.url}/readyz", timeout=60).status_code == 200
    finally:
        said = server.greeting + stop_server(server)
    line = next(line for line in said.splitlines() if "no jobs are taken" in line)
    assert (
        "no jobs are taken, and nobody is let in, until the jobs' database answers: The jobs' database is dam" in line
    )
    assert "Traceback" not in said


def test_a_server_at_a_public_address_starts_once_there_is_a_key_and_lets_in_who_has_it(
    tmp_path: Path, models_dir: Path
) -> None:
    small = {"models_dir": str(models_dir), "default_model": "small", "workers": "1", "torch_threads": "1"}
    _, text = keys_of(tmp_path).create("ci", ["explain"])
    server = start_server(host=ANYWHERE, data_dir=str(tmp_path), **small)
    try:
        assert requests.get(f"{server.url}/v1/methods", timeout=60).status_code == 401
        shown = requests.get(f"{server.url}/v1/methods", headers={"X-API-Key": text}, timeout=60)
        assert shown.status_code == 200
    finally:
        stop_server(server)


@pytest.mark.parametrize(("flags", "code"), [([], 2), (["--insecure"], 0)])
def test_insecure_has_to_be_written(
    flags: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would take the place of this process is gunicorn, with that setting."""
    monkeypatch.setattr(os, "environ", os.environ | {"HEATLENS_DATA_DIR": str(tmp_path)})
    started: list[Settings] = []
    monkeypatch.setattr(os, "execv", lambda *_: started.append(load_settings()))
    result = CliRunner().invoke(app, ["serve", "--host", ANYWHERE, "--port", "0", *flags])
    assert result.exit_code == code, result.stderr
    assert [(settings.host, settings.insecure) for settings in started] == [(ANYWHERE, True)] * (code == 0)
