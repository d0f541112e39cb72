"""`heatlens keys`: the API keys of the server on this machine, or of its database."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli.console import complain, fail, print_table, say
from app.cli.options import AsJson
from app.config import Settings, load_settings

if TYPE_CHECKING:
    from app.keys import Key, Keys

keys_app = typer.Typer(
    no_args_is_help=True, help="The API keys of the server on this machine, or of its HEATLENS_DATABASE_URL."
)

_UNITS_S = {"m": 60, "h": 3600, "d": 24 * 3600}
_LIFETIME = re.compile(r"([1-9]\d*)([mhd])")


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what uses it: letters, digits, dots, dashes.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it is for, comma-separated: explain, jobs, admin. admin does not have the others in it."
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="30d, 12h, or a day, as in 2027-01-31; default: never.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print it alone, as nobody can again; what else there is to say goes to stderr."""
    now = time.time()
    lifetime_s = None if expires is None else _lifetime_s(expires, now)
    scopes = [word.strip() for words in scope for word in words.split(",") if word.strip()]
    settings = load_settings()
    with _keys(settings, now) as keys:
        key, text = keys.create(name, scopes, lifetime_s=lifetime_s)
    if as_json:
        print(json.dumps(_facts(key) | {"key": text}, indent=2))  # noqa: T201
        return
    print(text)  # noqa: T201
    until = "never expires" if key.expires_at is None else f"expires {_shown(key.expires_at)}"
    complain(f"Key [bold]{escape(name)}[/] ({key.id}) for {_scopes(key)}; {until}. It is shown only this once.")
    complain(
        f"It is in {escape(settings.database_shown)}: the server has to have the same HEATLENS_DATA_DIR or "
        "HEATLENS_DATABASE_URL."
    )


@keys_app.command("list")
def keys_list(as_json: AsJson = False) -> None:
    """List all keys that were ever made, without what opens anything."""
    settings = load_settings()
    if not settings.database_url and not os.path.exists(settings.data_dir / "jobs.db"):
        fail(f"there are no keys: {settings.data_dir} has no jobs.db (HEATLENS_DATA_DIR).", code=1)
    with _keys(settings) as keys:
        found = keys.all()
    if as_json:
        print(json.dumps([_facts(key) for key in found], indent=2))  # noqa: T201
        return
    rows = [
        [key.id, key.name, _state(key), _day(key.created_at), _shown(key.expires_at), _scopes(key)] for key in found
    ]
    print_table(["id", "name", "state", "created", "expires", "scopes"], rows, whole=2)


@keys_app.command("revoke")
def keys_revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or id of a key, see `heatlens keys list`.")],
) -> None:
    """Have a key open nothing any more; running servers know within 5 s."""
    with _keys(load_settings()) as keys:
        key = keys.revoke(name)
    say(f"revoked {escape(key.name)} ({key.id}) on {_shown(key.revoked_at)}; what it made is kept.")


@contextmanager
def _keys(settings: Settings, now: float | None = None) -> "Iterator[Keys]":
    """Lend the keys of the configured database; what is wrong is said, and is 1, or 2 where the words are."""
    from app.errors import ServiceError
    from app.jobs.database import Database
    from app.keys import BadKey, Keys, KeysError

    database = Database(settings)
    try:
        database.require_known()
        yield Keys(settings, database, clock=time.time if now is None else lambda: now)
    except (ServiceError, KeysError) as error:
        fail(str(error), code=2 if isinstance(error, BadKey) else 1)
    finally:
        database.close()


def _lifetime_s(text: str, now: float) -> float:
    """Return how long a key lives from now; a day's key ends as that day begins here."""
    try:
        if found := _LIFETIME.fullmatch(text):
            lifetime_s = timedelta(seconds=int(found[1]) * _UNITS_S[found[2]]).total_seconds()
        else:
            lifetime_s = datetime.strptime(text, "%Y-%m-%d").astimezone().timestamp() - now
        _shown(now + lifetime_s)
    except (ValueError, OverflowError):
        if found:
            fail(f"--expires {text[:20]} is too far away; leave it out for a key that never expires.", code=2)
        fail(f"--expires {text!r} is no time; it reads 30d, 12h, 45m, or 2027-01-31.", code=2)
    if lifetime_s <= 0:
        fail(f"--expires {text} is over.", code=2)
    return lifetime_s


def _facts(key: "Key") -> dict[str, Any]:
    times = {"created_at": key.created_at, "expires_at": key.expires_at, "revoked_at": key.revoked_at}
    facts = {"id": key.id, "name": key.name, "scopes": _scopes(key).split(", "), "state": _state(key)}
    return facts | {name: moment and datetime.fromtimestamp(moment, UTC).isoformat() for name, moment in times.items()}


def _state(key: "Key") -> str:
    return "revoked" if key.revoked_at is not None else "usable" if key.is_usable(time.time()) else "expired"


def _scopes(key: "Key") -> str:
    from app.keys import SCOPES

    return ", ".join(scope for scope in SCOPES if scope in key.scopes)


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d")


def _shown(moment: float | None) -> str:
    return "-" if moment is None else datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")
