"""What the service can tell about its models and methods."""

from typing import Any, Literal

import explainers
from app.config import Settings
from app.hosting import Host
from app.hosts import Hosts
from app.records import Records
from app.schemas.answers import (
    Label,
    LabelList,
    LayerList,
    LayerRow,
    MethodInfo,
    MethodList,
    ModelDetail,
    ModelList,
    ModelSummary,
    SanityInfo,
)
from app.schemas.parameters import merged
from models import ModelSpec, Registry
from models.loading import LoadedModel, weights_present

HostState = Literal["not_loaded", "loading", "ready", "failed", "closed"]


class Catalogue:
    """Reads registry, hosts and methods; `layers` and `labels` load the model."""

    def __init__(self, settings: Settings, registry: Registry, hosts: Hosts, records: Records) -> None:
        self._settings = settings
        self._registry = registry
        self._hosts = hosts
        self._records = records

    def models(self) -> ModelList:
        """List the models, the default first: all but those of timm that are neither here nor asked for."""
        settings = self._settings
        names = dict.fromkeys([settings.default_model, *self._registry.names(), *settings.models])
        return ModelList(models=[ModelSummary(**self._summary(self._registry.get(name))) for name in names])

    def model(self, name: str) -> ModelDetail:
        """Describe one model; what only loading tells is None before."""
        spec = self._registry.get(name)
        host = self._hosts.peek(name)
        loaded = host if host and host.owner.state == "ready" else None
        return ModelDetail(
            **self._summary(spec),
            ready=loaded is not None,
            architecture=spec.arch,
            head=spec.head,
            scores=loaded.model.score_kind if loaded else None,
            dtype=spec.dtype,
            input_size=list(loaded.model.preprocess.input_size) if loaded else None,
            classes=len(loaded.model.labels) if loaded else None,
            default_layer=loaded.network.default_layer if loaded else spec.layer,
            weights_sha256=loaded.model.weights_sha256 if loaded else spec.sha256,
            sanity=self._sanity(loaded.model) if loaded else {},
        )

    def _sanity(self, model: LoadedModel) -> dict[str, SanityInfo]:
        return {
            method: SanityInfo(
                verdict=record.verdict,
                words=record.words,
                pictures=record.pictures,
                measured_at=record.measured_at,
            )
            for method, record in self._records.sanity(model.fingerprint).items()
        }

    def state(self, name: str) -> HostState:
        """Say where a model stands in this worker."""
        host = self._hosts.peek(name)
        return host.owner.state if host else "not_loaded"

    def layers(self, name: str) -> LayerList:
        """List the layers that ran in a forward pass of noise, in order of completion."""
        with self._hosts.using(name, timeout_s=self._settings.request_timeout_s) as host:
            return _layers(host)

    def labels(self, name: str, query: str, limit: int) -> LabelList:
        """Search a model's labels for a part, whatever the case."""
        with self._hosts.using(name, timeout_s=self._settings.request_timeout_s) as host:
            labels = host.model.labels
        part = query.casefold()
        found = [Label(index=i, label=label) for i, label in enumerate(labels) if part in label.casefold()]
        return LabelList(model=name, total=len(found), labels=found[:limit])

    def methods(self) -> MethodList:
        """List the methods."""
        return MethodList(methods=[self.method(name) for name in explainers.names()])

    def method(self, name: str) -> MethodInfo:
        """Describe one method, or raise `UnknownMethod`."""
        return _method(explainers.get(name))

    def parameter_schemas(self) -> dict[str, Any]:
        """Return the JSON Schemas of all methods' own parameters, by name; each says which methods take it."""
        return merged({method.name: method.parameters.get("properties", {}) for method in self.methods().methods})

    def _summary(self, spec: ModelSpec) -> dict[str, Any]:
        host = self._hosts.peek(spec.name)
        loaded = host if host and host.owner.state == "ready" else None
        return {
            "name": spec.name,
            "default": spec.name == self._settings.default_model,
            "state": host.owner.state if host else "not_loaded",
            "device": str(loaded.model.device) if loaded else None,
            "size_bytes": loaded.size_bytes if loaded else None,
            "weights": _weights(spec),
            "description": spec.description or "",
            "licence": spec.licence,
        }


def _layers(host: Host) -> LayerList:
    rows = [
        LayerRow(
            name=layer.name,
            type=layer.type,
            shape=list(layer.shape) if layer.shape else None,
            calls=layer.calls,
            spatial=layer.layout is not None,
        )
        for layer in host.network.layers
    ]
    return LayerList(model=host.spec.name, default=host.network.default_layer, layers=rows)


def _weights(spec: ModelSpec) -> Literal["present", "missing", "random"]:
    if spec.weights.kind == "random":
        return "random"
    return "present" if weights_present(spec) else "missing"


def _method(method: explainers.Method) -> MethodInfo:
    return MethodInfo(
        name=method.name,
        family=method.family,
        summary=method.summary,
        weakness=method.weakness,
        sanity=method.sanity,
        fails_randomisation=method.fails_randomisation,
        paper=method.paper,
        cost=method.cost,
        cost_class=method.cost_class,
        class_specific=method.class_specific,
        uses_gradients=method.uses_gradients,
        needs_layer=method.max_layers > 0,
        max_layers=method.max_layers,
        seeded="seed" in method.parameters.model_fields,
        parameters=method.parameters.model_json_schema(),
    )
