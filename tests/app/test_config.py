"""Settings are closed: a misspelt variable stops the start and is named."""

from pathlib import Path

import pytest

from app.config import Settings, SettingsError, load_settings, without_password


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"HEATLENS_{name.upper()}", raising=False)


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_PORT", "9000")
    monkeypatch.setenv("HEATLENS_MODELS", "resnet50, vgg16,")
    monkeypatch.setenv("HEATLENS_MODELS_DIR", "/srv/models")
    settings = load_settings()
    assert (settings.port, settings.models, settings.models_dir) == (9000, ("resnet50", "vgg16"), Path("/srv/models"))
    assert settings.preloaded == ("efficientnet_lite0", "resnet50", "vgg16")


def test_overrides_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_PORT", "9000")
    assert load_settings(port=9001).port == 9001


def test_a_misspelt_variable_is_named_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_DEFUALT_MODEL", "resnet50")
    with pytest.raises(
        SettingsError, match="HEATLENS_DEFUALT_MODEL is not a setting; did you mean HEATLENS_DEFAULT_MODEL"
    ):
        load_settings()


def test_a_variable_of_kubernetes_is_told_from_one_that_is_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_DEFUALT_MODEL", "resnet50")
    monkeypatch.setenv("HEATLENS_PORT_80_TCP", "tcp://10.0.0.1:80")
    with pytest.raises(SettingsError, match=r"HEATLENS_PORT_80_TCP is not a setting.*enableServiceLinks"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "65536"), ("WORKERS", "-1"), ("DEVICE", "tpu"), ("REQUEST_TIMEOUT_S", "0")]
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEATLENS_{name}", value)
    with pytest.raises(SettingsError, match=f"HEATLENS_{name}='{value}': "):
        load_settings()


def test_words_that_are_no_limit_are_told_how_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_RATE_LIMIT", "often")
    with pytest.raises(SettingsError, match=r"^HEATLENS_RATE_LIMIT='often': it reads 60/minute, or 60/minute;1000/day"):
        load_settings()


def test_cores_are_shared_among_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)))
    monkeypatch.setattr("app.machine._CPU_QUOTA", Path("/nowhere"))
    assert Settings(device="cpu").worker_count == 6
    assert Settings(device="cpu").torch_thread_count == 1
    assert Settings(device="cpu", workers=2).torch_thread_count == 3
    assert Settings(device="cpu", workers=9).torch_thread_count == 1
    assert Settings(device="cuda:1").worker_count == 1
    assert Settings(device="cpu", torch_threads=5).torch_thread_count == 5


@pytest.mark.parametrize(("quota", "workers"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_containers_quota_bounds_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, workers: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)))
    monkeypatch.setattr("app.machine._CPU_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert Settings(device="cpu").worker_count == workers


def test_workers_are_fewer_where_memory_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)))
    monkeypatch.setattr("app.machine._CPU_QUOTA", Path("/nowhere"))
    monkeypatch.setattr("app.machine._MEMORY_LIMIT", tmp_path / "memory.max")
    for limit, workers, threads in (("max", 6, 1), (str(9 * 2**29 + 5), 3, 2), (str(2**29), 1, 6)):  # 1.5 GiB each
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        settings = Settings(device="cpu", job_workers=0)
        assert (settings.worker_count, settings.torch_thread_count) == (workers, threads)
    (tmp_path / "memory.max").write_text(str(9 * 2**29))
    assert Settings(device="cpu", job_workers=1).worker_count == 2
    assert Settings(device="cpu", workers=4).worker_count == 4


@pytest.mark.parametrize(
    ("device", "visible", "devices"),
    [
        ("cpu", "0,1", ("cpu",)),
        ("auto", "0,1", ("cuda:0", "cuda:1")),
        ("cuda", "3,5,6", ("cuda:0", "cuda:1", "cuda:2")),
        ("auto", "", ("cpu",)),
        ("auto", "-1", ("cpu",)),
        ("cuda", "", ("cuda:0",)),  # and the worker says that it is not there
        ("cuda:1,cuda:3", "0", ("cuda:1", "cuda:3")),
    ],
)
def test_one_worker_for_each_device(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, devices: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = Settings(device=device)
    assert settings.devices == devices
    if devices != ("cpu",):
        assert settings.worker_count == len(devices)


@pytest.mark.parametrize("device", ["cuda:0,cpu", "cuda:", "cuda:0;cuda:1", "cuda,cuda:0", "gpu"])
def test_a_device_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setenv("HEATLENS_DEVICE", device)
    with pytest.raises(SettingsError, match="HEATLENS_DEVICE="):
        load_settings()


def test_methods_may_have_times_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_METHOD_TIMEOUTS_S", "rise=120, scorecam=90.5,")
    assert load_settings().method_timeouts_s == {"rise": 120.0, "scorecam": 90.5}
    for wrong in ("rise", "rise=", "rise=0", "rise=soon", "rise=3600"):
        monkeypatch.setenv("HEATLENS_METHOD_TIMEOUTS_S", wrong)
        with pytest.raises(SettingsError, match="HEATLENS_METHOD_TIMEOUTS_S="):
            load_settings()


def test_some_threads_are_left_to_refuse_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_THREADS", "24")
    monkeypatch.setenv("HEATLENS_QUEUE_TOTAL", "20")
    monkeypatch.setenv("HEATLENS_EVENT_STREAMS", "4")
    faults = r"HEATLENS_EVENT_STREAMS='4': with 20 of HEATLENS_QUEUE_TOTAL .* all 24 threads \(HEATLENS_THREADS\)"
    with pytest.raises(SettingsError, match=faults):
        load_settings()
    monkeypatch.setenv("HEATLENS_EVENT_STREAMS", "3")
    assert load_settings().event_streams == 3


@pytest.mark.parametrize(("name", "value"), [("THREADS", "80"), ("QUEUE_TOTAL", "80"), ("EVENT_STREAMS", "32")])
def test_they_are_where_two_of_the_three_numbers_are_the_usual_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    load_settings()
    monkeypatch.setenv(f"HEATLENS_{name}", value)
    with pytest.raises(SettingsError, match=r"HEATLENS_EVENT_STREAMS=.*HEATLENS_QUEUE_TOTAL.*HEATLENS_THREADS"):
        load_settings()


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_shards_are_not_too_many_for_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_MAX_JOB_ITEMS", "100000")
    monkeypatch.setenv("HEATLENS_JOB_SHARD_PICTURES", "5")
    assert load_settings().max_job_items == 100_000
    monkeypatch.setenv("HEATLENS_JOB_SHARD_PICTURES", "4")
    with pytest.raises(SettingsError, match=r"HEATLENS_MAX_JOB_ITEMS.*HEATLENS_JOB_SHARD_PICTURES.*20000"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "mysql://a@b/c"),
        ("database_url", "postgresql://host"),
        ("database_url", "postgresql://host:port/name"),
        ("artifacts_url", "folder/below"),
        ("artifacts_url", "file://folder/below"),
        ("artifacts_url", "s4://bucket/prefix"),
        ("job_sources", "file:///data,s4://bucket"),
        ("job_sources", "/data/pictures"),
        ("job_sources", "file:///data,zip::file:///data/a.zip"),
        ("webhook_secret", "secret"),
        ("webhook_secret", "whsec_c2hvcnQ="),
        ("embed_secrets", "0123456789abcdef0123456789abcde"),
        ("embed_secrets", "0123456789abcdef0123456789abcdef,short"),
        ("embed_origins", "review.example.com"),
        ("embed_origins", "https://review.example.com/"),
        ("embed_origins", "https://a.example; script-src *"),
        ("embed_origins", "*"),
        ("embed_origins", "https://review.example.com:443"),
        ("cors_origins", "http://localhost:80"),
        ("cors_origins", "https://a.example,https://[::1]:0443"),
        ("hosts", "https://heat.example.com"),
        ("hosts", "heat.example.com:8000"),
        ("hosts", "a.example,*"),
        ("public_url", "https://heat.example.com/heat"),
        ("image_retention_s", "inf"),
        ("embed_retention_s", "1e12"),
        ("label_studio_url", "labels.example.com"),
        ("label_studio_url", "file:///etc"),
    ],
)
def test_what_cannot_be_used_stops_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEATLENS_{name.upper()}", value)
    with pytest.raises(SettingsError, match=f"HEATLENS_{name.upper()}"):
        load_settings()


def test_names_and_ports_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEATLENS_HOSTS", "heat.example.com, 10.0.0.1,[2001:db8::1]")
    monkeypatch.setenv("HEATLENS_CORS_ORIGINS", "http://a.example:443,https://a.example:80,https://a.example:4430")
    assert load_settings().hosts == ("heat.example.com", "10.0.0.1", "[2001:db8::1]")
    assert len(load_settings().cors_origins) == 3


def test_a_store_whose_library_is_missing_stops_the_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEATLENS_ARTIFACTS_URL", "gs://bucket/prefix")
    monkeypatch.setattr("app.config.find_spec", lambda library: None if library == "gcsfs" else library)
    with pytest.raises(SettingsError, match="pip install gcsfs"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://me:hush/h@sh@host/name"),
        ("WEBHOOK_SECRET", "hush"),
        ("EMBED_SECRETS", "0123456789abcdef0123456789abcdef,hush"),
        ("RATE_LIMIT_STORAGE", "x://:hush@y"),
        ("DATABASE_URL", "mysql://host/name?user=me&password=hush"),
        ("DATABASE_URL", "mysql://host/name?sslpassword=a'hush@b&user=me"),
        ("DATABASE_URL", "mysql://me:hush@host:1/name?password=hush&sslpassword=hush"),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEATLENS_{name}", value)
    with pytest.raises(SettingsError, match=f"HEATLENS_{name}") as caught:
        load_settings()
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/name", "postgresql://host/name"),
        ("postgresql://me:a@b@host/name?sslmode=require", "postgresql://me:***@host/name?sslmode=require"),
        (
            "postgresql://h/db?user=u&password=a@b&sslmode=require",
            "postgresql://h/db?user=u&password=***&sslmode=require",
        ),
        ("redis://:a@h:1/0?password=b", "redis://:***@h:1/0?password=***"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert without_password(url) == shown
