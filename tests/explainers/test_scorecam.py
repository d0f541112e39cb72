"""Score-CAM and Ablation-CAM: closed forms, networks that resist, means and limits."""

import pytest
import torch
from torch import Tensor, nn
from torchcam.methods import ScoreCAM

from explainers import Subject, Target, Work, explain
from explainers.errors import NonFiniteMap, TooManySamples
from tests.explainers.checks import assert_same, maps, snapshot, twin
from tests.explainers.nets import PLAIN, Case, Head, Residual, Tokens, pictures, seeded, tokens_to_grid
from tests.explainers.odd_nets import Shared, sequential
from tests.explainers.torchvision_nets import build
from tests.references.cam import bilinear

BOTH = ("scorecam", "ablationcam")


def test_ablation_behind_which_all_is_linear_is_known() -> None:
    # y = sum over c of w_c mean(A_c) + b: without channel c it falls by w_c mean(A_c).
    net, x = sequential(nn.Conv2d(3, 6, 3), Head(6)), pictures(2, 9, 7)
    activation = net[0](x)
    fallen = net[1].fc.weight[2] * activation.mean(dim=(2, 3))
    (map_,) = maps(Subject(net, net), "ablationcam", x, [[Target(2)]] * 2, ["0"])
    assert_same(map_, torch.einsum("nc,nchw->nhw", fallen, activation))


def test_scorecam_by_hand() -> None:
    # Channels A_1 = x and A_2 = -x of x = (1, 3): masks (0, 1) and (1, 0). The score is x_1 + x_2, so what is left
    # scores 3 and 1: alpha = e^3 / (e^3 + e^1) and the rest, and the map is (alpha_1 - alpha_2) x = tanh(1) x.
    class Signs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x], dim=1)

    class Total(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.signs = Signs()

        def forward(self, x: Tensor) -> Tensor:
            return self.signs(x)[:, :1].sum(dim=(2, 3))

    net, x = Total().eval(), torch.tensor([[[[1.0, 3.0]]]], dtype=torch.float64)
    (map_,) = maps(Subject(net, net), "scorecam", x, [[Target(0)]], ["signs"])
    assert_same(map_, torch.tanh(torch.tensor(1.0, dtype=torch.float64)) * x[0])


@pytest.mark.parametrize("method", BOTH)
def test_dead_and_constant_channels_are_no_nan(method: str) -> None:
    net, x = sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Head(4)), pictures(1, 9, 7)
    net[0].weight[1:3] = 0
    net[0].bias[1:3] = torch.tensor([-1.0, 2.0])  # behind the ReLU: dead, and constant
    (map_,) = maps(Subject(net, net), method, x, [[Target(0)]], ["1"])
    assert_same(map_[0], twin(method, net, x, 0, layer="1"))


def test_where_no_channel_varies_scorecam_has_nothing_to_show() -> None:
    net, x = sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Head(4)), pictures(1, 9, 7)
    net[0].weight.zero_()
    (map_,) = maps(Subject(net, net), "scorecam", x, [[Target(0)]], ["1"])
    assert map_.tolist() == torch.zeros(1, 7, 5).tolist()


def test_torchcams_scorecam_agrees() -> None:
    """It weighs by the difference to the picture's own score, which the softmax takes out as it does the baseline's.

    Channels that are zero everywhere have a share in its softmax and none in ours: one factor for all of the map.
    """
    net, x = build("resnet18").float(), pictures(1, 64, 64).float()
    with ScoreCAM(net, "layer4", batch_size=64, input_shape=(3, 64, 64)) as extractor:
        with torch.no_grad():
            net(x)
        (theirs,) = extractor(class_idx=3, normalized=False)
    (map_,) = maps(Subject(net, net), "scorecam", x, [[Target(3)]], ["layer4"])
    assert map_.max() > 0
    assert_same(map_[0].clamp(min=0) / map_.max(), theirs[0] / theirs.max(), 1e-5)


# Networks in which one picture cannot become several rows on the way


class Early(nn.Module):
    """What lies before the layer meets what lies behind it, batch against batch, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        early = self.stem(x)
        early += self.conv(early)
        return self.head(early.relu())


class Rows(nn.Module):
    """Takes as many rows of the features as there are pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), Head(4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        return torch.cat([self.head(features[n : n + 1]) for n in range(len(x))])


@pytest.mark.parametrize(("factory", "layer"), [(Early, "conv"), (Rows, "conv")])
def test_ablation_of_networks_that_resist(factory: type[nn.Module], layer: str) -> None:
    net, x = seeded(factory()), pictures(2, 9, 7)
    before = snapshot(net)
    (map_,) = maps(Subject(net, net), "ablationcam", x, [[Target(0)], [Target(1)]], [layer])
    for n in range(2):
        assert_same(map_[n], twin("ablationcam", net, x[n : n + 1], n, layer=layer))
    assert snapshot(net) == before


@pytest.mark.parametrize(
    "case",
    [Case("residual", Residual, "bn2"), Case("shared", Shared, "relu"), Case("stem", Residual, "stem")],
    ids=lambda case: case.name,
)
def test_ablation_takes_the_last_call_and_broadcasts_over_skips(case: Case) -> None:
    net, x = case.build(), case.pictures(1)
    (map_,) = maps(Subject(net, net), "ablationcam", x, [[Target(0)]], [case.layer])
    assert_same(map_[0], twin("ablationcam", case.build(inplace=False), x, 0, layer=case.layer))


def test_only_what_lies_behind_the_layer_runs_for_each_channel() -> None:
    net, x = PLAIN.build(), PLAIN.pictures(1)
    rows: list[int] = []
    handle = net[0].register_forward_hook(lambda _module, _args, output: rows.append(len(output)))
    maps(Subject(net, net), "ablationcam", x, [[Target(0)]], ["2"], work=Work(chunk=3))
    handle.remove()
    assert set(rows) == {1}


def test_ablation_leaves_the_class_token_alone() -> None:
    net, x = seeded(Tokens()), pictures(1, 9, 7)
    (map_,) = maps(Subject(net, net), "ablationcam", x, [[Target(0)]], ["norm1"], {"norm1": tokens_to_grid})
    assert_same(map_[0], twin("ablationcam", net, x, 0, layer="norm1", to_grid=tokens_to_grid))


def test_ablation_of_a_grid_that_is_a_copy_of_the_tokens() -> None:
    # Gathered tokens are a copy, so that writing into the grid would ablate nothing.
    def gathered(tokens: Tensor) -> Tensor:
        return tokens_to_grid(tokens)[..., torch.tensor([1, 0])]

    net, x = seeded(Tokens()), pictures(1, 9, 7)
    (map_,) = maps(Subject(net, net), "ablationcam", x, [[Target(0)]], ["norm1"], {"norm1": gathered})
    assert_same(map_[0], twin("ablationcam", net, x, 0, layer="norm1", to_grid=tokens_to_grid).flip(1))


# Means and limits


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_chunk_changes_nothing(method: str, chunk: int) -> None:
    net, x, targets = PLAIN.build(), PLAIN.pictures(2), [[Target(0)], [Target(1, versus=2)]]
    (expected,) = maps(Subject(net, net), method, x, targets, ["2"])
    (actual,) = maps(Subject(net, net), method, x, targets, ["2"], work=Work(chunk=chunk))
    assert_same(actual, expected)


@pytest.mark.parametrize("method", BOTH)
def test_more_channels_than_allowed_are_refused_before_the_work(method: str) -> None:
    net, work = PLAIN.build(), Work(limit=7, limit_name="HEATLENS_MAX_SAMPLES")
    with pytest.raises(
        TooManySamples, match=r"a layer of 8 channels takes 8 runs .* HEATLENS_MAX_SAMPLES is 7"
    ) as caught:
        maps(Subject(net, net), method, PLAIN.pictures(1), [[Target(0)]], ["2"], work=work)
    assert (caught.value.field, caught.value.extra["limit"]) == ("layer", 7)


@pytest.mark.parametrize("method", BOTH)
def test_several_layers_and_pictures_are_one_work(method: str) -> None:
    net, told = PLAIN.build(), []
    targets, layers = [[Target(0)], [Target(1)]], ["0", "2"]  # 6 and 8 channels
    work = Work(chunk=5, limit=14, on_step=lambda done, total: told.append((done, total)))
    fused = maps(Subject(net, net), method, PLAIN.pictures(2), targets, layers, work=work)
    assert told == [(done, 28) for done in (0, 5, 10, 15, 20, 25, 28)]
    assert_same(fused[0], maps(Subject(net, net), method, PLAIN.pictures(2), targets, layers)[0])
    with pytest.raises(TooManySamples, match="2 layers of 6 and 8 channels takes 14 runs"):
        maps(Subject(net, net), method, PLAIN.pictures(2), targets, layers, work=Work(limit=13))


@pytest.mark.parametrize("method", BOTH)
def test_no_graph_is_held_while_the_model_runs_again_and_again(method: str) -> None:
    net, alive = PLAIN.build(), []

    def scores(inputs: Tensor) -> Tensor:
        answer = net(inputs)
        alive.append(answer.requires_grad)
        return answer

    subject = Subject(net, scores)
    maps(subject, method, PLAIN.pictures(1), [[Target(0)]], ["2"])
    assert not any(alive)
    assert subject.backward_hookable == {}


def test_a_score_that_is_not_finite_is_not_hidden() -> None:
    """Channels (x, -x) of x = 2 in one place, 0 elsewhere: the second mask hides all there is, and 0 / 0 is NaN."""

    class Signs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x], dim=1)

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.signs = Signs()

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.signs(x).mean(dim=(2, 3))
            return pooled / pooled.norm(dim=1, keepdim=True)

    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = 2.0
    net = Normed().eval()
    (answer,) = explain(Subject(net, net), x, [[Target(0)]], method="scorecam", layers=["signs"])
    assert isinstance(answer, NonFiniteMap)


@pytest.mark.parametrize("method", BOTH)
def test_progress_is_told_and_cancelling_stops_between_two_steps(method: str) -> None:
    class Cancelled(Exception):
        pass

    told: list[tuple[int, int]] = []

    def on_step(done: int, total: int) -> None:
        told.append((done, total))
        if done == 4:
            raise Cancelled

    net = PLAIN.build()
    before, work = snapshot(net), Work(chunk=2, on_step=on_step)
    with pytest.raises(Cancelled):
        maps(Subject(net, net), method, PLAIN.pictures(1), [[Target(0)]], ["2"], work=work)
    assert told == [(0, 8), (2, 8), (4, 8)]
    assert snapshot(net) == before


def test_masks_are_laid_between_the_centres_of_the_cells() -> None:
    # One channel, one mask: the softmax has nothing to weigh, but what the model is shown can be caught.
    net = sequential(nn.Conv2d(1, 1, 3, stride=2), Head(1))
    shown: list[Tensor] = []

    def scores(inputs: Tensor) -> Tensor:
        shown.append(inputs.clone())
        return net(inputs)

    x = pictures(1, 9, 7, channels=1)
    maps(Subject(net, scores), "scorecam", x, [[Target(0)]], ["0"])
    channel = net[0](x)[0, 0]
    mask = bilinear(((channel - channel.min()) / (channel.max() - channel.min())).numpy(), 9, 7)
    assert_same(shown[-1][0, 0], x[0, 0] * torch.from_numpy(mask))
