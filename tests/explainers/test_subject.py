import pytest
import torch
from torch import nn

from explainers import Subject, Target, explain
from explainers.errors import LayerNeverRan, UnhookableModel
from tests.explainers.checks import assert_same, maps
from tests.explainers.nets import PLAIN

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")


@pytest.mark.parametrize("how", ["traced", "scripted"])
def test_traced_and_scripted_models_are_refused(how: str) -> None:
    net = PLAIN.build(inplace=False)
    hidden = torch.jit.trace(net, PLAIN.pictures(1)) if how == "traced" else torch.jit.script(nn.Sequential(nn.ReLU()))
    with pytest.raises(UnhookableModel, match="load the original") as caught:
        Subject(hidden, hidden)
    assert caught.value.field == "model"


def test_a_traced_part_is_explained_as_a_whole_and_not_inside() -> None:
    whole = PLAIN.build(inplace=False)
    x = PLAIN.pictures(1)
    net = nn.Sequential(torch.jit.trace(whole[:3], x), whole[3:]).eval()
    expected = maps(Subject(whole, whole), "gradcam", x, [[Target(0)]], ["2"])[0]
    subject = Subject(net, net)
    for _ in range(2):
        assert_same(maps(subject, "gradcam", x, [[Target(0)]], ["0"])[0], expected)
        with pytest.raises(LayerNeverRan):  # torch takes the hook and never calls it
            explain(subject, x, [[Target(0)]], method="gradcam", layers=["0.2"])


def test_each_subject_remembers_for_itself() -> None:
    net = PLAIN.build()
    assert Subject(net, net).backward_hookable is not Subject(net, net).backward_hookable
