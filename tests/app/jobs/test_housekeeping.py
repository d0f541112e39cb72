"""What is kept and what goes, on both databases, with real files."""

import time
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.jobs.artifacts import Store
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.housekeeping import Housekeeping
from app.jobs.ledger import Ledger
from app.jobs.rows import NewItem, Outcome
from app.jobs.tables import jobs
from tests.app.jobs import books

DAY_S = 24 * 3600.0
SETTLES_S = 300 + 60
"""After HEATLENS_JOB_STALL_S a worker that stands still is dead; after a minute one that lives has looked."""


@dataclass
class House:
    settings: Settings
    database: Database
    ledger: Ledger
    store: Store
    now: float = 1000.0
    wrong_s: float = 0.0
    """By how much the time of day is wrong."""

    def keeper(self, **settings: object) -> Housekeeping:
        changed = self.settings.model_copy(update=settings)
        return Housekeeping(
            self.ledger,
            self.store,
            changed,
            clock=lambda: self.now,
            time_of_day=lambda: time.time() + self.wrong_s,
        )

    def pass_hours(self, hours: float) -> None:
        """For both clocks."""
        self.now += 3600 * hours
        self.wrong_s += 3600 * hours

    def receive(self, size_bytes: int = 10) -> str:
        """An upload that is not finished: one picture, which is there."""
        job_id = self.ledger.open(owner="me")
        self.store.write(f"{job_id}/inputs/000/000000", b"picture")
        self.ledger.add(job_id, 0, [NewItem("a.jpg", f"store:{job_id}/inputs/000/000000", size_bytes=size_bytes)])
        return job_id

    def submit(self, size_bytes: int = 10) -> str:
        return self.ledger.submit(self.receive(size_bytes), options={}).id

    def finish(self, job_id: str) -> str:
        self.store.write(f"{job_id}/results/000/x.jpg", b"result")
        self.ledger.record(job_id, [Outcome(0, result=books.result(0))])
        return job_id

    def age(self, job_id: str, days: float) -> None:
        """Have a job made, and if it is over, over, so many days ago."""
        then = time.time() - days * DAY_S
        over = sa.case((jobs.c.finished_at.is_not(None), then))
        with self.database.write() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(created_at=then, finished_at=over))

    def has_files(self, job_id: str) -> bool:
        return (self.settings.data_dir / "jobs" / job_id).exists()

    def visible(self) -> set[str]:
        return {job.id for job in self.ledger.jobs(limit=100)}

    def rows(self) -> set[str]:
        with self.database.read() as connection:
            return set(connection.scalars(sa.select(jobs.c.id)))


@pytest.fixture
def house(settings: Settings, database: Database) -> House:
    return House(settings, database, Ledger(database, ShardQueue(database), shard_pictures=10), Store(settings))


def test_a_deleted_job_loses_its_files_at_once_and_its_rows_when_no_worker_can_still_write(house: House) -> None:
    deleted, other = house.finish(house.submit()), house.finish(house.submit())
    keeper = house.keeper()
    house.ledger.delete(deleted)
    keeper.tick()
    assert not house.has_files(deleted)
    assert deleted in house.rows()
    house.store.write(f"{deleted}/results/000/late.jpg", b"of a worker that had not looked yet")
    house.now += SETTLES_S - 1
    keeper.tick()
    assert deleted in house.rows()
    house.now += 1
    keeper.tick()
    assert not house.has_files(deleted)
    assert house.rows() == house.visible() == {other}
    assert house.has_files(other)


def test_until_then_the_files_of_a_deleted_job_are_looked_for_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    delete = house.store.delete_tree
    monkeypatch.setattr(house.store, "delete_tree", lambda prefix: (removed.append(prefix), delete(prefix)))
    job_id = house.finish(house.submit())
    house.ledger.delete(job_id)
    keeper = house.keeper()
    for _ in range(3):
        keeper.tick()
    assert removed == [job_id]


@pytest.mark.parametrize(
    ("listing", "limits"), [("expired", {}), ("oldest_finished", {"job_retention_s": 0.0, "job_store_bytes": 1})]
)
def test_a_job_that_is_retried_just_then_stays(
    house: House, listing: str, limits: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = house.submit()
    house.ledger.record(job_id, [Outcome(0, error=books.FAULT)])
    house.age(job_id, 31)
    found = getattr(house.ledger, listing)

    def retried(*args: object) -> object:
        answer = found(*args)
        house.ledger.retry(job_id)
        return answer

    monkeypatch.setattr(house.ledger, listing, retried)
    house.keeper(**limits).tick()
    assert house.ledger.job(job_id).status == "queued"


def test_old_jobs_go_and_those_that_are_not_over_stay(house: House) -> None:
    old, young, unfinished = house.finish(house.submit()), house.finish(house.submit()), house.submit()
    house.age(old, 31)
    house.age(young, 29)
    house.age(unfinished, 400)
    house.keeper().tick()
    assert house.visible() == {young, unfinished}
    assert not house.has_files(old)


def test_a_retention_of_zero_is_for_ever(house: House) -> None:
    old = house.finish(house.submit())
    house.age(old, 4000)
    house.keeper(job_retention_s=0.0).tick()
    assert house.visible() == {old}


def test_the_oldest_go_until_the_rest_fits(house: House) -> None:
    first, second, third = (house.finish(house.submit(100)) for _ in range(3))
    unfinished = house.submit(100)
    for job_id, days in ((first, 1), (second, 3), (third, 2)):
        house.age(job_id, days)
    keeper = house.keeper(job_store_bytes=250)  # of 400: the two that have been over for longest are too many
    keeper.tick()
    assert house.visible() == {first, unfinished}
    house.now += SETTLES_S
    keeper.tick()  # what was deleted does not count as there, so that no more goes
    keeper.tick()
    assert house.visible() == house.rows() == {first, unfinished}


def test_room_is_made_while_others_are_being_deleted(house: House) -> None:
    going, old, young = (house.finish(house.submit(100)) for _ in range(3))
    house.age(old, 1)
    house.ledger.delete(going)
    house.keeper(job_store_bytes=100).tick()
    assert house.visible() == {young}


def test_any_size_is_kept_without_a_limit(house: House) -> None:
    job_id = house.finish(house.submit(2**40))
    house.keeper().tick()
    assert house.visible() == {job_id}


def test_an_upload_that_nobody_finished_is_forgotten_after_a_day(house: House) -> None:
    abandoned, coming = house.receive(), house.receive()
    house.age(abandoned, 1.01)
    house.age(coming, 0.99)
    house.keeper().tick()
    assert house.rows() == {coming}
    assert not house.has_files(abandoned)
    assert house.has_files(coming)


def test_what_cannot_be_deleted_now_is_deleted_later_and_holds_up_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = house.finish(house.submit()), house.finish(house.submit())
    delete = house.store.delete_tree

    def refuse(prefix: str) -> None:
        if prefix == stuck:
            raise PermissionError("not now")
        delete(prefix)

    keeper = house.keeper()
    for job_id in (stuck, other):
        house.ledger.delete(job_id)
    with monkeypatch.context() as patch:
        patch.setattr(house.store, "delete_tree", refuse)
        keeper.tick()
        house.now += SETTLES_S
        keeper.tick()
        assert house.rows() == {stuck}
        assert house.has_files(stuck)
    keeper.tick()
    assert not house.has_files(stuck)
    house.now += SETTLES_S
    keeper.tick()
    assert house.rows() == set()


def test_a_clock_that_jumps_ahead_is_believed_after_six_hours(house: House) -> None:
    keeper = house.keeper()
    finished = house.finish(house.submit())
    unfinished = house.receive()
    house.wrong_s = 365 * DAY_S
    for hours in (0.0, 5.9):
        house.pass_hours(hours)
        keeper.tick()
        assert house.visible() == {finished}
        assert house.has_files(unfinished)
    house.pass_hours(0.2)
    keeper.tick()
    assert house.visible() == set()
    assert not house.has_files(unfinished)


def test_a_clock_that_jumps_back_to_what_it_was_is_believed_at_once(house: House) -> None:
    keeper = house.keeper()
    old, young = house.finish(house.submit()), house.finish(house.submit())
    house.age(old, days=31)
    house.wrong_s = 365 * DAY_S
    keeper.tick()
    assert house.visible() == {old, young}
    house.wrong_s = 0.0
    keeper.tick()
    assert house.visible() == {young}
