"""Tokens of embed links, and the secret that signs them."""

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from app import signing
from app.config import Settings
from app.errors import JobsUnavailable
from app.signing import NO_LINK, Signer


def signer(folder: Path, *keys: str) -> Signer:
    return Signer(Settings(data_dir=folder, embed_secrets=tuple(map(SecretStr, keys))))


def test_the_first_key_signs_and_all_are_believed(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    forever = 2.0**40
    by_old, by_new = (signer(tmp_path, key).sign("abc", forever) for key in (old, new))
    rotating = signer(tmp_path, new, old)
    assert rotating.sign("abc", forever) == by_new
    assert [rotating.link_of(token) for token in (by_old, by_new)] == ["abc", "abc"]
    assert signer(tmp_path, new).link_of(by_old) == NO_LINK


def test_a_token_cannot_be_changed_prolonged_or_used_when_it_is_over(tmp_path: Path) -> None:
    mine = signer(tmp_path)
    token = mine.sign("abc", 2.0**40)
    assert mine.link_of(token) == "abc"
    payload, signature = token.split(".")
    assert all(letter.isalnum() or letter in "-_." for letter in token)
    longer, _ = signer(tmp_path / "other").sign("abc", 2.0**41).split(".")
    for forged in (f"{longer}.{signature}", payload, f"{payload}.", f".{signature}", "", "\N{SNOWMAN}", "." * 5000):
        assert mine.link_of(forged) == NO_LINK
    assert mine.link_of(mine.sign("abc", 1.0)) == NO_LINK


@pytest.mark.parametrize("text", [b"", b"\n", b"x" * 31, b"\xff" * 40, bytes(43), b" " * 43])
def test_a_damaged_secret_signs_nothing_and_opens_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "embed.secret").write_bytes(text)
    for _ in range(2):
        with pytest.raises(JobsUnavailable):
            signer(tmp_path).sign("abc", 2.0**40)
        with pytest.raises(JobsUnavailable):
            signer(tmp_path).link_of("abc.def")
    assert (tmp_path / "embed.secret").read_bytes() == text


def test_all_processes_share_one_secret_that_nobody_else_reads(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    start = threading.Barrier(8)

    def ask(_: int) -> str:
        start.wait(30)
        return signing.own_secret(folder)

    with ThreadPoolExecutor(8) as pool:
        (secret,) = set(pool.map(ask, range(8)))
    assert len(secret) >= 32
    assert stat.S_IMODE((folder / "embed.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["embed.secret", "embed.secret.lock"]
