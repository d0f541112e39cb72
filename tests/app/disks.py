"""Real disks for tests: small ones, which fill, and which can be made read-only; and a clock that can be put wrong."""

import errno
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import require

_BLOCK_BYTES = 2**16
_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double shift(void) {
    static volatile double *shared;
    if (!shared) {
        int file = open(getenv("TEST_CLOCK"), O_RDONLY);
        void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (found == MAP_FAILED) return 0;
        shared = found;
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += (time_t)shift();
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


class Disk:
    """A file system in memory of a fixed size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no room for one more byte, whatever is deleted or written meanwhile, for as long as it lasts."""
        with self._ballast.open("ab", buffering=0) as file:
            size = _BLOCK_BYTES
            while size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def make_room(self) -> None:
        self._ballast.unlink()

    def remount(self, mode: str) -> None:
        """Make it `ro` or `rw`; read-only only while nobody has a file open for writing."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True, capture_output=True)


@contextmanager
def disk(folder: Path, size_bytes: int, files: int = 0) -> Iterator[Disk]:
    """Mount a small disk, on which so many files can be made (0: any number), which takes root's rights."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},nr_inodes={files}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    require(mounted, "the right to mount (root, in a container with CAP_SYS_ADMIN)")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Clock:
    """The time of day of processes that are started with `environment`; clocks that only run on are right."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(struct.pack("d", 0.0))
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(file)}
        self._file = file

    def jump(self, seconds: float) -> None:
        """Be wrong by so much from now on."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("d", seconds)


def clock(folder: Path) -> Clock:
    """Build a clock, for which a C compiler is needed."""
    compiler = shutil.which("cc")
    require(compiler is not None, "a C compiler (apt-get install gcc)")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CLOCK)
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return Clock(library, folder / "clock.time")
