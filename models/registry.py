"""Which models there are: the built-in ones and those of the operator's folder. Nothing is loaded here."""

from pathlib import Path

from models import catalog
from models.errors import InvalidModelFile, UnknownModel, close_matches, did_you_mean
from models.folder import read_folder
from models.spec import ModelSpec


class Registry:
    """Names to specifications, fixed when it is made: the operator's files are read once.

    Raises `InvalidModelFile` if a file in `models_dir` is wrong or takes a built-in name.
    """

    def __init__(self, models_dir: Path | None = None) -> None:
        self._own = read_folder(models_dir) if models_dir is not None else {}
        for name in self._own:
            if name in catalog.names():
                msg = f"The models folder may not redefine the built-in model {name!r}; set another `name`."
                raise InvalidModelFile(msg, key="name")

    def names(self) -> list[str]:
        """Return all names: the default, the operator's, then torchvision's."""
        default, *classifiers = catalog.names()
        return [default, *self._own, *classifiers]

    def get(self, name: str) -> ModelSpec:
        """Return the specification of `name`; raises `UnknownModel` with close matches."""
        if name in self._own:
            return self._own[name]
        if name in catalog.names():
            return catalog.spec(name)
        close = close_matches(name[:100], self.names())
        msg = f"There is no model {name[:100]!r}.{did_you_mean(close)}"
        raise UnknownModel(msg, close_matches=close)
