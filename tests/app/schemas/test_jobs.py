"""What is said of jobs and their pictures, from rows alone."""

from dataclasses import replace
from typing import Any

import pytest

from app.jobs.rows import ItemRow, JobRow
from app.schemas.jobs import ItemResult, artifact_names, item_answer, item_facts, job_answer
from tests.app.jobs.books import file_names, result

JOB = JobRow(
    id="a" * 32, owner="me", name="mine", status="running", options={"method": "gradcam"}, webhook="https://secret.example",
    waiting_for=None, total=10, done=4, failed=1, events=4, attempt=0, size_bytes=3, created_at=0.0, started_at=1.5,
    finished_at=None,
)  # fmt: skip
ITEM = ItemRow(
    number=3, name="a.jpg", input="store:secret", status="succeeded", event=1, attempts=1, sha256="0" * 64,
    size_bytes=9,
    label="cat", target=2, confidence=0.5, result=result(3), error=None, finished_at=86400.0,
)  # fmt: skip


def test_times_are_iso_8601_in_utc() -> None:
    told = job_answer(JOB, None).model_dump(mode="json")
    assert (told["created_at"], told["started_at"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:00:01.500000Z")
    assert item_facts(ITEM).model_dump(mode="json")["finished_at"] == "1970-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("changes", "rate_per_s", "eta_s"),
    [
        ({}, 2.0, (10 - 4) / 2.0),
        ({}, None, None),
        ({}, 0.0, None),  # it stands still
        ({"status": "succeeded", "done": 10, "finished_at": 9.0}, 2.0, 0.0),
        ({"status": "cancelled", "finished_at": 9.0}, 2.0, None),  # the rest will never be done
    ],
)
def test_the_time_that_is_left(changes: dict[str, Any], rate_per_s: float | None, eta_s: float | None) -> None:
    assert job_answer(replace(JOB, **changes), rate_per_s).eta_s == eta_s


def test_what_is_nobodys_business_is_not_told() -> None:
    assert "secret" not in job_answer(JOB, None).model_dump_json()
    assert "secret" not in item_answer(ITEM, JOB.id).model_dump_json()


def test_what_another_version_wrote_beside_it_is_passed_over() -> None:
    newer = result(3) | {"later": 1}
    newer["explanations"][0] |= {"later": 2}
    told = item_answer(replace(ITEM, result=newer), JOB.id)
    assert told.result == ItemResult.model_validate(result(3))


def test_every_file_has_a_link() -> None:
    told = item_answer(replace(ITEM, result=result(3, [2, 0]) | {"artifacts": {"arrays": "000003.npz"}}), JOB.id)
    names = [*file_names(3, 2), "000003.npz"]
    assert told.result is not None
    assert artifact_names(told.result) == names
    assert told.links.artifacts == {name: f"/v1/jobs/{JOB.id}/items/3/artifacts/{name}" for name in names}
    assert told.links.overlay == f"/v1/jobs/{JOB.id}/items/3/overlay"


def test_without_an_overlay_there_is_no_link_to_one() -> None:
    bare = result(3)
    bare["explanations"][0]["artifacts"] = {"map": "000003.map.png"}
    assert item_answer(replace(ITEM, result=bare), JOB.id).links.overlay is None
