"""All errors whose text may be told to whoever asked: the service's own, and those of the packages that it joins.

Apart from `app.errors`, since the packages take seconds to import, which who only looks at jobs does not need.
"""

from app.engine.errors import EngineError
from app.errors import ServiceError
from app.imaging.errors import ImageError
from explainers.errors import ExplainError
from explainers.errors import close_matches as close_matches  # the api has no other way to explainers
from models.errors import ModelError

KnownError = ServiceError | ExplainError | ModelError | ImageError | EngineError
KNOWN_ERRORS = (ServiceError, ExplainError, ModelError, ImageError, EngineError)
