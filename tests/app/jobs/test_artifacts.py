"""The store, as a folder, and as an S3 server in a process of its own."""

import errno
import io
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.errors import OutOfSpace
from app.jobs import artifacts
from app.jobs.artifacts import Store, input_key, result_key

JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an empty bucket; it is found by the usual variables of the environment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    variables = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        make_bucket(server, f"{url}/heat")
        yield "s3://heat"
    server.terminate()
    server.wait()


def make_bucket(server: "subprocess.Popen[bytes]", url: str) -> None:
    for _ in range(300):
        assert server.poll() is None, "moto's server did not start"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()  # noqa: S310
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError


@pytest.fixture(params=["folder", "file URL", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    urls = {"folder": "", "file URL": f"file://{tmp_path}/with%20space"}
    url = urls[request.param] if request.param in urls else request.getfixturevalue("bucket") + "/some/prefix"
    store = Store(Settings(data_dir=tmp_path, artifacts_url=url))
    store.delete_tree(JOB)
    return store


def test_what_is_written_is_read(store: Store) -> None:
    key = result_key(JOB, "000012.overlay.jpg", 12)
    assert not store.exists(key)
    assert store.write(key, b"first") == 5
    assert store.write(key, b"the second") == 10
    assert store.exists(key)
    assert store.size(key) == 10
    assert store.read(key) == b"the second"
    with store.open(key) as file:
        file.seek(4)
        assert file.read() == b"second"


def test_pieces_are_put_together(store: Store) -> None:
    key = input_key(JOB, 1234)
    assert store.write(key, iter([b"one ", b"", b"two"])) == 7
    assert store.read(key) == b"one two"
    assert store.write(key, iter([])) == 0
    assert store.read(key) == b""


def test_pieces_larger_than_one_put(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_ONE_PUT_BYTES", 2**20)
    pieces = [bytes([number]) * 2**20 for number in range(12)]  # S3 takes parts of 5 MiB at least
    assert store.write(f"{JOB}/large", iter(pieces)) == 12 * 2**20
    assert store.read(f"{JOB}/large") == b"".join(pieces)


@pytest.mark.parametrize("before", [1, 12])
def test_of_pieces_that_break_off_nothing_stays(store: Store, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_ONE_PUT_BYTES", 2**20)
    store.write(f"{JOB}/kept", b"older")

    def pieces() -> Iterator[bytes]:
        yield from [bytes(2**20)] * before
        raise KeyError("the client has gone")

    for name in ("kept", "new"):
        with pytest.raises(KeyError):  # as it was raised, whatever the store is
            store.write(f"{JOB}/{name}", pieces())
    assert store.read(f"{JOB}/kept") == b"older"
    assert not store.exists(f"{JOB}/new")


def test_nobody_sees_half_a_file(store: Store) -> None:
    key, stop, seen = f"{JOB}/busy", threading.Event(), set()
    contents = [letter * 300_000 for letter in (b"a", b"b")]
    store.write(key, contents[0])

    def look() -> None:
        while not stop.is_set():
            seen.add(store.read(key))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(20):
        store.write(key, contents[number % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


def test_a_tree_goes_and_its_neighbour_stays(store: Store) -> None:
    other = JOB[:-1]  # begins alike
    for job_id in (JOB, other):
        for number in (0, 1, 1000):
            store.write(input_key(job_id, number), b"picture")
    store.delete_tree(JOB)
    assert not any(store.exists(input_key(JOB, number)) for number in (0, 1, 1000))
    assert all(store.exists(input_key(other, number)) for number in (0, 1, 1000))
    store.delete_tree(JOB)  # nothing there any more
    store.delete_tree(other)


def test_what_is_not_there_is_a_missing_file(store: Store) -> None:
    for look in (store.read, store.size, store.open):
        with pytest.raises(FileNotFoundError):
            look(f"{JOB}/nothing")
    assert not store.exists(f"{JOB}/nothing")


@pytest.mark.parametrize("key", ["../outside", f"{JOB}/../../x", "/etc/passwd", "", ".", f"{JOB}//x", "a\\b", "a\0b"])
def test_a_key_leads_nowhere_else(store: Store, key: str) -> None:
    assert not store.exists(key)
    for act in (store.read, store.open, store.delete_tree, lambda key: store.write(key, b"x")):
        with pytest.raises(FileNotFoundError):
            act(key)


def test_a_forked_process_has_a_store_too(store: Store) -> None:
    store.write(f"{JOB}/parent", b"parent")
    child = os.fork()
    if child == 0:
        try:
            store.write(f"{JOB}/child", store.read(f"{JOB}/parent"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert store.read(f"{JOB}/child") == b"parent"


def test_a_folder_has_no_traces_of_writing(tmp_path: Path) -> None:
    store = Store(Settings(data_dir=tmp_path))
    store.write(result_key(JOB, "000000.map.png", 0), b"map")
    with pytest.raises(RuntimeError):
        store.write(result_key(JOB, "000001.map.png", 1), broken())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "jobs" / JOB / "results" / "000" / "000000.map.png"]
    assert (tmp_path / "jobs").stat().st_mode & 0o077 == 0  # for nobody else's eyes


def broken() -> Iterator[bytes]:
    yield b"half"
    raise RuntimeError


def test_a_folder_says_how_much_room_is_left(tmp_path: Path) -> None:
    room = Store(Settings(data_dir=tmp_path / "new")).room()
    assert room is not None
    stat = os.statvfs(tmp_path)
    assert room.bytes == pytest.approx(stat.f_bavail * stat.f_frsize, rel=0.05)
    assert room.files == (pytest.approx(stat.f_favail, rel=0.05) if stat.f_files else None)


def test_a_bucket_does_not_say_how_much_room_is_left(bucket: str) -> None:
    assert Store(Settings(artifacts_url=bucket)).room() is None


def test_a_full_disk_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/dev/full` is a disk without room."""
    store = Store(Settings(data_dir=tmp_path))
    monkeypatch.setattr(artifacts._Folder, "_create", lambda self, path: io.FileIO("/dev/full", "w"))
    with pytest.raises(OutOfSpace):
        store.write(f"{JOB}/x", b"picture")

    def refuse(self: object, path: str) -> Any:
        raise OSError(errno.EACCES, "not yours", path)

    monkeypatch.setattr(artifacts._Folder, "_create", refuse)
    with pytest.raises(PermissionError):
        store.write(f"{JOB}/x", b"picture")


def test_a_bucket_that_is_away_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:  # bound, but it answers nobody
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        store = Store(Settings(artifacts_url="s3://heat"))
        with pytest.raises(OSError, match="store of the jobs") as raised:
            store.read(f"{JOB}/x")
    assert not isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, f"{JOB}/inputs/000/000000"), (999, f"{JOB}/inputs/000/000999"), (12345, f"{JOB}/inputs/012/012345")],
)
def test_keys_of_inputs(number: int, expected: str) -> None:
    assert input_key(JOB, number) == expected
    assert result_key(JOB, "a.npz", number) == expected.replace("inputs", "results").rpartition("/")[0] + "/a.npz"
