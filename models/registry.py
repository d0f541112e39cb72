"""Which models there are: the built-in ones, timm's, and those of the operator's folder. Nothing is loaded here."""

from pathlib import Path

from models import catalog, timm_catalog
from models.errors import InvalidModelFile, UnknownModel, close_matches, did_you_mean
from models.folder import read_folder
from models.spec import TIMM_PREFIX, ModelSpec


class Registry:
    """Names to specifications; the operator's files are read once, when it is made.

    Raises `InvalidModelFile` if a file in `models_dir` is wrong or takes a built-in name.
    """

    def __init__(self, models_dir: Path | None = None) -> None:
        self._own = read_folder(models_dir) if models_dir is not None else {}
        for name in self._own:
            if name in catalog.names():
                msg = f"The models folder may not redefine the built-in model {name!r}; set another `name`."
                raise InvalidModelFile(msg, key="name")

    def names(self) -> list[str]:
        """Return the names worth listing: the default, the operator's, torchvision's, and timm's that are cached.

        `get` knows all of timm's; to list 1800 names of weights that are not here would help nobody. Which of them
        are cached is looked up anew each time: two folders are listed.
        """
        default, *classifiers = catalog.names()
        return [default, *self._own, *classifiers, *timm_catalog.cached_names()]

    def get(self, name: str) -> ModelSpec:
        """Return the specification of `name`; raises `UnknownModel` with close matches."""
        if name in self._own:
            return self._own[name]
        if name.startswith(TIMM_PREFIX):
            return timm_catalog.spec(name)
        if name in catalog.names():
            return catalog.spec(name)
        in_timm = [TIMM_PREFIX + name] if timm_catalog.is_known(TIMM_PREFIX + name) else []
        close = in_timm + close_matches(name[:100], self.names())
        msg = f"There is no model {name[:100]!r}.{did_you_mean(close)}"
        raise UnknownModel(msg, close_matches=close)
