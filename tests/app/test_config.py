"""Settings are closed: a misspelt variable stops the start and is named."""

from pathlib import Path

import pytest

from app.config import Settings, SettingsError, load_settings


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


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "65536"), ("WORKERS", "-1"), ("DEVICE", "tpu"), ("REQUEST_TIMEOUT_S", "0")]
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEATLENS_{name}", value)
    with pytest.raises(SettingsError, match=f"HEATLENS_{name}='{value}': "):
        load_settings()


def test_cores_are_shared_among_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)))
    monkeypatch.setattr("app.config._CPU_QUOTA", Path("/nowhere"))
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
    monkeypatch.setattr("app.config._CPU_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert Settings(device="cpu").worker_count == workers


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
