"""The settings: frozen, typed, from `HEATLENS_*` environment variables, and closed to unknown names."""

import base64
import ipaddress
import os
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, StringConstraints, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app import machine

PREFIX = "HEATLENS_"
SLOT = "LOCAL_RANK"
"""The environment variable that says which of the devices is this process's; torch's own launcher calls it so."""
LONGEST_S = 3600
"""The longest time that a setting may give, and that loading may take, a first download included."""
BOOT_FAILED = 3
"""gunicorn's own exit code for a worker that cannot start, and need not be tried again."""
_SHARDS_OF_A_JOB = 20_000
_PASSWORD = re.compile(r"(://[^/:@]*):.*@")
_PASSWORD_OPTION = re.compile(r"""([?&](?:ssl)?password=)[^&]*?(?=&|['"]?$)""")
SECRET_CHARACTERS = 32
"""Of the secrets that sign links, the shortest has so many."""
_TEN_YEARS_S = 10 * 365 * 24 * 3600.0
_SERVICE_LINKS = "Kubernetes sets it for a service of such a name; enableServiceLinks: false in the pod keeps it out."
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]")
_DEFAULT_PORT = re.compile(r"https:.*:0*443|http:.*:0*80")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?")
WORKER_BYTES = 3 * 2**29
"""What a worker with the embedded model takes: 1 GiB was measured under load. Pictures near their limits take more."""

Timeout = Annotated[float, Field(gt=0, lt=LONGEST_S)]


class SettingsError(Exception):
    """A setting is unknown or has a value that it cannot have."""


class Settings(BaseSettings):
    """All that an operator can set; each field is the environment variable `HEATLENS_<FIELD IN CAPITALS>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    insecure: bool = Field(False, description="Whether anybody may ask without an API key, also at a public address.")
    hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Names beside localhost under which the server may be asked where no API key is needed, "
        "comma-separated, as in heat.example.com, for a proxy or a tunnel.",
    )
    key_failure_limit: str = Field(
        "30/minute", description="Wrong API keys that one address may send, written as HEATLENS_RATE_LIMIT is."
    )
    metrics: Literal["key", "open", "off"] = Field(
        "key", description="Who may read /metrics: who has a key with the scope admin, anybody (open), or nobody (off)."
    )
    docs: Literal["open", "key", "off"] = Field(
        "open", description="The same for /docs and /openapi.json; a browser cannot send a key there."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Sites whose scripts may call the routes below /v1 from a browser, comma-separated, as in "
        "https://review.example.com; they send no cookies.",
    )
    workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Worker processes; 0: one per GPU, else one per core, fewer where memory is short.",
    )
    threads: int = Field(
        96,
        ge=1,
        le=512,
        description="HTTP threads of each worker: more than HEATLENS_QUEUE_TOTAL and HEATLENS_EVENT_STREAMS together, "
        "to refuse the rest.",
    )
    torch_threads: int = Field(
        0, ge=0, description="Threads of one torch operation; 0: the cores divided among the workers."
    )
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda|cuda:\d+(,cuda:\d+)*)$")] = Field(
        "auto",
        description="auto, cpu, cuda (all GPUs), or GPUs by number (cuda:0,cuda:1); auto takes all GPUs, if any.",
    )
    default_model: str = Field("efficientnet_lite0", description="The model of a request that names none.")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Further models to load at start, comma-separated; their weights may be downloaded."
    )
    models_dir: Path | None = Field(None, description="Folder of the operator's models, one TOML file each.")
    model_memory_bytes: int = Field(
        0,
        ge=0,
        description="Memory of the models in a worker, beyond which the one unused for longest makes room, those of "
        "the start excepted; 0: half of a GPU's, or of the free memory divided among the workers.",
    )
    load_wait_s: float = Field(
        5.0, ge=0, description="How long a request waits for its model to load before it is told to come again."
    )
    max_body_bytes: int = Field(20 * 2**20, ge=1024, description="Size of a request body, in bytes.")
    max_form_bytes: int = Field(
        512 * 2**10, ge=1024, description="Size of a form's fields beside the picture, in bytes."
    )
    max_form_fields: int = Field(100, ge=1, description="Fields of a form.")
    max_json_depth: int = Field(32, ge=4, le=200, description="How deep JSON may be nested.")
    max_json_values: int = Field(
        4_000_000, ge=1000, description="Numbers, words, lists and objects of one JSON body, all together."
    )
    max_image_pixels: int = Field(100_000_000, ge=1, description="Width times height of a picture.")
    max_image_side_px: int = Field(65_535, ge=1, description="Longest side of a picture, in pixels.")
    max_output_side_px: int = Field(4096, ge=16, description="Largest value of the option max_side, in pixels.")
    max_targets: int = Field(10, ge=1, description="Targets in one request.")
    max_layers: int = Field(16, ge=1, description="Target layers in one request.")
    max_samples: int = Field(5000, ge=1, description="Runs of the model for one explained picture.")
    max_diagnostic_pictures: int = Field(
        16,
        ge=1,
        description="Pictures of one request to /v1/diagnostics, where they go through the model together, or to "
        "KServe's routes.",
    )
    max_activation_bytes: int = Field(
        8 * 2**30,
        ge=1,
        description="What all layers may answer together to the pictures of one request to /v1/diagnostics, as far as "
        "it is known.",
    )
    max_feature_bytes: int = Field(
        64 * 2**20, ge=1, description="Largest answer of one layer that is given out, for all pictures together."
    )
    max_chunk_pictures: int = Field(
        0,
        ge=0,
        description="Changed pictures in one run of the model, which bounds the memory; 0: 8 on a CPU, 32 on a GPU.",
    )
    batch_size: int = Field(
        0, ge=0, le=1024, description="Pictures of several requests that run together; 0: 8 on a CPU, 32 on a GPU."
    )
    batch_wait_s: float = Field(
        0.002,
        ge=0,
        le=1,
        description="How long a busy device waits for its next batch to fill, in seconds; an idle one never waits.",
    )
    queue_size: int = Field(
        32, ge=1, description="Requests that are worked on or wait for one model in one worker; more are refused."
    )
    queue_total: int = Field(64, ge=1, description="The same for all models of a worker together.")
    request_timeout_s: float = Field(
        60.0, gt=0, lt=LONGEST_S, description="Time for one request, loading included, in seconds."
    )
    method_timeouts_s: Annotated[dict[str, Timeout], NoDecode] = Field(
        {}, description="Other times for some methods, as in rise=120,scorecam=90, in seconds."
    )
    header_timeout_s: float = Field(
        10.0, gt=0, lt=LONGEST_S, description="Time for a request's headers to come in, in seconds."
    )
    client_timeout_s: float = Field(
        30.0,
        gt=0,
        lt=LONGEST_S,
        description="How long a client is waited for that sends no more of its body, or takes no more of its answer, "
        "in seconds.",
    )
    min_body_bytes_per_s: int = Field(
        1000, ge=0, description="How fast, at least, a client sends its body and takes its answer; 0: as slow as it is."
    )
    model_stall_s: float = Field(
        30.0,
        ge=0,
        description="A worker whose model still runs so long after all whom it works for were told that it is too "
        "late is replaced, in seconds; 0: never.",
    )
    result_cache_bytes: int = Field(
        64 * 2**20, ge=0, description="Finished answers that a worker keeps for who asks the same again; 0: none."
    )
    rate_limit: str = Field(
        "",
        description="Requests of one client for the models' work and for pictures to be kept, as in "
        "60/minute;1000/day; empty: any number.",
    )
    rate_limit_storage: str = Field(
        "memory://",
        description="Where they are counted: memory:// in each worker for itself, redis://HOST:PORT/DB for all.",
    )
    trusted_proxies: int = Field(
        0, ge=0, description="Proxies in front whose X-Forwarded-For is believed; 0: a client is who connects."
    )
    graceful_timeout_s: int = Field(
        30, ge=1, lt=LONGEST_S, description="Time to finish what is in flight at shutdown, in seconds."
    )
    model_admin: bool = Field(
        False, description="Whether /v1/models/{model}/load and /unload are answered, each by one worker for itself."
    )
    data_dir: Path = Field(
        Path("~/.local/share/heatlens"),
        validate_default=True,
        description="Folder of what is kept: the jobs' database, pictures and results.",
    )
    database_url: str = Field(
        "",
        description="The jobs' database where several machines share it, postgresql://USER:PASSWORD@HOST/NAME; empty: "
        "a SQLite file in HEATLENS_DATA_DIR.",
    )
    artifacts_url: str = Field(
        "",
        description="Where the jobs' pictures and results lie, as fsspec writes it (s3://bucket/prefix); empty: in "
        "HEATLENS_DATA_DIR.",
    )
    job_workers: int = Field(
        1,
        ge=0,
        le=256,
        description="Processes for jobs that the server starts beside itself; 0: `heatlens worker` does.",
    )
    job_shard_pictures: int = Field(
        128, ge=1, le=10_000, description="Pictures of a job that are handed to a worker together."
    )
    job_stall_s: float = Field(
        300.0,
        gt=0,
        description="A worker in which no step of a job ends for so long is killed and replaced, in seconds.",
    )
    job_retention_s: float = Field(
        30 * 24 * 3600.0,
        ge=0,
        description="How long a finished job is kept, with its results, in seconds; 0: for ever.",
    )
    job_store_bytes: int = Field(
        0, ge=0, description="Size of all jobs' files, beyond which the oldest finished jobs are deleted; 0: any."
    )
    min_free_bytes: int = Field(
        256 * 2**20,
        ge=0,
        description="Space that jobs leave free on the disk: with less they wait, and none is accepted.",
    )
    min_free_files: int = Field(
        1000,
        ge=0,
        description="Files (inodes) that jobs leave free on the disk, where its file system has a fixed number.",
    )
    max_job_bytes: int = Field(10 * 2**30, ge=1024, description="Size of a job's upload, in bytes.")
    max_job_items: int = Field(100_000, ge=1, le=1_000_000, description="Pictures of one job.")
    max_archive_bytes: int = Field(20 * 2**30, ge=1024, description="Size of an archive's contents, in bytes.")
    max_archive_ratio: float = Field(100.0, ge=1, description="How many times larger an archive may become unpacked.")
    max_caller_jobs: int = Field(100, ge=1, description="Unfinished jobs of one client.")
    max_caller_bytes: int = Field(
        100 * 2**30, ge=0, description="Size of all files of one client's jobs, in bytes; 0: any."
    )
    job_sources: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Where jobs may read pictures by themselves: URL prefixes, comma-separated, as in "
        "file:///data/pictures,s3://bucket/prefix.",
    )
    webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Signs webhooks (Standard Webhooks), as whsec_ and 24 to 64 bytes in base64; empty: none.",
    )
    webhook_private: bool = Field(False, description="Whether webhooks may go to private addresses, and by http.")
    image_retention_s: float = Field(
        24 * 3600.0,
        ge=1,
        le=_TEN_YEARS_S,
        description="How long a picture sent to /v1/images is kept at most, in seconds.",
    )
    embed_retention_s: float = Field(
        7 * 24 * 3600.0,
        ge=1,
        le=_TEN_YEARS_S,
        description="How long a link of /v1/embed-links lives at most, in seconds.",
    )
    max_kept_images_bytes: int = Field(
        2**30, ge=0, description="Size of all pictures that are kept for /v1/images and embed links, in bytes."
    )
    max_caller_images_bytes: int = Field(256 * 2**20, ge=0, description="The same for one client, in bytes.")
    public_url: str = Field(
        "",
        description="Where readers reach this server, as in https://heat.example.com, for embed links; empty: where "
        "each was asked for.",
    )
    embed_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="Sign embed links, comma-separated, 32 characters or more each: the first one signs, all are "
        "believed; empty: one of this machine's own, kept in HEATLENS_DATA_DIR.",
    )
    embed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Sites that may show /embed pages in a frame, comma-separated, as in https://review.example.com; "
        "empty: this one alone.",
    )
    label_studio_url: str = Field(
        "",
        description="The Label Studio from which tasks' pictures may be fetched, as in https://labels.example.com; "
        "empty: tasks have to carry them.",
    )
    label_studio_token: SecretStr = Field(
        SecretStr(""), description="Label Studio's access token, sent to HEATLENS_LABEL_STUDIO_URL alone."
    )
    event_streams: int = Field(
        16, ge=0, description="Clients of a worker that watch jobs live, each at the cost of one of HEATLENS_THREADS."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people, or one JSON object each.")
    tracing: bool = Field(
        False, description="Whether requests are traced by OpenTelemetry; its OTEL_* variables say where to."
    )

    @field_validator("models", "hosts", "job_sources", "embed_origins", "cors_origins", "embed_secrets", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("method_timeouts_s", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        return {name.strip(): seconds.strip() for name, _, seconds in pairs}

    @field_validator("event_streams")
    @classmethod
    def _leave_threads_to_refuse(cls, value: int, info: ValidationInfo) -> int:
        threads, places = info.data.get("threads"), info.data.get("queue_total")
        if threads is not None and places is not None and value + places >= threads:
            msg = (
                f"with {places} of HEATLENS_QUEUE_TOTAL these take all {threads} threads (HEATLENS_THREADS), and none "
                "would be left to refuse what is more"
            )
            raise PydanticCustomError("too_few_threads", msg)
        return value

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that workers take in turn, as torch calls them; found without torch, so never wrong to ask."""
        if self.device in ("auto", "cuda"):
            gpus = tuple(f"cuda:{index}" for index in range(machine.gpus()))
            return gpus or ("cpu" if self.device == "auto" else "cuda:0",)
        return tuple(self.device.split(","))

    @field_validator("rate_limit", "key_failure_limit")
    @classmethod
    def _parse_limits(cls, value: str) -> str:
        if value:
            import limits  # takes a sixth of a second, which most commands do not need

            try:
                found = limits.parse_many(value)
            except ValueError as error:
                msg = "it reads 60/minute, or 60/minute;1000/day, or is empty for any number"
                raise PydanticCustomError("no_limit", msg) from error
            if any(limit.amount < 1 for limit in found):
                msg = "a limit of 0 refuses everybody; leave it empty for any number"
                raise PydanticCustomError("no_request", msg)
        return value

    @field_validator("rate_limit_storage")
    @classmethod
    def _parse_storage(cls, value: str) -> str:
        if value == "memory://":
            return value
        url = urlsplit(value)
        if url.scheme not in ("redis", "rediss") or not url.hostname or url.port == 0:  # `port` raises for no number
            msg = "it reads memory://, or redis://HOST:PORT/DB (rediss:// with TLS)"
            raise ValueError(msg)
        return value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _parse_database(cls, value: str) -> str:
        if value and not _is_postgresql(value):
            msg = "it reads postgresql://USER:PASSWORD@HOST/NAME, or is empty for a SQLite file in HEATLENS_DATA_DIR"
            raise PydanticCustomError("no_database_url", msg)
        return value

    @field_validator("artifacts_url")
    @classmethod
    def _parse_artifacts(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in ("", "file"):
            _require_file_system(url.scheme)
        elif value and (url.netloc or not url.path.startswith("/")):
            msg = "it reads /FOLDER, s3://BUCKET/PREFIX or the like, or is empty for a folder in HEATLENS_DATA_DIR"
            raise PydanticCustomError("no_artifacts_url", msg)
        return value

    @field_validator("max_job_items")
    @classmethod
    def _few_shards(cls, value: int, info: ValidationInfo) -> int:
        """A job is queued in one transaction, during which SQLite lets nobody else write."""
        pictures = info.data.get("job_shard_pictures", value)
        if value > _SHARDS_OF_A_JOB * pictures:
            msg = (
                f"with {pictures} pictures a shard (HEATLENS_JOB_SHARD_PICTURES) such a job would have more than "
                f"{_SHARDS_OF_A_JOB} shards"
            )
            raise PydanticCustomError("too_many_shards", msg)
        return value

    @field_validator("job_sources")
    @classmethod
    def _parse_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in value:
            url = urlsplit(prefix)
            if not url.scheme or "::" in prefix or not (url.netloc or url.path.strip("/")):
                msg = "each is a URL with a folder or bucket, as in file:///data/pictures or s3://bucket/prefix"
                raise PydanticCustomError("no_source", msg)
            if url.scheme not in ("file", "local"):
                _require_file_system(url.scheme)
        return value

    @field_validator("embed_secrets")
    @classmethod
    def _long_secrets(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(len(secret.get_secret_value()) < SECRET_CHARACTERS for secret in value):
            msg = f"each has {SECRET_CHARACTERS} characters or more, as `openssl rand -base64 32` gives them"
            raise PydanticCustomError("short_secret", msg)
        return value

    @field_validator("embed_origins", "cors_origins")
    @classmethod
    def _parse_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                msg = (
                    "each is a scheme and a host, with nothing behind them, as in https://review.example.com or "
                    "http://localhost:3000"
                )
                raise PydanticCustomError("no_origin", msg)
            if _DEFAULT_PORT.fullmatch(origin):
                msg = "browsers leave out a port that goes without saying, :443 of https and :80 of http; so must this"
                raise PydanticCustomError("default_port", msg)
        return value

    @field_validator("hosts")
    @classmethod
    def _parse_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_HOST_NAME.fullmatch, value)):
            msg = "each is a name or an address, without scheme and port, as in heat.example.com or [2001:db8::1]"
            raise PydanticCustomError("no_host", msg)
        return value

    @field_validator("public_url")
    @classmethod
    def _parse_public(cls, value: str) -> str:
        if value and not _ORIGIN.fullmatch(value):
            msg = "it is a scheme and a host, with nothing behind them, as in https://heat.example.com, or is empty"
            raise PydanticCustomError("no_origin", msg)
        return value

    @field_validator("label_studio_url")
    @classmethod
    def _parse_label_studio(cls, value: str) -> str:
        url = urlsplit(value)
        if value and (url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment):
            msg = "it reads https://labels.example.com, with a path if Label Studio has one, or is empty"
            raise PydanticCustomError("no_label_studio", msg)
        return value.rstrip("/")

    @field_validator("webhook_secret")
    @classmethod
    def _parse_secret(cls, value: SecretStr) -> SecretStr:
        secret = value.get_secret_value()
        if secret and not _is_webhook_secret(secret):
            msg = "it is whsec_ followed by 24 to 64 bytes in base64, as `openssl rand -base64 32` gives them"
            raise PydanticCustomError("no_webhook_secret", msg)
        return value

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach the server; a host that is a name may be anything."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"

    @property
    def worker_count(self) -> int:
        """Worker processes: as set, else one per GPU, else one per core, fewer where memory is short, also for jobs."""
        if self.workers:
            return self.workers
        if self.devices != ("cpu",):
            return len(self.devices)
        return max(1, min(machine.cores(), machine.memory_bytes() // WORKER_BYTES - self.job_workers))

    @property
    def torch_thread_count(self) -> int:
        """Threads of one torch operation: as set, else the cores shared among the workers."""
        return self.torch_threads or max(1, machine.cores() // self.worker_count)

    @property
    def database_shown(self) -> str:
        """Where the jobs and keys are, as people may be told."""
        return without_password(self.database_url) or f"{self.data_dir}/jobs.db"

    @property
    def preloaded(self) -> tuple[str, ...]:
        """The models loaded at start, the default first."""
        return tuple(dict.fromkeys((self.default_model, *self.models)))


def _require_file_system(scheme: str) -> None:
    """Raise what is wrong with a URL's scheme: fsspec knows none such, or the library for it is missing."""
    from fsspec.registry import known_implementations  # takes its time

    if scheme not in known_implementations:
        raise PydanticCustomError("no_file_system", "fsspec knows no {scheme}://", {"scheme": scheme})
    library = known_implementations[scheme]["class"].partition(".")[0]
    if find_spec(library) is None:
        msg = "{scheme}:// needs {library}: pip install {library}"
        raise PydanticCustomError("no_library", msg, {"scheme": scheme, "library": library})


def without_password(text: str) -> str:
    """Return a URL as it may be shown; any other text as it is."""
    return _PASSWORD.sub(r"\1:***@", _PASSWORD_OPTION.sub(r"\1***", text))


def _is_postgresql(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme == "postgresql" and bool(url.hostname and url.path.strip("/")) and url.port != 0
    except ValueError:  # a port that is none, brackets without end
        return False


def _is_webhook_secret(secret: str) -> bool:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    return secret.startswith("whsec_") and 24 <= len(key) <= 64


def _by_kubernetes(variable: str) -> bool:
    """Whether Kubernetes set a variable, to describe a service: tcp://ADDRESS:PORT, or what belongs to one."""
    return bool(re.fullmatch(r"(tcp|udp|sctp)://.*", os.environ.get(variable, ""))) or (
        "KUBERNETES_SERVICE_HOST" in os.environ and bool(re.search(r"_SERVICE_(HOST|PORT)|_PORT_\d+_", variable))
    )


def load_settings(**overrides: object) -> Settings:
    """Read the environment; `overrides` win. Raises `SettingsError`, which names the variable and the fault."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        if link := next(filter(_by_kubernetes, unknown), None):
            raise SettingsError(f"{link} is not a setting. {_SERVICE_LINKS}")
        close = get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; valid are {', '.join(sorted(known))}."
        raise SettingsError(f"{unknown[0]} is not a setting{hint}")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, *part = map(str, first["loc"])
        where = "".join(f" ({key})" for key in part)
        kind = Settings.model_fields[name].annotation
        is_secret = SecretStr in (kind, *get_args(kind))
        value = "" if is_secret else f"={without_password(repr(first['input']))}"
        variable = PREFIX + name.upper()
        hint = f" {_SERVICE_LINKS}" if _by_kubernetes(variable) else ""
        raise SettingsError(f"{variable}{value}{where}: {first['msg']}.{hint}") from error
