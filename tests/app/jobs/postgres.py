"""A Postgres server of our own, to be stopped and killed at will."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
"""Debian's, the newest."""


class Postgres:
    """One cluster in a folder of its own; listens on a port of this machine, trusts everybody, and never syncs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._user = "nobody" if os.geteuid() == 0 else None  # it refuses to be root
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers; after a kill its processes may take a moment to be gone."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200"
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop it, cutting off who is connected."""
        self._run("pg_ctl", "stop", "-w", "-m", "fast")

    def kill(self) -> None:
        """Kill its first process, whose others then end by themselves."""
        os.kill(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def make(self) -> str:
        """Make a database, and return its URL."""
        name = f"jobs_{uuid.uuid4().hex}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        assert BINARIES is not None
        command = [BINARIES / program, "-D", self.folder / "data", *arguments]
        for _ in range(20):
            done = subprocess.run(
                command, user=self._user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            if done.returncode == 0:
                return
            time.sleep(0.5)  # "pre-existing shared memory block is still in use"
        raise RuntimeError(done.stderr)


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """Run a cluster, and remove it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="heatlens-postgres-"))
    folder.chmod(0o755)
    try:
        server = Postgres(folder)
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):
                server.stop()
    finally:
        shutil.rmtree(folder)
