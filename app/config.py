"""The settings: frozen, typed, from `HEATLENS_*` environment variables, and closed to unknown names."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "HEATLENS_"
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class SettingsError(Exception):
    """A setting is unknown or has a value that it cannot have."""


class Settings(BaseSettings):
    """All that an operator can set; each field is the environment variable `HEATLENS_<FIELD IN CAPITALS>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Worker processes; 0: one where a GPU is used, else one per core.",
    )
    threads: int = Field(24, ge=1, le=512, description="HTTP threads of each worker.")
    torch_threads: int = Field(
        0, ge=0, description="Threads of one torch operation; 0: the cores divided among the workers."
    )
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="auto, cpu, cuda or cuda:N; auto takes a GPU where there is one."
    )
    default_model: str = Field("efficientnet_lite0", description="The model of a request that names none.")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Further models to load at start, comma-separated; their weights may be downloaded."
    )
    models_dir: Path | None = Field(None, description="Folder of the operator's models, one TOML file each.")
    max_loaded_models: int = Field(
        4, ge=1, description="Models in a worker beside those of the start; the one unused for longest makes room."
    )
    max_body_bytes: int = Field(20 * 2**20, ge=1024, description="Size of a request body, in bytes.")
    max_form_bytes: int = Field(
        512 * 2**10, ge=1024, description="Size of a form's fields beside the picture, in bytes."
    )
    max_form_fields: int = Field(100, ge=1, description="Fields of a form.")
    max_image_pixels: int = Field(100_000_000, ge=1, description="Width times height of a picture.")
    max_image_side_px: int = Field(65_535, ge=1, description="Longest side of a picture, in pixels.")
    max_output_side_px: int = Field(4096, ge=16, description="Largest value of the option max_side, in pixels.")
    max_targets: int = Field(10, ge=1, description="Targets in one request.")
    max_samples: int = Field(5000, ge=1, description="Runs of the model for one explained picture.")
    max_chunk_pictures: int = Field(
        0,
        ge=0,
        description="Changed pictures in one run of the model, which bounds the memory; 0: 8 on a CPU, 32 on a GPU.",
    )
    queue_size: int = Field(16, ge=1, description="Requests that may wait for one model in one worker.")
    request_timeout_s: float = Field(60.0, gt=0, description="Time for one request, loading included, in seconds.")
    graceful_timeout_s: int = Field(30, ge=1, description="Time to finish what is in flight at shutdown, in seconds.")
    model_admin: bool = Field(
        False, description="Whether /v1/models/{model}/load and /unload are answered, each by one worker for itself."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @property
    def worker_count(self) -> int:
        """Worker processes: as set, else one where a GPU is used, else one per core."""
        on_gpu = self.device.startswith("cuda") or (self.device == "auto" and Path("/dev/nvidiactl").exists())
        return self.workers or (1 if on_gpu else _cores())

    @property
    def torch_thread_count(self) -> int:
        """Threads of one torch operation: as set, else the cores shared among the workers."""
        return self.torch_threads or max(1, _cores() // self.worker_count)

    @property
    def preloaded(self) -> tuple[str, ...]:
        """The models loaded at start, the default first."""
        return tuple(dict.fromkeys((self.default_model, *self.models)))


def _cores() -> int:
    """Return the cores that this process may use: a container's quota can be below what it sees."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
    except FileNotFoundError:
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def load_settings(**overrides: object) -> Settings:
    """Read the environment; `overrides` win. Raises `SettingsError`, which names the variable and the fault."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        close = get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; valid are {', '.join(sorted(known))}."
        raise SettingsError(f"{unknown[0]} is not a setting{hint}")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + str(first["loc"][0]).upper()
        raise SettingsError(f"{name}={first['input']!r}: {first['msg']}.") from error
