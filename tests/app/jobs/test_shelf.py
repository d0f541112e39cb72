"""What is kept for a while, on both databases, with real files."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.errors import ImagesFull, JobsUnavailable, OutOfSpace, QuotaExceeded, UnknownImage, UnknownLink
from app.jobs import shelf as shelves
from app.jobs.artifacts import Store
from app.jobs.database import Database
from app.jobs.engine import ShardQueue
from app.jobs.housekeeping import Housekeeping
from app.jobs.ledger import Ledger
from app.jobs.shelf import Kept, Shelf
from app.jobs.tables import kept

DAY_S = 24 * 3600.0
BESIDE_BYTES = 4096
"""What each thing counts beside its bytes."""


class Interrupted(Store):
    """A store in which something happens before each file is written, as another process may do it."""

    def __init__(self, settings: Settings, before: Callable[[], None]) -> None:
        super().__init__(settings)
        self._before = before

    def write(self, key: str, data: bytes | Iterable[bytes]) -> int:
        self._before()
        return super().write(key, data)


class House:
    """A shelf, and what lies behind it."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings, self.database, self.store = settings, database, Store(settings)
        self.shelf = self.with_limits()

    def with_limits(self, **limits: object) -> Shelf:
        return Shelf(self.database, self.store, self.settings.model_copy(update=limits))

    def put(
        self, size_bytes: int = 10, lifetime_s: float = DAY_S, shelf: Shelf | None = None, owner: str = "me", **of: str
    ) -> Kept:
        kind = "link" if of else "image"
        files = {"picture": b"x" * size_bytes}
        return (shelf or self.shelf).put(kind, files, {"width": 3}, owner=owner, lifetime_s=lifetime_s, **of)

    def end(self, thing: Kept) -> None:
        """Have its time be over."""
        with self.database.write() as connection:
            connection.execute(sa.update(kept).where(kept.c.id == thing.id).values(expires_at=1.0))

    def has_files(self, thing: Kept) -> bool:
        return thing.id in self.folders()

    def folders(self) -> set[str]:
        return {path.name for path in (self.settings.data_dir / "jobs" / "images").glob("*")}

    def make_undeletable(self, thing: Kept) -> None:
        """Have its files be where no folder is, which nobody, root included, can remove as one."""
        folder = self.settings.data_dir / "jobs" / "images" / thing.id
        folder.rename(folder.with_name("away"))
        folder.write_text("a file where a folder should be")

    def rows(self) -> set[str]:
        with self.database.read() as connection:
            return set(connection.scalars(sa.select(kept.c.id)))


@pytest.fixture
def house(settings: Settings, database: Database) -> House:
    return House(settings, database)


def test_what_is_kept_is_found_by_whoever_has_its_id_and_by_its_kind_alone(house: House) -> None:
    image = house.put(5)
    elsewhere = House(house.settings, house.database).shelf  # another process
    assert elsewhere.get("image", image.id) == image
    assert elsewhere.read(image, "picture") == b"xxxxx"
    assert image.facts == {"width": 3}
    assert elsewhere.get("link", image.id) is None
    assert len({house.put().id for _ in range(20)}) == 20
    assert len(image.id) >= 22  # of 64 letters: 128 bits or more


def test_what_is_over_is_invisible_at_once_and_goes_with_the_housekeeping(house: House) -> None:
    over, alive = house.put(), house.put()
    house.end(over)
    assert house.shelf.get("image", over.id) is None
    assert house.has_files(over)
    ledger = Ledger(house.database, ShardQueue(house.database), shard_pictures=10)
    Housekeeping(ledger, house.store, house.settings).tick()
    assert house.rows() == {alive.id}
    assert (house.has_files(over), house.has_files(alive)) == (False, True)


def test_a_link_of_a_job_ends_when_the_jobs_files_go(house: House) -> None:
    ledger = Ledger(house.database, ShardQueue(house.database), shard_pictures=10)
    job_id = ledger.submit(ledger.open(owner="me"), options={}).id
    link, other = house.put(job_id=job_id), house.put(job_id="another")
    ledger.delete(job_id)
    Housekeeping(ledger, house.store, house.settings).tick()
    assert house.rows() == {other.id}
    assert not house.has_files(link)


def test_deleting_a_picture_ends_its_links_and_nothing_else(house: House) -> None:
    image, other = house.put(), house.put()
    link, foreign = house.put(image_id=image.id), house.put(image_id=other.id)
    assert not house.shelf.delete("link", image.id)
    assert house.shelf.delete("image", image.id)
    assert not house.shelf.delete("image", image.id)
    assert house.rows() == {other.id, foreign.id}
    assert not house.has_files(link)
    with pytest.raises(UnknownImage):
        house.put(image_id=image.id)


def test_a_link_of_a_kept_image_ends_with_it_at_the_latest(house: House) -> None:
    image = house.put(lifetime_s=100)
    longer, shorter = house.put(image_id=image.id), house.put(lifetime_s=10, image_id=image.id)
    assert longer.expires_at == image.expires_at
    assert shorter.expires_at < image.expires_at
    assert house.shelf.get("link", longer.id) == longer


@pytest.mark.parametrize("what", ["deleted", "swept", "ended"])
def test_what_ends_while_it_is_written_leaves_no_files(house: House, what: str) -> None:
    image = house.put()

    def end() -> None:
        if what == "deleted":
            house.shelf.delete("image", image.id)
            return
        with house.database.write() as connection:
            connection.execute(sa.update(kept).where(kept.c.id != image.id).values(expires_at=1.0))
        if what == "swept":
            house.shelf.sweep()

    shelf = Shelf(house.database, Interrupted(house.settings, end), house.settings)
    with pytest.raises(UnknownImage):
        house.put(shelf=shelf, image_id=image.id)
    left = set() if what == "deleted" else {image.id}
    assert house.rows() == house.folders() == left
    if what != "deleted":
        with pytest.raises(UnknownLink):
            house.put(shelf=shelf, job_id="a")
        assert house.rows() == house.folders() == left


def test_the_sweep_goes_on_to_the_end_and_passes_over_what_cannot_be_deleted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "_AT_ONCE", 2)
    things = sorted((house.put() for _ in range(7)), key=lambda thing: thing.id)
    for thing in things[:6]:
        house.end(thing)
    stuck, alive = things[0], things[6]
    house.make_undeletable(stuck)
    house.shelf.sweep()
    assert house.rows() == {stuck.id, alive.id}


def test_all_that_is_over_makes_room(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "_AT_ONCE", 1)
    shelf = house.with_limits(max_kept_images_bytes=5 * BESIDE_BYTES)
    things = [house.put(1000, shelf=shelf) for _ in range(4)]
    for thing in things:
        house.end(thing)
    new = house.put(4 * BESIDE_BYTES, shelf=shelf)
    assert house.rows() == {new.id}


def test_a_picture_of_many_links_is_deleted_in_slices(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "_AT_ONCE", 2)
    image = house.put()
    for _ in range(5):
        house.put(image_id=image.id)
    deletions = []

    @sa.event.listens_for(house.database.engine, "before_cursor_execute")
    def look(_connection: object, _cursor: object, statement: str, values: list[str], *_: object) -> None:
        if statement.startswith("DELETE"):
            deletions.append(len(values))

    assert house.shelf.delete("image", image.id)
    assert house.rows() == house.folders() == set()
    assert deletions == [2, 2, 2]


def test_one_owner_has_a_share(house: House) -> None:
    shelf = house.with_limits(max_caller_images_bytes=2 * BESIDE_BYTES + 100)
    first, _ = house.put(60, shelf=shelf), house.put(0, shelf=shelf)
    with pytest.raises(QuotaExceeded, match="HEATLENS_MAX_CALLER_IMAGES_BYTES") as caught:
        house.put(0, shelf=shelf)  # many small ones are no way around
    assert caught.value.extra["limit"] == 2 * BESIDE_BYTES + 100
    house.put(100, shelf=shelf, owner="you")
    house.end(first)
    house.put(100, shelf=shelf)
    for owner in ("me", "new"):  # waiting would not help
        with pytest.raises(ImagesFull, match=r"are never kept: .*\(HEATLENS_MAX_CALLER_IMAGES_BYTES\)"):
            house.put(BESIDE_BYTES + 101, shelf=shelf, owner=owner)


def test_only_what_is_over_makes_room(house: House) -> None:
    limit = 100 + 2 * BESIDE_BYTES
    shelf = house.with_limits(max_kept_images_bytes=limit)
    over, alive = house.put(60), house.put(40)
    with pytest.raises(ImagesFull, match=rf"{limit} bytes \(HEATLENS_MAX_KEPT_IMAGES_BYTES\)"):
        house.put(1, shelf=shelf)
    house.end(over)
    new = house.put(60, shelf=shelf)
    assert house.rows() == {alive.id, new.id}
    assert not house.has_files(over)
    with pytest.raises(ImagesFull, match=f"{limit} bytes, and 4096 beside them, are never kept: the limit is {limit}"):
        house.put(limit, shelf=shelf)


def test_many_at_once_do_not_take_more_than_there_is(house: House) -> None:
    shelf = house.with_limits(max_kept_images_bytes=5 * (10 + BESIDE_BYTES))
    start = threading.Barrier(8)

    def put(_: int) -> bool:
        start.wait(30)
        try:
            house.put(10, shelf=shelf)
        except ImagesFull:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(8))) == 5
    assert len(house.rows()) == 5


def test_a_disk_that_is_nearly_full_takes_nothing(house: House) -> None:
    with pytest.raises(OutOfSpace, match="HEATLENS_MIN_FREE_BYTES"):
        house.put(shelf=house.with_limits(min_free_bytes=2**60))
    assert house.rows() == set()


def test_a_store_that_does_not_work_is_said_and_leaves_nothing_to_see(house: House) -> None:
    house.put()
    folder = house.settings.data_dir / "jobs" / "images"
    folder.rename(folder.with_name("away"))
    folder.write_text("a file where a folder should be")
    with pytest.raises(JobsUnavailable, match="store of the kept pictures"):
        house.put()
    folder.unlink()
    house.shelf.sweep()
    assert len(house.rows()) == 1
