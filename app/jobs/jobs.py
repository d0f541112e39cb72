"""The use cases of batch jobs, as the API and the command line call them. No Flask."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from app.config import Settings
from app.errors import BadOption, BadRequestBody, NoPictures
from app.jobs import sources
from app.jobs.artifacts import Store
from app.jobs.database import Database
from app.jobs.drafts import Draft
from app.jobs.engine import ShardQueue
from app.jobs.intake import SOURCE, Form, options_of, read_form, together, unpack
from app.jobs.ledger import Ledger
from app.jobs.options import Asked, JobOptions, read_options
from app.jobs.rows import JobRow, NewItem
from app.schemas.checking import check
from app.service import Service

_NOTHING = "There is no picture in it: send parts `image`, one `archive` (zip or tar), or a `source`."


class Made(NamedTuple):
    """A job that was asked for; `replayed` says that it was there already, by its Idempotency-Key."""

    job: JobRow
    replayed: bool


class Jobs:
    """Makes jobs and changes them. One per process; may be made before a fork, and used by many threads."""

    def __init__(self, settings: Settings, service: Service) -> None:
        self.settings = settings
        self.service = service
        self.database = Database(settings)
        self.queue = ShardQueue(self.database)
        self.ledger = Ledger(self.database, self.queue, shard_pictures=settings.job_shard_pictures)
        self.store = Store(settings)

    def check_early(self, query: Mapping[str, Any]) -> None:
        """Raise what is wrong with the options of a query, whatever the body, which may be large, adds to them."""
        given = {name: value for name, value in query.items() if name != SOURCE}
        check(JobOptions, given, parameters=self.service.catalogue.parameter_schemas())

    def receive(
        self, chunks: Iterable[bytes], boundary: str, query: Mapping[str, Any], *, owner: str, key: str | None = None
    ) -> Made:
        """Make a job of a multipart body that comes in pieces; options may stand in the query too.

        What is raised for a body, an archive, a source and options is said at `intake.read_form`,
        `archives.members`, `sources.find` and `options.read_options`. Of a job that is not made, nothing remains.
        """
        with self._draft(owner, key) as draft, closing(Form()) as form:
            read_form(chunks, boundary, draft, form, self.settings)
            given = together(query, options_of(form.fields.items()))
            source = given.pop(SOURCE, None)
            if source is not None and (form.archive or form.pictures):
                msg = "Pictures come either with the request or from a source, not from both."
                raise BadRequestBody(msg, field=SOURCE)
            asked = read_options(self.service, given)
            if form.archive:
                unpack(form.archive, draft, self.settings)
            if source is not None:
                self._add_found(draft, source)
            return self._submit(draft, asked, key)

    def create(self, given: Mapping[str, Any], *, owner: str, key: str | None = None) -> Made:
        """Make a job of options with a `source`; for what is raised see `receive`."""
        options = dict(given)
        source = options.pop(SOURCE, None)
        asked = read_options(self.service, options)
        if source is None:
            raise NoPictures(_NOTHING, field=SOURCE)
        with self._draft(owner, key) as draft:
            self._add_found(draft, source)
            return self._submit(draft, asked, key)

    def create_of(
        self, items: Iterable[NewItem], given: Mapping[str, Any], *, owner: str, key: str | None = None
    ) -> Made:
        """Make a job of pictures that the caller has found, for which `sources.read` must be allowed."""
        asked = read_options(self.service, given)
        with self._draft(owner, key) as draft:
            for item in items:
                draft.tell_apart(item.name, item.input)
                draft.add_found(item)
            return self._submit(draft, asked, key)

    def find(self, source: object) -> Iterator[NewItem]:
        """Return the pictures of a source; raises what `sources.find` does."""
        if not isinstance(source, str):
            raise BadOption("source has to be a URL, such as file:///data/pictures/*.jpg.", field=SOURCE)
        return (NewItem(found.name, found.url) for found in sources.find(source, self.settings))

    def cancel(self, job_id: str) -> JobRow:
        """Stop a job, within a batch; raises `UnknownJob`, and `JobState` where it is over."""
        return self.ledger.cancel(job_id)

    def retry(self, job_id: str) -> JobRow:
        """Have what failed explained again; raises `UnknownJob`, and `JobState` where nothing can be."""
        return self.ledger.retry(job_id)

    def delete(self, job_id: str) -> None:
        """Forget a job, and stop it; raises `UnknownJob`. Its files go soon after."""
        self.ledger.delete(job_id)

    @contextmanager
    def _draft(self, owner: str, key: str | None) -> Iterator[Draft]:
        """Begin a job, if its owner may have one more; who only asks again for one that is there always may."""
        with Draft(self.ledger, self.store, self.settings, owner=owner) as draft:
            draft.check_room()
            if not draft.is_repeated(key):
                draft.check_quota()
            yield draft

    def _add_found(self, draft: Draft, source: object) -> None:
        draft.tell_apart(SOURCE, str(source))
        for item in self.find(source):
            draft.add_found(item)
        if not draft.count:
            raise NoPictures("The source has no pictures.", field=SOURCE)

    def _submit(self, draft: Draft, asked: Asked, key: str | None) -> Made:
        if not draft.count:
            raise NoPictures(_NOTHING)
        job = draft.submit(asked, key=key)
        return Made(job, replayed=job.id != draft.id)
