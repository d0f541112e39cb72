"""What this machine, or this container, has for the server: models, devices, memory, files, folders."""

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

import torch

from app import machine
from app.checkup.finding import Finding, error, warning
from app.config import WORKER_BYTES, Settings
from models import ModelError, Registry
from models.loading import weights_present

_METRICS_BYTES = 8 * 2**20
"""For the metrics' files of a worker: they are mapped, and a page that finds no room ends the process."""
_FILES_OF_A_THREAD, _OTHER_FILES = 4, 200
"""A connection, an upload, a result, a connection to the database; and what does not grow with the threads."""
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"})
_FLEETING = frozenset({"overlay", "tmpfs", "ramfs"})
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked at
_MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How spaces, tabs, line ends and backslashes are written there; all else stands as it is."""
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


class Mount(NamedTuple):
    """Where a file system begins, and its kind."""

    point: PurePath
    kind: str


def mount_of(folder: Path, mounts: str) -> Mount:
    """Return the mount, of those in a text like /proc/self/mounts, in which a folder lies; later ones hide earlier."""
    rows = [line.split(" ") for line in mounts.splitlines()]
    found = [Mount(PurePath(_OCTAL.sub(lambda code: chr(int(code[1], 8)), row[1])), row[2]) for row in reversed(rows)]
    return max((mount for mount in found if folder.is_relative_to(mount.point)), key=lambda each: len(each.point.parts))


def models(settings: Settings) -> Iterator[Finding]:
    """The operator's files, and the weights of what is loaded at start."""
    try:
        registry = Registry(settings.models_dir)
    except ModelError as why:
        if settings.models_dir and not settings.models_dir.is_dir():
            what = f"the server does not start: {settings.models_dir} is no folder"
            yield error("models_dir", what, "make it, or correct the path")
            return
        yield error("models_dir", f"the server does not start: {why}", "correct the file, or take it away")
        return
    except OSError as why:
        yield error("models_dir", f"the server does not start: {why}", "let this user read it")
        return
    for name in settings.preloaded:
        setting = "default_model" if name == settings.default_model else "models"
        try:
            is_here = weights_present(registry.get(name))
        except ModelError as why:
            yield error(setting, f"the server does not start: {why}", "heatlens models list")
            continue
        if not is_here:
            what = f"the weights of {name} are not here: the server downloads them at start, or does not start"
            yield warning(setting, what, f"heatlens models fetch {name}")


def device(settings: Settings) -> Iterator[Finding]:
    """GPUs that are there, or asked for, and cannot be used."""
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    build = "" if torch.version.cuda else " (built without CUDA)"
    for name in settings.devices:
        if name != "cpu" and int(name.partition(":")[2]) >= usable:
            what = f"the server does not start: torch{build} can use {usable} GPUs, and {name} is none of them"
            yield error("device", what, "nvidia-smi; docker --gpus all; an image with TORCH_VARIANT=cuda; or cpu")


def memory(settings: Settings) -> Iterator[Finding]:
    """More processes than the memory holds; where it runs out, the system kills the largest."""
    processes, free_bytes = settings.worker_count + settings.job_workers, machine.memory_bytes()
    needed_bytes = processes * WORKER_BYTES
    if needed_bytes > free_bytes:
        room = f"take {needed_bytes / 2**30:g} GiB, and {free_bytes / 2**30:.1f} are free"
        what = f"{processes} processes, with those for jobs, {room}"
        yield warning("workers", what, "0 takes as many as fit; HEATLENS_JOB_WORKERS=0 saves those for jobs")
    yield from _shared_memory(settings)


def _shared_memory(settings: Settings) -> Iterator[Finding]:
    if _METRICS_FOLDER in os.environ or not _SHARED_MEMORY.is_dir():
        return  # the metrics' files lie elsewhere
    free_bytes, needed = shutil.disk_usage(_SHARED_MEMORY).free, settings.worker_count * _METRICS_BYTES
    if free_bytes < needed:
        what = f"{_SHARED_MEMORY} has {free_bytes} bytes for the metrics' files, and {needed} may be needed"
        yield error("workers", what, f"docker --shm-size=64m; or {_METRICS_FOLDER}=/tmp/metrics")


def threads(settings: Settings) -> Iterator[Finding]:
    """More threads than cores, or than files may be open."""
    together, cores = settings.worker_count * settings.torch_thread_count, machine.cores()
    if settings.devices == ("cpu",) and together > 2 * cores:
        what = f"{together} threads of torch share {cores} cores, and wait for each other"
        yield warning("torch_threads", what, "0 divides the cores; fewer HEATLENS_WORKERS")
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_FILES + _FILES_OF_A_THREAD * settings.threads
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        what = f"{settings.threads} threads may open {needed} files, and the system allows {allowed}"
        yield warning("threads", what, f"ulimit -n {needed}; systemd: LimitNOFILE=; docker: --ulimit nofile=")


def data_folder(settings: Settings) -> Iterator[Finding]:
    """The data folder: writable, local, lasting, with room."""
    folder, user = _existing(settings.data_dir), os.geteuid()
    is_writable = _is_writable(folder)
    if not is_writable and folder == settings.data_dir:
        what = f"user {user} cannot write {folder}: no jobs, no keys, no links"
        yield error("data_dir", what, f"chown {user} {folder}, or mount it for writing, or name another")
    elif not is_writable:  # what it would be made in may be the system's own, and is not to be given away
        what = f"user {user} cannot write {folder} to make {settings.data_dir}: no jobs, no keys, no links"
        yield error("data_dir", what, f"as root: install -d -o {user} -m 700 {settings.data_dir}; or name another")
    elif foreign := _not_ours(settings.data_dir):
        what = f"user {user} cannot write {', '.join(foreign)} in {folder}, which somebody else made"
        yield error("data_dir", what, f"chown -R {user} {folder}; run every heatlens command as this user")
    mount = mount_of(folder.resolve(), os.fsdecode(_MOUNTS.read_bytes()))
    if mount.kind in _NETWORK and not settings.database_url:
        what = f"{folder} is on a network ({mount.kind}), where SQLite's locks cannot be relied on"
        yield error("data_dir", what, "a local disk, or HEATLENS_DATABASE_URL=postgresql://...")
    if mount.kind in _FLEETING and not (settings.database_url and settings.artifacts_url):
        what = f"{folder} is on {mount.kind}: jobs, keys and links do not outlive the container or the machine"
        yield warning("data_dir", what, "a volume")
    free_bytes = shutil.disk_usage(folder).free
    if is_writable and free_bytes < settings.min_free_bytes:
        what = f"{folder} has {free_bytes} bytes left, less than HEATLENS_MIN_FREE_BYTES: no job is taken"
        yield error("data_dir", what, "make room, or keep jobs for less time: HEATLENS_JOB_RETENTION_S")


def metrics_folder(_settings: Settings) -> Iterator[Finding]:
    """The folder through which the workers add up their metrics, if the operator names one."""
    folder = os.environ.get(_METRICS_FOLDER)
    if folder and not _is_writable(_existing(Path(folder))):
        what = f"the server does not start: user {os.geteuid()} cannot write {folder}"
        yield Finding("error", _METRICS_FOLDER, what, "unset it, or name a folder of this user's")


def _existing(folder: Path) -> Path:
    """Return the folder itself, or what it would be made in, as far as this user may look."""
    paths = (folder, *folder.absolute().parents)
    return next(path for path in paths if os.path.exists(path))  # Path.exists raises where it may not look


def _is_writable(folder: Path) -> bool:
    """Return whether a file can be made there, by making one, which has no name or is deleted at once."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _not_ours(folder: Path) -> list[str]:
    """Return what lies in the data folder and cannot be written, as after root has made a key there."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if not os.access(path, os.W_OK, effective_ids=True))
