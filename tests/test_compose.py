"""`examples/compose.yaml` is valid, and what it sets are settings."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli import app
from app.config import load_settings

TEXT = (Path(__file__).parents[1] / "examples" / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SECRETS = {
    "DATABASE_PASSWORD": "p" * 48,
    "STORE_KEY": "k",
    "STORE_SECRET": "s",
    "WEBHOOK_SECRET": "whsec_" + "c2Vj" * 11,
    "EMBED_SECRET": "e" * 44,
}


def ours() -> dict[str, Any]:
    return {name: service for name, service in COMPOSE["services"].items() if service["image"] == "heatlens"}


def filled_in(value: str) -> str:
    return re.sub(r"\$\{(\w+):\?[^}]+\}", lambda found: SECRETS[found[1]], value)


@pytest.mark.parametrize("name", ours())
def test_what_is_set_are_settings_that_can_be_had(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ours()[name]["environment"].items():
        monkeypatch.setenv(variable, filled_in(value))
    settings = load_settings()
    assert settings.database_url == f"postgresql://heatlens:{SECRETS['DATABASE_PASSWORD']}@database:5432/heatlens"
    assert settings.artifacts_url.startswith(f"s3://{COMPOSE['services']['store']['environment']['S3_BUCKET']}/")
    assert settings.webhook_secret.get_secret_value() == SECRETS["WEBHOOK_SECRET"]
    assert (settings.job_workers == 0) == (name == "web")
    assert settings.embed_secrets  # that what one container signs is believed by another


@pytest.mark.parametrize("name", ours())
def test_our_containers_may_write_to_the_volume_and_to_tmp_alone(name: str) -> None:
    service = ours()[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108
    assert service["cap_drop"] == ["ALL"]


def test_commands_exist() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert {service["command"] for service in ours().values()} == {"serve", "worker"} <= known


def test_every_secret_has_to_be_given() -> None:
    asked = re.findall(r"\$\{[^}]+\}", TEXT)
    assert {re.sub(r"\W.*", "", name[2:-1]) for name in asked} == set(SECRETS)
    assert all(":?" in name for name in asked)
    for service in COMPOSE["services"].values():
        for variable, value in service["environment"].items():
            if re.search("PASSWORD|SECRET|KEY", variable):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), variable
    for name in SECRETS:
        assert re.search(rf"^#.*\b{name}\b", TEXT, re.MULTILINE), f"nobody is told how to make {name}"


def test_images_are_pinned_and_everything_is_watched() -> None:
    for name, service in COMPOSE["services"].items():
        assert name == "web" or service["healthcheck"]["test"][0] == "CMD"
        assert service in ours().values() or re.search(r":\d+(\.\d+)*$", service["image"])
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8000:8000"]
    assert COMPOSE["services"]["worker"]["deploy"]["replicas"] == 2
