"""A HeatLens server as an object."""

import json
from typing import Any, Self

from app.client.connection import Connection, Picture, bytes_of
from app.client.explanation import Explanation
from app.client.jobs import Jobs
from app.schemas.answers import (
    ExplainAnswer,
    MethodInfo,
    MethodList,
    ModelList,
    ModelSummary,
    PredictAnswer,
)
from app.schemas.embedding import EmbedAnswer

_JSON = {"Content-Type": "application/json"}
_RAW = {"Content-Type": "application/octet-stream"}


class HeatLens:
    """A server. Keeps connections open; `with HeatLens(...) as lens` closes them, as `close` does.

    `api_key` is one that `heatlens keys create` printed, where the server needs one. `timeout_s` is how long any one
    wait for the server may take; methods that run the model hundreds of times need more. `tries` is how often a server
    is asked that is busy or still loads. All methods raise `HeatLensError`, and `OSError` where a file cannot be read,
    such as `FileNotFoundError`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        timeout_s: float = 120.0,
        tries: int = 5,
    ) -> None:
        self._connection = Connection(url, timeout_s=timeout_s, tries=tries, api_key=api_key)
        self.jobs = Jobs(self._connection)
        """Work on many pictures."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def explain(self, picture: Picture, **options: Any) -> Explanation:
        """Explain a picture: a path, or its bytes. The options are those of `POST /v1/explain`, and the method's own.

        Returns the explanation of the first target; its `targets` has those of all, as in
        `explain("cat.jpg", target=["tabby", 285]).targets`.
        """
        if "format" in options:
            raise TypeError("there is no option format: the ending of the file that is saved decides")
        data = bytes_of(picture)
        asked = {"values": True, **options, "format": "json"}
        answer = self._connection.read(
            ExplainAnswer, "POST", "/v1/explain", options=asked, body=lambda: data, headers=_RAW
        )

        def ask_again(index: int, format_: str, needless: frozenset[str]) -> bytes:
            kept = {name: value for name, value in options.items() if name not in needless}
            again = {**kept, "target": index, "format": format_}
            return self._connection.ask("POST", "/v1/explain", options=again, body=lambda: data, headers=_RAW)

        return Explanation(answer, 0, ask_again)

    def predict(self, picture: Picture, **options: Any) -> PredictAnswer:
        """Classify a picture; the options are those of `POST /v1/predict`."""
        data = bytes_of(picture)
        return self._connection.read(
            PredictAnswer, "POST", "/v1/predict", options=options, body=lambda: data, headers=_RAW
        )

    def embed(self, picture: Picture | None = None, **options: Any) -> EmbedAnswer:
        """Make links that show one explanation in other pages; the options are those of `POST /v1/embed-links`.

        Without a picture they say which one of a job is shown, as in `embed(job=job.id, item=0)`.
        """
        if picture is None:
            asked: dict[str, Any] = {"headers": _JSON}
            data = json.dumps(options).encode()
        else:
            asked = {"headers": _RAW, "options": options}
            data = bytes_of(picture)
        return self._connection.read(EmbedAnswer, "POST", "/v1/embed-links", body=lambda: data, **asked)

    def methods(self) -> list[MethodInfo]:
        """Return the methods that the server offers."""
        return self._connection.read(MethodList, "GET", "/v1/methods").methods

    def models(self) -> list[ModelSummary]:
        """Return the models that the server knows, the default first."""
        return self._connection.read(ModelList, "GET", "/v1/models").models
