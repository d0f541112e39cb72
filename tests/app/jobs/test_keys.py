"""API keys, on both kinds of database."""

import hashlib
import hmac
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.config import Settings
from app.errors import KeysUnavailable, Unauthorized
from app.jobs.database import Database
from app.keys import BadKey, Key, KeyExists, Keys, UnknownKey
from app.opening import hosts_of, public_host, refusal
from tests.app.jobs.postgres import Postgres

DAY_S = 24 * 3600.0
ANYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound to it


class Time:
    """The time of day, and how long ago something was; both stand still until they are moved."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.ticked_s = 1000.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.ticked_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


Open = Callable[[], Keys]


@pytest.fixture
def another(settings: Settings, time: Time) -> Iterator[Open]:
    """Opens the keys as one process more of the deployment does."""
    databases: list[Database] = []

    def open_() -> Keys:
        databases.append(Database(settings))
        return Keys(settings, databases[-1], lambda: time.now, ticks=lambda: time.ticked_s)

    yield open_
    for database in databases:
        database.close()


@pytest.fixture
def keys(another: Open) -> Keys:
    return another()


def require_refused(keys: Keys, text: str) -> None:
    with pytest.raises(Unauthorized):
        keys.check(text)


def test_a_key_opens_what_it_is_for_in_every_process(keys: Keys, another: Open, time: Time) -> None:
    key, text = keys.create("ci.nightly-1", ["jobs", "explain"])
    assert re.fullmatch(rf"hl_{key.id}_[A-Za-z0-9_-]{{43}}", text)  # 43 letters of six bits: 256 bits and two
    assert re.fullmatch(r"[A-Za-z0-9]{12}", key.id)
    assert key == Key(key.id, "ci.nightly-1", frozenset({"explain", "jobs"}), time.now, None, None)
    assert keys.check(text) == another().check(text) == another().get(key.id) == key
    assert another().all() == [key]


def test_the_secret_is_kept_nowhere_but_its_hmac_by_the_key_s_id(keys: Keys) -> None:
    key, text = keys.create("ci", ["explain"])
    secret = text.removeprefix(f"hl_{key.id}_")
    with keys._database.read() as connection:
        rows = connection.execute(sa.text("SELECT * FROM heatlens_keys")).mappings().all()
    assert [row["digest"] for row in rows] == [hmac.digest(key.id.encode(), secret.encode(), hashlib.sha256).hex()]
    assert secret not in str(rows)
    assert secret not in repr(key)


def test_two_keys_have_nothing_in_common(keys: Keys) -> None:
    (one, text), (other, other_text) = keys.create("one", ["explain"]), keys.create("other", ["explain"])
    assert one.id != other.id
    assert keys.check(text).name == "one"
    assert keys.check(other_text).name == "other"
    require_refused(keys, f"hl_{one.id}_{other_text.removeprefix(f'hl_{other.id}_')}")


def test_what_is_not_the_whole_key_is_refused_in_the_same_words(keys: Keys) -> None:
    key, text = keys.create("ci", ["explain"])
    swapped = text[:-2] + ("B" if text[-2] != "B" else "C") + text[-1]
    nearly = [
        "", "hl_", text[:-1], text + "A", text + "\n", " " + text, text.upper(), text[3:], f"hl_{key.id}_", swapped,
        f"hl_{key.id[::-1]}_{text[16:]}", text.replace("hl_", "hx_"), f"Bearer {text}", text + "\x00", "ä" * 59,
        "hl_" + "A" * 12 + "_" + "A" * 43, "hl_" + "A" * 10**6,
    ]  # fmt: skip
    words = set()
    for wrong in nearly:
        with pytest.raises(Unauthorized) as refused:
            keys.check(wrong)
        words.add(str(refused.value))
    assert len(words) == 1
    assert keys.check(text) == key


def test_no_text_is_taken_for_a_key_nor_breaks_anything(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    database = Database(settings)
    keys = Keys(settings, database)
    keys.create("ci", ["explain"])

    @given(st.one_of(st.text(), st.from_regex(r"hl_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}", fullmatch=True)))
    def check(text: str) -> None:
        require_refused(keys, text)

    check()
    database.close()


def test_an_expired_key_opens_nothing_from_that_moment_on(keys: Keys, time: Time) -> None:
    key, text = keys.create("ci", ["explain"], lifetime_s=DAY_S)
    assert key.expires_at == time.now + DAY_S
    time.pass_by(DAY_S - 1)
    assert keys.check(text) == keys.get(key.id) == key
    time.pass_by(1)
    require_refused(keys, text)
    with pytest.raises(Unauthorized):
        keys.get(key.id)
    assert not keys.any_usable()
    assert keys.create("ci", ["explain"])[0].id != key.id  # the name is free again


def test_a_revoked_key_opens_nothing_after_five_seconds_at_most_in_every_process(
    keys: Keys, another: Open, time: Time
) -> None:
    key, text = keys.create("ci", ["explain"])
    server = another()
    assert server.check(text) == key
    revoked = keys.revoke("ci")
    assert (revoked.id, revoked.revoked_at) == (key.id, time.now)
    require_refused(keys, text)
    time.pass_by(5)
    require_refused(server, text)
    with pytest.raises(Unauthorized):
        server.get(key.id)


def test_a_revoked_key_stays_revoked_since_then(keys: Keys, time: Time) -> None:
    key, _ = keys.create("ci", ["explain"])
    first = keys.revoke(key.id)
    time.pass_by(DAY_S)
    assert keys.revoke(key.id) == keys.revoke("ci") == first


def test_of_several_keys_of_a_name_the_one_in_use_is_revoked(keys: Keys, time: Time) -> None:
    old, _ = keys.create("ci", ["explain"], lifetime_s=1)
    time.pass_by(2)
    new, text = keys.create("ci", ["jobs"])
    assert keys.revoke("ci").id == new.id
    require_refused(keys, text)
    assert [key.id for key in keys.all() if key.revoked_at is None] == [old.id]


def test_who_revokes_a_key_that_there_is_not_is_told_which_there_are(keys: Keys) -> None:
    with pytest.raises(UnknownKey, match=r"no key 'nightly'.* See `heatlens keys list`"):
        keys.revoke("nightly")
    keys.create("nightly-build", ["explain"])
    with pytest.raises(UnknownKey, match="Did you mean 'nightly-build'"):
        keys.revoke("nightly-bild")


def test_a_new_key_opens_at_once_what_a_server_did_not_know_of(keys: Keys, another: Open, time: Time) -> None:
    server = another()
    assert not server.are_needed()
    time.pass_by(0.5)
    key, text = keys.create("ci", ["explain"])
    assert server.check(text) == key
    assert server.are_needed()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 65, "a\n", "[bold]"])
def test_a_name_that_is_none_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(BadKey, match="no name for a key"):
        keys.create(name, ["explain"])
    assert keys.all() == []


@pytest.mark.parametrize(
    ("scopes", "lifetime_s", "words"),
    [
        ([], None, "scopes are explain, jobs, admin"),
        (["explain", "root"], None, "no scope 'root'"),
        (["jobs"], 0.0, "in the future"),
    ],
)
def test_scopes_and_times_that_are_none_are_refused(
    keys: Keys, scopes: list[str], lifetime_s: float | None, words: str
) -> None:
    with pytest.raises(BadKey, match=words):
        keys.create("ci", scopes, lifetime_s=lifetime_s)
    assert keys.all() == []


def test_of_many_who_make_a_key_of_one_name_at_once_one_does(another: Open) -> None:
    makers = [another() for _ in range(6)]

    def make(keys: Keys) -> bool:
        try:
            keys.create("ci", ["explain"])
        except KeyExists:
            return False
        return True

    with ThreadPoolExecutor(len(makers)) as pool:
        assert sum(pool.map(make, makers)) == 1
    assert len(another().all()) == 1


# When keys are needed.


def test_keys_are_needed_once_one_was_made_and_for_good(keys: Keys, another: Open, time: Time) -> None:
    server = another()
    assert not server.are_needed()
    keys.create("ci", ["explain"], lifetime_s=DAY_S)
    time.pass_by(5)
    assert server.are_needed()
    keys.revoke("ci")
    time.pass_by(2 * DAY_S)
    assert server.are_needed()
    assert another().are_needed()  # also in a process that saw it only revoked


def test_nobody_needs_a_key_where_all_is_insecure_and_everybody_at_a_public_address(settings: Settings) -> None:
    for host, insecure, needed in [(ANYWHERE, False, True), (ANYWHERE, True, False), ("127.0.0.1", True, False)]:
        changed = settings.model_copy(update={"host": host, "insecure": insecure})
        database = Database(changed)
        keys = Keys(changed, database)
        assert keys.are_needed() == needed
        keys.create(f"made-with-{host}-{insecure}", ["explain"])
        assert keys.are_needed() == needed
        database.close()


def test_looking_for_keys_makes_no_database(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "none")
    keys = Keys(settings, Database(settings))
    assert not keys.are_needed()
    assert keys.all() == []
    assert not keys.any_usable()
    require_refused(keys, "hl_" + "A" * 12 + "_" + "A" * 43)
    assert not (tmp_path / "none").exists()


def test_keys_that_are_over_are_not_read_again_and_again(keys: Keys, time: Time) -> None:
    keys.create("old", ["explain"], lifetime_s=DAY_S)
    key, _ = keys.create("ci", ["explain"])
    time.pass_by(DAY_S)
    assert set(keys._usable_with_digests()) == {key.id}


def test_who_tries_many_keys_has_the_database_asked_for_none(keys: Keys, another: Open, time: Time) -> None:
    _, known = keys.create("known", ["explain"])
    server = another()
    assert server.check(known)
    key, new = keys.create("new", ["explain"])
    time.pass_by(1)
    questions: list[str] = []
    with listening(server._database, lambda: questions.append("asked")):
        with pytest.raises(Unauthorized):
            server.check(new, fresh=False)
        assert server.check(known, fresh=False).name == "known"
        assert questions == []
        assert server.check(new) == key
        assert questions == ["asked"]


# When the database is away.


def test_what_the_database_said_holds_for_ten_minutes_while_it_is_away(
    postgres: Postgres, postgres_url: str, tmp_path: Path, time: Time
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=postgres_url)
    database = Database(settings)
    keys = Keys(settings, database, lambda: time.now, ticks=lambda: time.ticked_s)
    key, text = keys.create("ci", ["explain"])
    assert keys.check(text) == key
    postgres.stop()
    try:
        for passed_s in (6, 500, 93):  # together 599
            time.pass_by(passed_s)
            assert keys.check(text) == key
            assert keys.are_needed()
            require_refused(keys, text[:-3] + "AAA")
        time.pass_by(1)
        for ask in (lambda: keys.check(text), lambda: keys.get(key.id), keys.are_needed):
            with pytest.raises(KeysUnavailable) as refused:
                ask()
            assert refused.value.extra == {"retry_after_s": 5}
        with pytest.raises(KeysUnavailable):
            Keys(settings, database).are_needed()  # a process that has just begun knows nothing
    finally:
        postgres.start()
    time.pass_by(1)
    assert keys.check(text) == key
    database.close()


def test_a_file_that_vanishes_is_a_database_that_is_away(tmp_path: Path, time: Time) -> None:
    settings = Settings(data_dir=tmp_path)
    database = Database(settings)
    keys = Keys(settings, database, lambda: time.now, ticks=lambda: time.ticked_s)
    key, text = keys.create("ci", ["explain"])
    assert keys.check(text) == key
    (tmp_path / "jobs.db").rename(tmp_path / "backup.db")
    time.pass_by(6)
    assert keys.are_needed()
    assert keys.check(text) == key
    time.pass_by(600)
    for ask in (lambda: keys.check(text), keys.are_needed):
        with pytest.raises(KeysUnavailable):
            ask()
    (tmp_path / "backup.db").rename(tmp_path / "jobs.db")
    time.pass_by(1)
    assert keys.check(text) == key
    database.close()


def test_a_database_that_never_answered_and_hangs_holds_up_one_request_only(tmp_path: Path, time: Time) -> None:
    """Once one question was in vain, the others do not wait for the next; eight of them would for 40 s."""
    file = tmp_path / "jobs.db"
    file.mkdir()
    settings = Settings(data_dir=tmp_path)
    keys = Keys(settings, Database(settings), ticks=lambda: time.ticked_s)
    with pytest.raises(KeysUnavailable):
        keys.are_needed()
    file.rmdir()
    with_a_key = Database(settings)
    Keys(settings, with_a_key).create("ci", ["explain"])
    time.pass_by(1)
    asked, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        hangs.wait(120)

    def others() -> None:
        for _ in range(8):
            with pytest.raises(KeysUnavailable):
                keys.are_needed()

    with listening(keys._database, hang), ThreadPoolExecutor(2) as pool:
        first = pool.submit(keys.are_needed)
        try:
            assert asked.wait(60)
            pool.submit(others).result(30)
        finally:
            hangs.set()
        assert first.result(60)
    keys._database.close()
    with_a_key.close()


def test_a_file_that_cannot_be_opened_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    settings = Settings(data_dir=tmp_path)
    keys = Keys(settings, Database(settings))
    with pytest.raises(KeysUnavailable):
        keys.are_needed()
    with pytest.raises(KeysUnavailable):
        keys.check("hl_" + "A" * 12 + "_" + "A" * 43)


@contextmanager
def listening(database: Database, on_question: Callable[[], None]) -> Iterator[None]:
    """Have something done before each question that the database is asked for keys."""

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM heatlens_keys" in statement:
            on_question()

    sa.event.listen(database.engine, "before_cursor_execute", before)
    yield
    sa.event.remove(database.engine, "before_cursor_execute", before)


def test_the_database_is_asked_a_few_times_in_a_second_whatever_comes(keys: Keys, another: Open, time: Time) -> None:
    """For keys that are known every 2.5 s, and for those that are not ten times in a second."""
    _, text = keys.create("ci", ["explain"])
    server = another()
    questions: list[float] = []
    with listening(server._database, lambda: questions.append(time.ticked_s)):
        for _ in range(500):  # five seconds
            server.check(text)
            time.pass_by(0.01)
        assert len(questions) in (2, 3)  # the third at the end of the five seconds, as these are added up
        questions.clear()
        for _ in range(100):
            require_refused(server, "hl_" + "A" * 12 + "_" + "A" * 43)
            time.pass_by(0.01)
    assert 9 <= len(questions) <= 11


@pytest.mark.parametrize("old_s", [3, 6])
def test_a_database_that_hangs_holds_up_one_request_only(another: Open, time: Time, old_s: float) -> None:
    keys = another()
    key, text = keys.create("ci", ["explain"])
    assert keys.check(text) == key
    time.pass_by(old_s)
    asked, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        hangs.wait(120)

    with listening(keys._database, hang), ThreadPoolExecutor(9) as pool:
        first = pool.submit(keys.check, text)
        assert asked.wait(60)
        others = [pool.submit(keys.check, text) for _ in range(8)]
        assert [other.result(60) for other in others] == [key] * 8
        assert not first.done()
        hangs.set()
        assert first.result(60) == key


# Whether a server may start.


def test_a_public_address_needs_a_key_that_opens_something_to_start(keys: Keys, settings: Settings, time: Time) -> None:
    public = settings.model_copy(update={"host": ANYWHERE})
    reason = refusal(public)
    assert reason is not None
    for part in ("HEATLENS_HOST=0.0.0.0", "heatlens keys create NAME --scope explain,jobs", "--insecure"):
        assert part in reason
    assert "\n" not in reason
    time.now = 1.0  # long ago
    keys.create("expired", ["explain"], lifetime_s=1)
    keys.create("revoked", ["explain"])
    keys.revoke("revoked")
    assert refusal(public) == reason
    keys.create("ci", ["explain"])
    assert refusal(public) is None


def test_a_server_may_start_on_loopback_or_if_anybody_may_ask_or_while_the_database_is_away(tmp_path: Path) -> None:
    assert refusal(Settings(data_dir=tmp_path)) is None
    assert refusal(Settings(data_dir=tmp_path, host=ANYWHERE, insecure=True)) is None
    away = "postgresql://postgres@127.0.0.1:1/none"
    assert refusal(Settings(data_dir=tmp_path, host=ANYWHERE, database_url=away)) is None


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ([("127.0.0.1", 8000)], None),
        ([("::1", 8000, 0, 0), "/run/heatlens.sock"], None),
        ([("127.0.0.1", 8000), ("", 8000)], ANYWHERE),
        ([("127.0.0.1", 8000), (ANYWHERE, 8000)], ANYWHERE),
        ([("::", 8000)], "::"),
        ([("box.example.com", 8000)], "box.example.com"),
    ],
)
def test_what_gunicorn_is_told_to_listen_on_counts(addresses: list[object], host: str | None, tmp_path: Path) -> None:
    assert public_host(Settings(data_dir=tmp_path), hosts_of(addresses)) == host


@pytest.mark.parametrize(
    ("family", "address", "host"),
    [
        (socket.AF_INET, ("127.0.0.1", 0), None),
        (socket.AF_INET, (ANYWHERE, 0), ANYWHERE),
        (socket.AF_INET6, ("::", 0), "::"),
        (socket.AF_UNIX, "heatlens.sock", None),
    ],
)
def test_a_socket_that_is_open_already_is_asked_where_it_listens(
    family: socket.AddressFamily, address: Any, host: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(family) as inherited:
        inherited.bind(address)
        assert public_host(Settings(data_dir=tmp_path), hosts_of([inherited.fileno()])) == host
        assert inherited.getsockname()  # it is open still
    assert hosts_of([inherited.fileno()]) == [ANYWHERE]  # closed, it may be anything


def test_asking_what_is_no_socket_leaves_nothing_open(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        before = os.listdir("/proc/self/fd")
        assert hosts_of([file.fileno()]) == [ANYWHERE]
        assert os.listdir("/proc/self/fd") == before
        file.write("it is open still")
