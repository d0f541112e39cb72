import pytest
import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, ScaledStdConv2d
from torch import Tensor, nn

from explainers import Subject, Target
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import Case, Head, normed, pictures, plain, seeded
from tests.explainers.odd_nets import Shared
from tests.references.cam import full_gradients, fullgrad


@pytest.mark.parametrize("factory", [plain, normed, Shared], ids=lambda factory: factory.__name__)
def test_the_shares_add_up_to_the_score(factory: type[nn.Module]) -> None:
    """Equation 2, of the twin: what it is made of is complete, but for the head's bias, which enters as it is.

    ReLU6 is no ReLU; where it does not reach 6, it is one. A shared module's every call has its share.
    """
    net, x = seeded(factory(inplace=False)), pictures(1, 9, 7)
    head = next(part for part in net.modules() if isinstance(part, Head))
    total = sum(share.sum() for share in full_gradients(net, x, 3)) + float(head.fc.bias[3])
    assert total == pytest.approx(float(net(x)[0, 3]), rel=1e-10)


def test_shared_modules_count_at_every_call() -> None:
    net, literal = seeded(Shared(inplace=True)), seeded(Shared(inplace=False))
    x = pictures(1, 9, 7)
    (map_,) = maps(Subject(net, net), "fullgrad", x, [[Target(3)]])
    assert_same(map_[0], fullgrad(literal, x, 3))


class Twice(nn.Module):
    """One convolution, run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 3), Head(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(F.relu(self.conv(x), inplace=True)), inplace=True))


def test_a_convolution_that_runs_twice_counts_twice() -> None:
    case = Case("twice", Twice, "", has_inplace=False)
    net, x = case.build(), case.pictures(2)
    (map_,) = maps(Subject(net, net), "fullgrad", x, [[Target(0)], [Target(1)]])
    for n in range(2):
        assert_same(map_[n], fullgrad(net, x[n : n + 1], n))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_batch_norm_that_is_one_module_with_its_activation_gives_the_same_map(inplace: bool) -> None:
    """timm's BatchNormAct2d is a BatchNorm2d, but its output lies behind the ReLU: the bias does not."""
    apart = seeded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Head(4)))
    merged = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4, act_kwargs={"inplace": inplace}), Head(4)).double()
    merged[0].load_state_dict(apart[0].state_dict())
    merged[1].load_state_dict(apart[1].state_dict())
    merged[2].load_state_dict(apart[3].state_dict())
    merged, x = merged.eval().requires_grad_(False), pictures(1, 9, 7)
    assert_same(merged(x), apart(x))
    (map_,) = maps(Subject(merged, merged), "fullgrad", x, [[Target(0)]])
    assert_same(map_[0], fullgrad(apart, x, 0))


def test_convolutions_of_standardised_weights_have_their_bias() -> None:
    conv = ScaledStdConv2d(3, 4, 3, bias=True)
    net = nn.Sequential(conv, nn.ReLU(), Head(4)).double().eval().requires_grad_(False)
    seeded(net)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), net[2]).double().eval()
    gain = (conv.gain * conv.scale).reshape(-1)
    mean = conv.weight.mean(dim=(1, 2, 3), keepdim=True)
    std = (conv.weight.var(dim=(1, 2, 3), unbiased=False, keepdim=True) + conv.eps).sqrt()
    plain[0].weight = nn.Parameter((conv.weight - mean) / std * gain.reshape(-1, 1, 1, 1))
    plain[0].bias = nn.Parameter(conv.bias.clone())
    x = pictures(1, 9, 7)
    assert_same(net(x), plain(x).detach())
    (map_,) = maps(Subject(net, net), "fullgrad", x, [[Target(0)]])
    assert_same(map_[0], fullgrad(plain, x, 0))


def test_without_any_bias_it_is_the_scaled_product_of_input_and_gradient() -> None:
    # |x g| = (6, 2, 0) over the one channel: scaled (1, 1/3, 0).
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 1, bias=False)).double().requires_grad_(False).eval()
    net[1].weight.copy_(torch.tensor([[2.0, -1.0, 5.0]]))
    x = torch.tensor([[[[3.0, 2.0, 0.0]]]], dtype=torch.float64)
    (map_,) = maps(Subject(net, net), "fullgrad", x, [[Target(0)]])
    assert map_.flatten().tolist() == pytest.approx([1.0, 1 / 3, 0.0])


def test_a_share_that_is_the_same_everywhere_is_nothing_and_no_nan() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 1, bias=False)).double().requires_grad_(False).eval()
    net[1].weight.fill_(2.0)
    (map_,) = maps(Subject(net, net), "fullgrad", torch.ones(1, 1, 1, 3, dtype=torch.float64), [[Target(0)]])
    assert map_.flatten().tolist() == [0.0, 0.0, 0.0]


def test_batch_norms_without_scales_or_statistics_have_their_own_bias() -> None:
    net = seeded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), Head(4)))
    x = pictures(1, 9, 7)
    biased = seeded(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Head(4)))
    biased.load_state_dict(net.state_dict(), strict=False)
    biased[1].weight.fill_(1.0)
    biased[1].bias.zero_()
    (map_,) = maps(Subject(net, net), "fullgrad", x, [[Target(0)]])
    assert_same(map_[0], fullgrad(biased, x, 0))
