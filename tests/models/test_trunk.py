"""The fast way to a layer gives the model's own scores and maps, or says why there is none; the model stays as it was.

In float64 folding is exact but for rounding in the last digits; what oneDNN packs exists in float32 only.
"""

import threading
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn

from explainers import Subject, Target, explain, predict
from models import Registry, folding
from models import trunk as split_module
from models.loading import LoadedModel, load
from models.preprocess import Preprocess
from models.spec import ModelSpec, RandomWeights
from models.trunk import NotSplit, Split, split
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import seeded
from tests.models import networks_split as nets

NAMED = {
    "torchvision:resnet18": "layer4",
    "torchvision:mobilenet_v3_small": "features.12",
    "torchvision:densenet121": "features.norm5",
    "torchvision:googlenet": "inception5b",
    "torchvision:regnet_y_400mf": "trunk_output",
    "timm:resnet26d": "layer4",
    "timm:tf_efficientnet_lite0": "bn2",
    "timm:regnetx_002": "s4.b4.conv3",
    "timm:hrnet_w18_small": "incre_modules.3",
}


def hold(module: nn.Module, size: int, dtype: torch.dtype, layout: torch.memory_format) -> LoadedModel:
    """Return a seeded network as the loader would."""
    module = seeded(module).to(dtype).to(memory_format=layout)
    spec = ModelSpec(name="net", arch="python:tests:net", weights=RandomWeights())
    size_ = Preprocess(input_size=(size, size), mean=(0, 0, 0), std=(1, 1, 1))
    return LoadedModel(spec, module, size_, (), None, torch.device("cpu"), dtype, layout)


def own(net: type[nn.Module], dtype: torch.dtype = torch.float64) -> LoadedModel:
    torch.manual_seed(0)
    return hold(net(), 16, dtype, torch.channels_last)


def pictures(model: LoadedModel, count: int = 3) -> Tensor:
    shape = (count, 3, *model.preprocess.input_size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return x.to(model.dtype).contiguous(memory_format=model.memory_format)


def answers(module: nn.Module, x: Tensor) -> Tensor:
    """The scores in the network's own dtype."""
    answer = module(x)
    return answer["logits"] if isinstance(answer, dict) else answer


def assert_agrees(model: LoadedModel, fast: Split, layer: str, tolerance: float) -> None:
    """Compare scores and two kinds of maps; each map needs the layer's output and gradient."""
    x = pictures(model)
    with torch.no_grad():
        assert_same(answers(fast.module, x.clone()), answers(model.module, x.clone()), tolerance)
    targets = [[Target(1), Target(2)]] * len(x)
    eager = Subject(model.module, lambda x: answers(model.module, x))
    quick = Subject(fast.module, lambda x: answers(fast.module, x))
    for method in ("gradcam", "layercam"):
        for _ in range(2):  # the second run may register a full-backward hook as well
            both = [maps(subject, method, x, targets, [layer]) for subject in (quick, eager)]
            assert_same(torch.stack(both[0]), torch.stack(both[1]), tolerance)


def memory(module: nn.Module) -> list[tuple[str, dict[str, object]]]:
    """All attributes of all parts, hooks among them."""
    holders = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [
        (name, {**vars(part)} | {key: dict(vars(part)[key]) for key in holders})
        for name, part in module.named_modules()
    ]


@pytest.mark.parametrize("arch", NAMED)
def test_real_networks_in_float64(arch):
    model = load(ModelSpec(name="net", arch=arch, weights=RandomWeights()))
    model = hold(model.module, 64, torch.float64, torch.contiguous_format)
    state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    before = memory(model.module)
    fast = split(model, NAMED[arch])
    assert_agrees(model, fast, NAMED[arch], 1e-9)
    assert memory(model.module) == before
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize(
    "arch", ["torchvision:resnet18", "torchvision:mobilenet_v3_small", "timm:tf_efficientnet_lite0"]
)
def test_real_networks_packed_in_float32(arch):
    model = load(ModelSpec(name="net", arch=arch, weights=RandomWeights()))
    model = hold(model.module, 64, torch.float32, torch.channels_last)
    assert_agrees(model, split(model, NAMED[arch]), NAMED[arch], 1e-4)


def test_the_embedded_model_through_the_way_in():
    model = load(Registry(None).get("efficientnet_lite0"))
    fast = split(model, "bn2")
    x, targets = pictures(model, 2), [[Target(285)]] * 2
    fast_maps, own_maps = (
        [answer.attributions[0].raw for answer in explain(subject, x, targets, method="gradcam", layers=["bn2"])]
        for subject in (Subject(fast.module, fast.scores), Subject(model.module, model.scores))
    )
    assert_same(fast_maps, own_maps, 1e-4)
    assert_same(predict(Subject(fast.module, fast.scores), x), model.scores(x), 1e-5)
    weights = [part.weight for part in model.module.modules() if isinstance(part, nn.Conv2d)]
    own_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    assert own_bytes < fast.size_bytes < 1.05 * own_bytes  # and biases, and rows of zeros for the padding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("net", nets.RIGHT)
def test_traps(net, dtype):
    model = own(net, dtype)
    before = memory(model.module)
    fast = split(model, "layer")
    assert_agrees(model, fast, "layer", 1e-9 if dtype == torch.float64 else 1e-5)
    assert memory(model.module) == before


def test_what_lies_behind_the_layer_is_the_network_itself():
    model = own(nets.Net)
    fast = split(model, "layer")
    before = fast.scores(pictures(model))
    model.module.head.bias.add_(1.0)
    assert torch.allclose(fast.scores(pictures(model)), before + 1)


def test_fusing_is_seen_in_the_graph():
    """In float32 a residual block becomes one call."""
    fast = split(own(nets.SumInPlace, torch.float32), "layer")
    trunk, _ = fast.module._run
    calls = [node.name for node in trunk.graph.nodes if node.op not in ("placeholder", "output")]
    assert calls == ["conv", "conv2", "layer"]
    assert all(trunk.get_submodule(node.target).weight.is_mkldnn for node in trunk.graph.nodes if node.name in calls)


def test_what_cannot_be_traced_is_called_whole():
    """The steps of the attempt are gone."""
    trunk, _ = split(own(nets.Branching), "layer").module._run
    calls = [str(node.target) for node in trunk.graph.nodes if node.op not in ("placeholder", "output")]
    assert len(calls) == 6
    assert calls[3:] == ["steps", "steps", "layer"]


def test_bfloat16_folds_in_double_precision():
    model = own(nets.Net, torch.bfloat16)
    fast = split(model, "layer")
    exact = own(nets.Net)
    wanted = exact.scores(pictures(exact))
    error, own_error = ((m.scores(pictures(model).float()) - wanted).abs().max() for m in (fast, model))
    assert error < 2 * own_error


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nets.LayerTwice, "called 2 times"),
        (nets.LayerHidden, "cannot be traced"),
        (nets.SumIntoOther, "something else"),
        (nets.Pair, "cannot be traced"),
        (nets.Unlisted, "cannot be traced"),
        (nets.Remembers, "keeps what it has seen"),
        (nets.Unfoldable, "anything to fold"),
    ],
)
def test_reasons(net, reason):
    model = own(net)
    before = memory(model.module)
    with pytest.raises(NotSplit, match=reason):
        split(model, "layer")
    assert memory(model.module) == before


def nothing(*_: object) -> None:
    """A hook that only looks."""


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("part", ["conv", "bn", "steps", "layer", "head"])
def test_hooks_of_parts_beside_the_layer_fire_each_time(part: str, register: str) -> None:
    """Before the layer, at it and behind it; parts with hooks are not folded, and called whole."""
    model = own(nets.Branching)
    getattr(model.module.get_submodule(part), register)(lambda _module, _args, *output: scaled(*output or _args))
    calls: list[int] = []
    getattr(model.module.get_submodule(part), register)(lambda *_: calls.append(1))
    before = memory(model.module)
    fast = split(model, "layer")
    assert_agrees(model, fast, "layer", 1e-9)
    assert memory(model.module) == before
    calls.clear()
    fast.scores(pictures(model))
    assert len(calls) == (2 if part == "steps" else 1)


def scaled(x: Tensor) -> Tensor:
    return 1.5 * x


def test_backward_hooks_behind_the_layer_fire() -> None:
    """On a module of the network's author, too, which without hooks would be taken apart."""
    model = own(nets.Branching)
    model.module.head = nn.Sequential(nets.Shift(), model.module.head)
    for part in (model.module.head[0], model.module.head[1]):
        part.register_full_backward_hook(lambda _module, grad_input, _output: (grad_input[0].clamp(-0.05, 0.05),))
    assert_agrees(model, split(model, "layer"), "layer", 1e-9)


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
@pytest.mark.parametrize("part", ["", "trunk"])
def test_hooks_around_the_layer_keep_the_network_whole(part: str, register: str) -> None:
    model = own(nets.Around)
    getattr(model.module.get_submodule(part), register)(nothing)
    with pytest.raises(NotSplit, match="around the layer has hooks"):
        split(model, "trunk.layer")


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_the_layer_keep_the_network_whole(register: str) -> None:
    model = own(nets.Net)
    getattr(model.module.layer, register)(nothing)
    with pytest.raises(NotSplit, match="the layer has backward hooks"):
        split(model, "layer")


@pytest.mark.parametrize(
    ("net", "reason"), [(nets.ClippedBehind, "autograd functions"), (nets.RoundedBehind, "cannot be traced")]
)
def test_autograd_functions_are_not_overlooked(net: type[nets.Net], reason: str) -> None:
    """The first hands on its very input, which fx does not see, and acts on larger gradients than there are here."""
    model = own(net)
    with pytest.raises(NotSplit, match=reason):
        split(model, "layer")


def test_autograd_functions_inside_of_a_part_stay() -> None:
    """Of a part that is called whole, as one that cannot be traced is."""
    model = own(nets.RoundedInside)
    assert_agrees(model, split(model, "layer"), "layer", 1e-9)


@pytest.mark.parametrize(
    ("arch", "layer"), [("convnext_tiny", "features.7"), ("vit_b_16", "encoder.layers.encoder_layer_11.ln_1")]
)
def test_networks_without_batch_norms_stay_whole(arch, layer):
    model = load(ModelSpec(name="net", arch=f"torchvision:{arch}", weights=RandomWeights()))
    with pytest.raises(NotSplit, match="anything to fold"):
        split(model, layer)


def test_one_picture_at_a_time():
    model = own(nets.PerBatch)
    fast = split(model, "layer")
    x = pictures(model, 1)
    assert torch.allclose(fast.scores(x), model.scores(x))


def test_a_copy_that_answers_something_else_is_refused():
    """A network that draws by itself whether to add one has no copy."""

    class Counting(nets.Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return super().forward(x) + (10.0 if type(self).calls == 1 else 0.0)

    with pytest.raises(NotSplit, match="something else"):
        split(own(Counting), "layer")


def test_a_layer_called_like_a_part_of_the_copy():
    class Odd(nets.Net):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Module()
            self.trunk.add_module("0", self.layer)

    model = own(Odd)
    assert_agrees(model, split(model, "trunk.0"), "trunk.0", 1e-9)


def test_other_models_run_while_one_is_traced():
    """fx patches nn.Module for the whole process; a module of another model is none of its business."""
    running, stop = threading.Event(), threading.Event()
    answered: list[Tensor] = []
    other = own(nets.Sum)
    x = pictures(other, 1)
    expected = other.scores(x)

    def run() -> None:
        try:
            while not stop.is_set():
                answered.append(other.scores(x))
                running.set()
        finally:
            running.set()

    thread = threading.Thread(target=run)
    thread.start()
    running.wait()
    forward, count = nn.Module.__call__, len(answered)
    try:
        for _ in range(10):
            split(own(nets.Nested), "layer")
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join()
    assert len(answered) > count
    assert all(torch.equal(answer, expected) for answer in answered)
    assert nn.Module.__call__ is forward


def test_two_models_are_traced_at_the_same_time():
    models = [own(net) for net in (nets.Net, nets.Sum, nets.Activated)]
    made: list[Split] = []
    threads = [threading.Thread(target=lambda model=model: made.append(split(model, "layer"))) for model in models]
    forward = nn.Module.__call__
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(models)
    assert nn.Module.__call__ is forward


def test_selected_output_and_head_are_the_models():
    model = own(nets.Answers, torch.float32)
    model = replace(
        model, spec=model.spec.model_copy(update={"output": "logits"}), score_kind="log-odds of the probabilities"
    )
    fast = split(model, "layer")
    x = pictures(model)
    assert torch.allclose(fast.scores(x), model.scores(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("activation", "shortcut"), [(nn.ReLU, False), (nn.ReLU6, False), (nn.ReLU, True)])
def test_nan_that_a_picture_makes_reaches_the_scores(activation: type[nn.Module], shortcut: bool) -> None:
    """oneDNN's fused ReLU would make 0 of it, and the copy would answer where the network does not."""
    torch.manual_seed(0)
    net = nets.InfiniteOnWhite(activation, shortcut=shortcut)
    model = hold(net, 16, torch.float32, torch.channels_last)
    found = split(model, "act")
    inputs = torch.stack([torch.ones(3, 16, 16), pictures(model, 1)[0]])
    expected, got = model.scores(inputs), found.scores(inputs)
    assert expected.isnan().all(1).tolist() == [True, False]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_only_what_may_not_be_finite_costs_a_fused_activation() -> None:
    """resnet18 keeps all its seventeen: one behind the stem, two in each of eight blocks."""
    model = hold(timm.create_model("resnet18"), 64, torch.float32, torch.channels_last)
    trunk, _ = split_module._traced(model.module, model.module.layer4)
    folding.fold(trunk)
    folding.pack(trunk, split_module._inputs(model)[:1])
    fused = [part._fused[0] for name, part in trunk.named_children() if name.startswith("packed_")]
    assert fused.count("relu") == 17
