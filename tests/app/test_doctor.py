"""`heatlens doctor` finds what is wrong, each thing made so for real, and says what to do."""

import json
import os
import re
import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch
from typer.testing import CliRunner

from app import machine
from app.checkup import CHECKS, findings, place, stores
from app.checkup.place import Mount, mount_of
from app.cli import app
from app.config import PREFIX, WORKER_BYTES, Settings
from app.jobs import tables
from app.jobs.database import Database
from app.keys import Keys

PUBLIC = "0.0.0.0"  # noqa: S104 - never bound here
HUGE = 2**60
NOBODY = 65534


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, since somebody else has it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def found(tmp_path: Path, **settings: object) -> dict[tuple[str, str], str]:
    """Return what is said, by level and setting, without the prefix."""
    plain = {"data_dir": tmp_path / "data", "device": "cpu", "workers": 1, "min_free_bytes": 0}
    said = findings(Settings(**{**plain, **settings}))  # type: ignore[arg-type]
    assert all(finding.advice for finding in said)
    assert [finding.level for finding in said] == sorted(finding.level for finding in said), "errors come first"
    return {(finding.level, finding.setting.removeprefix(PREFIX)): finding.what for finding in said}


def make_key(tmp_path: Path, *, lifetime_s: float | None = None) -> Keys:
    settings = Settings(data_dir=tmp_path / "data")
    keys = Keys(settings, Database(settings))
    keys.create("somebody", ["explain"], lifetime_s=lifetime_s)
    return keys


def test_a_server_as_it_comes_is_well(tmp_path: Path) -> None:
    said = found(tmp_path)
    assert not {setting for level, setting in said if level == "error"}
    assert {setting for _, setting in said} <= {"DATA_DIR", "WORKERS"}  # a test machine may have /tmp in its memory


def test_a_public_address_needs_a_key_that_works(tmp_path: Path) -> None:
    assert "does not start" in found(tmp_path, host=PUBLIC)["error", "HOST"]
    keys = make_key(tmp_path)
    assert ("error", "HOST") not in found(tmp_path, host=PUBLIC)
    keys.revoke("somebody")
    assert ("error", "HOST") in found(tmp_path, host=PUBLIC)


def test_an_open_public_server_may_be_meant(tmp_path: Path) -> None:
    said = found(tmp_path, host=PUBLIC, insecure=True, model_admin=True, metrics="open", webhook_private=True)
    assert "unload models" in said["warning", "INSECURE"]
    assert {("warning", "METRICS"), ("warning", "WEBHOOK_PRIVATE")} <= said.keys()
    assert ("error", "HOST") not in said
    assert ("warning", "INSECURE") not in found(tmp_path, insecure=True)  # this machine alone reaches it


def test_a_proxy_lets_everybody_in_where_there_are_no_keys(tmp_path: Path) -> None:
    assert "no key was ever made" in found(tmp_path, trusted_proxies=1)["warning", "TRUSTED_PROXIES"]
    make_key(tmp_path)
    assert ("warning", "TRUSTED_PROXIES") not in found(tmp_path, trusted_proxies=1)


def test_a_proxy_that_is_not_trusted_makes_all_clients_one(tmp_path: Path) -> None:
    said = found(tmp_path, public_url="https://heat.example.com")
    assert "count as one" in said["warning", "TRUSTED_PROXIES"]
    said = found(tmp_path, public_url="http://heat.example.com", trusted_proxies=1)
    assert "unencrypted" in said["warning", "PUBLIC_URL"]
    assert ("warning", "PUBLIC_URL") not in found(tmp_path, public_url="http://localhost:8000")


def test_a_source_of_jobs_must_not_hold_what_others_sent(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "data", tmp_path / "link", tmp_path.parent):
        assert "everybody's pictures" in found(tmp_path, job_sources=(f"file://{folder}",))["error", "JOB_SOURCES"]
    assert ("error", "JOB_SOURCES") not in found(tmp_path, job_sources=(f"file://{tmp_path}/pictures",))


def test_workers_that_count_for_themselves_are_told(tmp_path: Path) -> None:
    assert "2 workers" in found(tmp_path, rate_limit="5/minute", workers=2)["warning", "RATE_LIMIT_STORAGE"]
    assert ("warning", "RATE_LIMIT_STORAGE") not in found(tmp_path, rate_limit="5/minute")


def test_a_broken_model_file_is_an_error_and_missing_weights_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    assert f"{folder} is no folder" in found(tmp_path, models_dir=folder)["error", "MODELS_DIR"]
    (nowhere,) = place.models(Settings(models_dir=folder, models=(), data_dir=tmp_path))
    assert nowhere.advice == "make it, or correct the path"
    folder.mkdir()
    (folder / "odd.toml").write_text("arch = 7")
    assert "odd.toml" in found(tmp_path, models_dir=folder)["error", "MODELS_DIR"]
    said = found(tmp_path, models=("resnet18", "resnet17"))
    assert "resnet17" in said["error", "MODELS"]
    assert "resnet18" in said["warning", "MODELS"]


@pytest.mark.parametrize("device", ["cuda:99", "cuda"])
def test_a_gpu_that_is_not_there(tmp_path: Path, device: str) -> None:
    is_there = device == "cuda" and torch.cuda.is_available()
    assert (("error", "DEVICE") in found(tmp_path, device=device)) is not is_there


def test_more_processes_and_threads_than_there_is_room_for(tmp_path: Path) -> None:
    said = found(tmp_path, workers=256, torch_threads=64)
    assert ("warning", "WORKERS") in said or ("error", "WORKERS") in said  # of memory, or of shared memory
    assert f"{256 * 64} threads" in said["warning", "TORCH_THREADS"]


def test_too_few_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert "allows 256" in found(tmp_path)["warning", "THREADS"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_data_folder_without_room_or_that_is_none(tmp_path: Path) -> None:
    assert "no job is taken" in found(tmp_path, min_free_bytes=HUGE)["error", "DATA_DIR"]
    (tmp_path / "file").touch()
    assert "cannot write" in found(tmp_path, data_dir=tmp_path / "file")["error", "DATA_DIR"]


def test_a_data_folder_is_tried_by_making_a_file(tmp_path: Path) -> None:
    """There root has all rights, and makes no file all the same, as on some network's disks."""
    assert "cannot write" in found(tmp_path, data_dir=Path("/proc/self"))["error", "DATA_DIR"]
    assert ("error", "DATA_DIR") not in found(tmp_path, data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_another_user_has_made_in_the_data_folder() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)  # noqa: S103 - for a user who is told
        (Path(name) / "jobs.db").touch(0o444)
        (Path(name) / "embed.secret").touch(0o666)
        os.chmod(f"{name}/embed.secret", 0o666)  # noqa: S103
        with somebody_else():
            said = list(place.data_folder(Settings(data_dir=Path(name), min_free_bytes=0)))
    (foreign,) = (each.what for each in said if each.level == "error")
    assert "jobs.db in" in foreign
    assert "embed.secret" not in foreign


def test_a_data_folder_below_one_that_nobody_may_enter() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # noqa: S103 - for a user who is told
        (Path(name) / "locked").mkdir(mode=0)
        settings = Settings(data_dir=Path(name) / "locked" / "data", min_free_bytes=0)
        with somebody_else():
            said = [*place.data_folder(settings), *stores.database(settings)]
    (wrong,) = (each.what for each in said if each.level == "error")
    assert f"cannot write {name}/locked to make {name}/locked/data:" in wrong


def test_what_a_data_folder_would_be_made_in_is_not_given_away() -> None:
    """It may be /var/lib; and its disk need not have the room either."""
    settings = Settings(data_dir=Path("/proc/self/heatlens"), min_free_bytes=HUGE)
    (wrong,) = (each for each in place.data_folder(settings) if each.level == "error")
    assert "cannot write /proc/self to make /proc/self/heatlens" in wrong.what
    assert wrong.advice == f"as root: install -d -o {os.geteuid()} -m 700 /proc/self/heatlens; or name another"


@contextmanager
def somebody_else() -> Iterator[None]:
    """Lose root's rights for a while; others have none to lose."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_more_processes_than_memory_are_reckoned_as_the_default_is(tmp_path: Path) -> None:
    """By as much for each as by which `HEATLENS_WORKERS=0` takes fewer."""
    fit = machine.memory_bytes() // WORKER_BYTES
    assert ("warning", "WORKERS") in found(tmp_path, workers=fit + 2)


def test_the_kind_of_a_folders_file_system() -> None:
    mounts = "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sda1 /data/my\\040disk ext4 rw 0 0\n"
    assert mount_of(Path("/srv"), mounts) == Mount(Path("/"), "overlay")
    assert mount_of(Path("/data/heatlens"), mounts).kind == "nfs4"
    assert mount_of(Path("/data/my disk/heatlens"), mounts).kind == "ext4"
    assert mount_of(Path("/database"), mounts).kind == "overlay"
    hidden = "/dev/sda1 / ext4 rw 0 0\n/dev/sdb1 /größe ext4 rw 0 0\ntmpfs /größe tmpfs rw 0 0\n"
    assert mount_of(Path("/größe/heatlens"), hidden) == Mount(Path("/größe"), "tmpfs")


def test_a_data_folder_in_memory_does_not_last() -> None:
    folder = Path("/dev/shm")  # noqa: S108 - on every Linux a file system in memory
    assert "do not outlive" in found(folder, data_dir=folder)["warning", "DATA_DIR"]


def test_a_metrics_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "file"))
    assert "does not start" in found(tmp_path)["error", "PROMETHEUS_MULTIPROC_DIR"]


def test_stores_that_do_not_answer_and_several_machines(tmp_path: Path, closed_port: int) -> None:
    said = found(
        tmp_path,
        database_url=f"postgresql://me:hush@127.0.0.1:{closed_port}/jobs",
        rate_limit="5/minute",
        rate_limit_storage=f"redis://:hush@127.0.0.1:{closed_port}/0",
    )
    assert "refused" in said["error", "DATABASE_URL"]
    assert "does not answer" in said["warning", "RATE_LIMIT_STORAGE"]
    assert {("warning", "EMBED_SECRETS"), ("warning", "ARTIFACTS_URL")} <= said.keys()
    assert "hush" not in str(said)
    assert all("\n" not in what for what in said.values())


def test_a_store_of_the_jobs_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "no job is taken" in found(tmp_path, artifacts_url=f"{tmp_path}/file/store")["error", "ARTIFACTS_URL"]
    assert ("error", "ARTIFACTS_URL") not in found(tmp_path, artifacts_url=f"{tmp_path}/store")
    assert os.listdir(tmp_path / "store") == []


def test_a_database_of_a_newer_version(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    database = Database(settings)
    database.migrate()
    assert ("error", "DATA_DIR") not in found(tmp_path)
    with database.write() as connection:
        connection.execute(sa.update(tables.versions).values(version=tables.VERSION + 1))
    database.close()
    assert f"version {tables.VERSION + 1}" in found(tmp_path)["error", "DATA_DIR"]


def test_what_it_looks_for_is_not_changed(tmp_path: Path) -> None:
    found(tmp_path, host=PUBLIC, trusted_proxies=1)
    assert not (tmp_path / "data").exists()


def test_the_command_says_what_to_do_and_fails_for_errors_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEATLENS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HEATLENS_HOST", PUBLIC)
    shown = CliRunner().invoke(app, ["doctor", "--brief"])
    assert shown.exit_code == 1
    assert re.search(r"^error  HEATLENS_HOST: .*\n       heatlens keys create", shown.stdout, re.MULTILINE)
    as_json = CliRunner().invoke(app, ["doctor", "--json"])
    assert as_json.exit_code == 1
    assert "HEATLENS_HOST" in {finding["setting"] for finding in json.loads(as_json.stdout)["findings"]}
    monkeypatch.setenv("HEATLENS_INSECURE", "true")
    shown = CliRunner().invoke(app, ["doctor", "--brief"])
    assert "warning  HEATLENS_INSECURE" in shown.stdout
    assert shown.exit_code == 0


@pytest.mark.parametrize(
    ("variable", "value"), [("HEATLENS_PORT", "tcp://10.0.0.7:80"), ("HEATLENS_SERVICE_HOST", "10.0.0.7")]
)
def test_what_kubernetes_says_of_a_service_is_known(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv(variable, value)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code != 0
    assert "enableServiceLinks: false" in str(shown.exception)


def test_there_are_more_than_ten() -> None:
    assert len(set(CHECKS)) == len(CHECKS) >= 15
