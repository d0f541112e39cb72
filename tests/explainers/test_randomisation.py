from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from explainers import ExplainError, Subject, Target, Work
from explainers import explain as explain_all
from explainers.errors import UnknownLayer
from explainers.randomisation import Randomisation, Stage, _bounds, _judged, randomisation
from models.catalog import DEFAULT_MODEL
from models.loading import LoadedModel, load
from models.registry import Registry
from tests.explainers.checks import bits, snapshot
from tests.explainers.nets import CASES, PLAIN, seeded
from tests.support import PICTURES

Raw = NDArray[np.float32]


def layered(count: int, *, size: int = 40, seed: int = 0) -> nn.Sequential:
    """Linear layers "0" to "count - 1", of `size` x `size` weights each, without biases."""
    net = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(count)))
    return seeded(net, seed)  # type: ignore[return-value]


def names(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if any(True for _ in module.parameters(recurse=False))]


def of_weights(net: nn.Module, layer: str, pictures: int = 6) -> Callable[[], list[Raw | None]]:
    """A method whose map of picture n is row n of the layer's weights, and that hangs on nothing else."""
    return lambda: [net.get_submodule(layer).weight[n].detach().numpy().astype(np.float32) for n in range(pictures)]  # type: ignore[union-attr,index]


def blind(pictures: int = 6) -> Callable[[], list[Raw | None]]:
    """A method whose maps hang on the picture alone, as an edge detector's do."""
    maps = [np.random.default_rng(n).standard_normal(40).astype(np.float32) for n in range(pictures)]
    return lambda: list(maps)


# Verdicts


def test_maps_that_hang_on_the_last_layer_pass_and_blind_ones_fail() -> None:
    net = layered(10)
    passing, failing = (randomisation(net, names(net), method) for method in (of_weights(net, "9"), blind()))
    assert passing.verdict == "passes"
    assert failing.verdict == "fails"
    # Independent numbers, 40 of them: |Spearman| has the mean sqrt(2 / (pi * 39)) = 0.128, and of six maps' mean the
    # standard deviation is 0.03.
    assert all(stage.similarity == pytest.approx(0.128, abs=0.13) for stage in passing.stages)
    assert all(stage.similarity == pytest.approx(1) for stage in failing.stages)
    assert passing.chance == pytest.approx(0.128, abs=0.08)
    assert passing.words.startswith("Passes: ")
    assert failing.words.startswith("Fails: ")
    assert passing.pictures == 6


@pytest.mark.parametrize(("layer", "verdict"), [("9", "passes"), ("8", "fails"), ("0", "fails")])
def test_a_method_blind_to_the_last_layer_fails(layer: str, verdict: str) -> None:
    net = layered(10)
    answer = randomisation(net, names(net), of_weights(net, layer))
    assert answer.verdict == verdict
    changed = [layer in stage.layers for stage in answer.stages].index(True)
    assert [stage.similarity == pytest.approx(1) for stage in answer.stages] == [n < changed for n in range(8)]


def test_below_half_of_the_layers_nothing_is_judged() -> None:
    """A method that sees the upper half only: the lower half's stages are no reason to let it fail or pass."""
    net = layered(8)
    answer = randomisation(net, names(net), of_weights(net, "7"))
    judged = answer.words.split(", with ")[1].split(" layers")[0]
    assert judged == "4"


def test_one_picture_is_never_enough() -> None:
    net = layered(6)
    for method in (of_weights(net, "5", 1), blind(1)):
        answer = randomisation(net, names(net), method)
        assert (answer.verdict, answer.chance) == ("undecided", None)


@pytest.mark.parametrize(("keeps", "verdict"), [(True, "fails"), (False, "undecided")])
def test_one_map_for_all_pictures_fails_if_it_stays_and_tells_nothing_if_not(keeps: bool, verdict: str) -> None:
    net, calls = layered(6), 0

    def method() -> list[Raw | None]:
        nonlocal calls
        calls += 0 if keeps else 1
        one = np.random.default_rng(calls).standard_normal(40)
        return [(one + n * 1e-3 * np.random.default_rng(n).random(40)).astype(np.float32) for n in range(5)]

    answer = randomisation(net, names(net), method)
    assert answer.verdict == verdict
    assert answer.chance == pytest.approx(1, abs=0.01)


def test_maps_that_vary_too_much_are_undecided() -> None:
    # Chance 0.2, shares of the way to 1: (0.9 - 0.2) / 0.8 = 0.875 and 0: mean 0.4375, and the error is large.
    stages = [Stage(("a",), 0.55), Stage(("b",), 0.1)]
    verdict, words = _judged(stages, [[0.9, 0.2, 0.9, 0.2], [0.1, 0.1, 0.1, 0.1]], 0.2)
    assert verdict == "undecided"
    assert words.startswith("Undecided: ")


def test_the_verdict_changes_half_way_between_chance_and_equality() -> None:
    # Chance 0.2: half of the way is 0.6. Spread 0.02 over four pictures: the bound is 2.353 * 0.0115 / 2 / 0.8 or so.
    for mean, verdict in ((0.55, "passes"), (0.60, "undecided"), (0.65, "fails")):
        values = [mean - 0.01, mean + 0.01, mean - 0.01, mean + 0.01]
        assert _judged([Stage(("a",), mean)], [values], 0.2)[0] == verdict


@pytest.mark.parametrize("free", [1, 2, 5, 9, 10, 15, 40, 200])
def test_bounds_are_student_s(free: int) -> None:
    values = np.random.default_rng(free).standard_normal(free + 1).tolist()
    error = scipy.stats.t.ppf(0.95, free) * scipy.stats.sem(values)
    assert _bounds(values) == pytest.approx((np.mean(values) - error, np.mean(values) + error), abs=2e-3)


def test_missing_and_constant_maps_are_left_out() -> None:
    net = layered(3)
    flat = np.ones(40, np.float32)
    calls = 0

    def method() -> list[Raw | None]:
        nonlocal calls
        calls += 1
        maps = blind(4)()
        return [None, flat, *maps[2:]] if calls == 2 else maps

    answer = randomisation(net, names(net), method)
    assert answer.stages[0].similarity == pytest.approx(1)
    with pytest.raises(ExplainError, match="nothing to compare"):
        randomisation(net, names(net), lambda: [None, flat])


# Stages


def test_the_last_layer_is_a_stage_alone_and_every_layer_is_in_one() -> None:
    net = layered(20, size=4)
    answer = randomisation(net, names(net), lambda: [m[:4] for m in blind(3)()])  # type: ignore[index]
    assert answer.stages[0].layers == ("19",)
    assert [layer for stage in answer.stages for layer in stage.layers] == [str(n) for n in range(19, -1, -1)]
    assert {len(stage.layers) for stage in answer.stages[1:]} == {2, 3}
    assert len(answer.stages) == 8


@pytest.mark.parametrize("layers", [3, 1])
def test_there_are_no_more_stages_than_layers(layers: int) -> None:
    net = layered(layers)
    assert len(randomisation(net, names(net), blind(3)).stages) == layers


def test_stages_are_cumulative_and_what_is_not_yet_reached_stays() -> None:
    net = layered(4)
    true = [bits(parameter) for parameter in net.parameters()]
    seen: list[list[bool]] = []

    def method() -> list[Raw | None]:
        seen.append([bits(now) == before for now, before in zip(net.parameters(), true, strict=True)])
        return blind(3)()

    randomisation(net, names(net), method)
    assert seen == [[True] * (4 - n) + [False] * n for n in range(5)]


def test_new_values_have_the_old_mean_and_deviation_and_are_new_at_each_stage() -> None:
    """Five standard errors of 1600 numbers: 5 / sqrt(1600) of the mean, 5 / sqrt(3200) of the deviation."""
    net = layered(3)
    with torch.no_grad():
        net[2].weight.mul_(0.05).add_(3.0)
    drawn: list[Tensor] = []

    def method() -> list[Raw | None]:
        drawn.append(net[2].weight.clone())
        return blind(3)()

    randomisation(net, names(net), method)
    true, *new = drawn
    for weights in new:
        assert abs(weights.mean() - true.mean()) < 0.125 * true.std()
        assert abs(weights.std() / true.std() - 1) < 0.09
        assert abs(np.corrcoef(weights.flatten(), true.flatten())[0, 1]) < 0.125
    assert len({bits(weights) for weights in new}) == 3


def test_a_single_number_has_no_deviation_and_stays() -> None:
    net, seen = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), []

    def method() -> list[Raw | None]:
        seen.append([parameter.item() for parameter in net.parameters()])
        return blind(3)()

    randomisation(net, names(net), method)
    assert seen[0] == seen[1] == seen[2]


def test_parameters_inside_a_layer_that_no_other_layer_names_are_its_own() -> None:
    """`out_proj` of attention is a module that no hook ever sees."""
    net = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "head": nn.Linear(8, 3)})
    true = {name: bits(parameter) for name, parameter in net.named_parameters()}
    changed: dict[str, bool] = {}

    def method() -> list[Raw | None]:
        changed.update({name: bits(p) != true[name] for name, p in net.named_parameters()})
        return blind(3)()

    randomisation(net, ["attention", "head"], method)
    # The biases of a new attention are all zero, and so have no other values of their mean and deviation.
    assert {name for name, new in changed.items() if not new} == {"attention.in_proj_bias", "attention.out_proj.bias"}


def test_a_shared_parameter_belongs_to_the_layer_nearest_to_the_score() -> None:
    net = layered(3)
    net[0].weight = net[2].weight
    answer = randomisation(net, names(net), blind(3))
    assert [stage.layers for stage in answer.stages] == [("2",), ("1",)]


def test_parameters_of_no_layer_are_made_up_in_the_last_stage() -> None:
    net = layered(3)
    net.register_parameter("token", nn.Parameter(torch.arange(5.0)))
    true, seen = bits(net.token), []  # type: ignore[arg-type]

    def method() -> list[Raw | None]:
        seen.append(bits(net.token) == true)  # type: ignore[arg-type]
        return blind(3)()

    answer = randomisation(net, names(net), method)
    assert "" in names(net)
    assert [stage.layers for stage in answer.stages] == [("2",), ("1",), ("0",)]
    assert seen == [True, True, True, False]


def test_layers_that_are_not_there_or_have_no_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UnknownLayer):
        randomisation(net, ["0", "2"], blind(3))
    with pytest.raises(ExplainError, match="None of the layers has parameters"):
        randomisation(net, ["1"], blind(3))


# What is left behind


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("fails_at", [None, 0, 1, 3])
def test_the_model_is_bit_by_bit_as_before(case: Any, fails_at: int | None) -> None:
    net = case.build()
    before, calls = _values(snapshot(net)), 0

    def method() -> list[Raw | None]:
        nonlocal calls
        if calls == fails_at:
            raise KeyError("broken")
        calls += 1
        for buffer in net.buffers():
            buffer.add_(1)
        return blind(3)()

    if fails_at is None:
        randomisation(net, names(net), method)
    else:
        with pytest.raises(KeyError):
            randomisation(net, names(net), method)
    assert _values(snapshot(net)) == before


def test_who_hears_of_the_steps_can_end_the_work() -> None:
    net, heard = layered(4), []
    before = _values(snapshot(net))

    def on_step(done: int, total: int) -> None:
        heard.append((done, total))
        if done == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        randomisation(net, names(net), blind(3), on_step=on_step)
    assert heard == [(0, 4), (1, 4), (2, 4)]
    assert _values(snapshot(net)) == before


def test_gradients_and_their_flags_are_left_alone() -> None:
    net = layered(3).requires_grad_()
    net[1].weight.requires_grad_(False)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = _values(snapshot(net))
    randomisation(net, names(net), blind(3))
    assert _values(snapshot(net)) == before


def test_other_dtypes_are_put_back_too() -> None:
    net = layered(3).bfloat16()
    net.register_buffer("count", torch.tensor([1, 2, 3]))
    with torch.no_grad():
        net[0].weight[0, 0] = float("nan")
    before = _values(snapshot(net))
    randomisation(net, names(net), blind(3))
    assert _values(snapshot(net)) == before


def test_the_seed_decides() -> None:
    net = layered(4)
    first, again, other = (randomisation(net, names(net), of_weights(net, "3"), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.stages != other.stages


def _values(facts: dict[str, object]) -> dict[str, object]:
    """Leave the version counters out: they tell of every write, also of one that puts a value back."""
    return {
        name: (fact[:2] + fact[3:] if name.startswith("tensor ") else fact)  # type: ignore[index]
        for name, fact in facts.items()
    }


# On the embedded model

FEW = ("chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "camera.png")


@pytest.fixture(scope="module")
def embedded() -> LoadedModel:
    return load(Registry().get(DEFAULT_MODEL))


def of_pictures(model: LoadedModel, method: str, layers: Sequence[str]) -> Randomisation:
    """Return what becomes of a method's maps of real pictures, each for its predicted class."""
    opened = [np.asarray(Image.open(PICTURES / name).convert("RGB")) for name in FEW]
    inputs = torch.from_numpy(np.stack([model.preprocess(pixels)[0] for pixels in opened]))
    subject = Subject(model.module, model.scores)
    with torch.inference_mode():
        classes = model.scores(inputs).argmax(dim=1).tolist()

    def maps() -> list[Raw | None]:
        targets = [[Target(index)] for index in classes]
        answers = explain_all(subject, inputs, targets, method=method, layers=layers, work=Work())
        return [None if isinstance(answer, ExplainError) else answer.attributions[0].raw for answer in answers]

    return randomisation(model.module, names(model.module), maps)


def test_grad_cam_passes_on_the_embedded_model(embedded: LoadedModel) -> None:
    assert of_pictures(embedded, "gradcam", ["bn2"]).verdict == "passes"


def test_guided_backpropagation_fails_on_the_embedded_model(embedded: LoadedModel) -> None:
    answer = of_pictures(embedded, "guided_backprop", [])
    assert answer.verdict == "fails"
    assert answer.stages[0].similarity is not None
    assert answer.stages[0].similarity > 0.95


def test_a_normal_network_answers_through_explain() -> None:
    """The map of a linear classifier by input x gradient: its weights times the picture."""
    net = PLAIN.build()
    subject, x = Subject(net, net), PLAIN.pictures(5)

    def maps() -> list[Raw | None]:
        answers = explain_all(subject, x, [[Target(1)]] * 5, method="saliency")
        return [None if isinstance(answer, ExplainError) else answer.attributions[0].raw for answer in answers]

    answer = randomisation(net, names(net), maps)
    assert len(answer.stages) == 3
    assert all(stage.similarity is not None and stage.similarity < 0.9 for stage in answer.stages)
