import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import Score, Subject, Target, explain
from explainers.errors import ExplainError, LayerNeverRan
from explainers.hooks import capture
from tests.explainers.nets import PLAIN, Head, pictures
from tests.explainers.odd_nets import BreaksBackward, Call, breaks_forward, sequential

# Nothing of an explanation stays alive


class Remember(nn.Module):
    """Keeps weak references to what passes, and to what autograd saved of it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.passed: list[weakref.ref[Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda box: box.tensor):
            for module in self.net:
                x = module(x)
                self.passed.append(weakref.ref(x))
        return x

    def pack(self, tensor: Tensor) -> "Box":
        box = Box(tensor)
        self.passed.append(weakref.ref(box))
        return box

    def alive(self) -> int:
        return sum(reference() is not None for reference in self.passed)


class Box:
    """Lives exactly as long as the graph that saved its tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def remembering(*, inplace: bool = False, tail: nn.Module | None = None) -> tuple[Remember, Subject]:
    tail = nn.Identity() if tail is None else tail
    net = sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.SiLU(inplace=inplace), Head(4), tail)
    remember = Remember(net).eval()
    return remember, Subject(remember, remember)


def outcome(subject: Subject, targets: list[list[Target]], method: str, layers: list[str]) -> list[str]:
    """Explain and return only words: nothing that could keep a tensor alive."""
    try:
        answers = explain(subject, pictures(len(targets), 9, 7), targets, method=method, layers=layers)
    except (ExplainError, ArithmeticError) as error:
        return [type(error).__name__]
    return [type(answer).__name__ for answer in answers]


@pytest.mark.parametrize(("method", "layers"), [("gradcam", ["net.2"]), ("saliency", [])])
@pytest.mark.parametrize(
    ("build", "targets", "words"),
    [
        (remembering, [[Target(0), Target(1)], [Target(2)]], ["Explanation", "Explanation"]),
        (lambda: remembering(inplace=True), [[Target(0)], [Target(2)]], ["Explanation", "Explanation"]),
        (remembering, [[Target(0)], [Target(77)]], ["Explanation", "TargetOutOfRange"]),
        (remembering, [[Target(1, versus=1)]], ["VersusEqualsTarget"]),
        (lambda: remembering(tail=Call(lambda x: x * float("nan"))), [[Target(0)]], ["NonFiniteScores"]),
        (lambda: remembering(tail=Call(lambda x: x.detach())), [[Target(0)]], ["NotConnected"]),
        (lambda: remembering(tail=Call(breaks_forward)), [[Target(0)]], ["ArithmeticError"]),
        (lambda: remembering(tail=Call(BreaksBackward.apply)), [[Target(0)]], ["ArithmeticError"]),
    ],
    ids=["done", "in place", "bad target", "versus", "nan", "cut", "forward fails", "backward fails"],
)
def test_nothing_stays_alive_after_an_explanation(
    build: Callable[[], tuple[Remember, Subject]],
    targets: list[list[Target]],
    words: list[str],
    method: str,
    layers: list[str],
) -> None:
    remember, subject = build()
    with without_garbage_collection():
        for _ in range(3):  # the first capture hands on clones, later ones may bear backward hooks
            assert outcome(subject, targets, method, layers) == words
            assert len(remember.passed) > 5
            assert remember.alive() == 0
            remember.passed.clear()


def test_a_kept_answer_keeps_no_tensor_alive() -> None:
    """Answers and errors wait in queues: they hold arrays and words."""
    remember, subject = remembering()
    with without_garbage_collection():
        kept = [
            explain(subject, pictures(2, 9, 7), [[Target(0)], [Target(77)]], method=method, layers=layers)
            for method, layers in (("gradcam", ["net.2"]), ("saliency", []))
        ]
        assert remember.alive() == 0
        assert all(len(answers) == 2 for answers in kept)
    assert all(isinstance(answers[0].attributions[0].score, Score) for answers in kept)


def test_a_hundred_explanations_leave_as_many_objects_as_ten() -> None:
    net = PLAIN.build(inplace=False)
    subject = Subject(net, net)

    def run(times: int) -> int:
        for turn in range(times):
            targets = [[Target(0)], [Target(99 if turn % 3 else 1)]]
            explain(subject, PLAIN.pictures(2), targets, method="gradcam", layers=["2"])
            explain(subject, PLAIN.pictures(2), targets, method="saliency")
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    with without_garbage_collection():
        assert run(10) == run(90)


def test_a_capture_is_empty_afterwards() -> None:
    net = PLAIN.build(inplace=False)
    subject = Subject(net, net)
    for _ in range(2):
        with capture(subject, ["2"]) as (taken,):
            taken.gradient(net(PLAIN.pictures(1))[0, 0])
            reference = weakref.ref(taken._output)
            assert reference() is not None
        assert reference() is None
        with pytest.raises(LayerNeverRan):
            _ = taken.activation
