"""Which layers a network ran, what their outputs look like, and which of them to explain by default.

Pure bookkeeping: the caller lets one forward pass run and reports each module as it finishes. Whether an output is
channels-first, channels-last or tokens is concluded from what was seen before it in the same pass.
"""

import math
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Kind = Literal["channels_first", "channels_last", "tokens"]
Grid = tuple[int, int]

_MAX_PREFIX_TOKENS = 8  # class, distillation and register tokens stand before the patches
_CHANNELS_FIRST = (
    nn.Conv2d,
    nn.ConvTranspose2d,
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.InstanceNorm2d,
    nn.AvgPool2d,
    nn.MaxPool2d,
)
_POOLING = re.compile(r"Pool(ing)?([123]d)?(Same)?$")  # torch's, timm's and most people's class names
_NO_OPERATION = (nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True)
class Layout:
    """How to read a layer's output as a spatial grid (height, width); tokens have `prefix` others before them."""

    kind: Kind
    grid: Grid
    prefix: int = 0

    def to_grid(self, t: Tensor) -> Tensor:
        """Return an output (N, C, h, w), (N, h, w, C) or (N, prefix + h * w, C) as (N, C, h, w); differentiable."""
        if self.kind == "channels_first":
            return t
        if self.kind == "channels_last":
            return t.permute(0, 3, 1, 2)
        return t[:, self.prefix :].transpose(1, 2).reshape(t.shape[0], t.shape[2], *self.grid)


@dataclass(frozen=True)
class LayerInfo:
    """One layer as the forward pass ran it.

    `shape` is that of the last call's output (None: not one tensor); `layout` None means that the output has no
    spatial grid, as far as can be told.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    calls: int
    layout: Layout | None


@dataclass(frozen=True)
class _Record:
    info: LayerInfo
    tensor: int | None  # equal numbers: the very same tensor
    is_pooling: bool
    does_nothing: bool
    is_projection: bool


class LayerTracer:
    """Call it with each module that finishes in one forward pass: `tracer(name, module, output)`.

    `shape` is that of the input, (N, C, h, w). It keeps no tensor. Root modules are named "" and listed nowhere.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self._records: dict[str, _Record] = {}  # in completion order of the last call
        self._first: str | None = None
        self._tensors = _Tensors()
        self._pooled: set[int] = set()
        self._layouts = _Layouts(shape)

    def __call__(self, name: str, module: nn.Module, output: object) -> None:
        """Note that the module called `name` has returned `output`."""
        if not name:
            return
        earlier = self._records.pop(name, None)
        tensor, is_new, shape, layout = None, False, None, None
        if isinstance(output, Tensor):
            shape = tuple(output.shape)
            tensor, is_new = self._tensors.number(output)
            layout = self._layouts.of(module, shape) if output.is_floating_point() else None
        is_pooling = _POOLING.search(type(module).__name__) is not None
        if is_pooling and is_new and tensor is not None:
            self._pooled.add(tensor)
        calls = earlier.info.calls + 1 if earlier else 1
        info = LayerInfo(name, type(module).__name__, shape, calls, layout)
        self._records[name] = _Record(
            info,
            tensor,
            is_pooling,
            does_nothing=isinstance(module, _NO_OPERATION),
            is_projection=isinstance(module, nn.Linear),
        )
        self._first = self._first or name

    @property
    def layers(self) -> list[LayerInfo]:
        """All layers that ran, in the order in which their last call finished."""
        return [record.info for record in self._records.values()]

    @property
    def candidates(self) -> list[LayerInfo]:
        """The layers that may be explained by default, the best first.

        That is the last layer with a spatial grid that is no pooling, then the one before, and so on; grids of 1x1
        count only if there is nothing else. Where several modules return the very same tensor, the outermost
        stands for all (`layer4`, not `layer4.2.relu`), unless it holds the whole backbone. Linear layers, which
        are halves of an attention or an MLP (queries, keys and values in one), come after all others.

        Shapes do not tell all. The output need not depend on a candidate: after a vision transformer's last
        attention only the class token matters, so skip candidates whose grid gets no gradient. And the grid's
        cells need not be in order: see `models.order`.
        """
        records = sorted(self._representatives(), key=lambda record: record.is_projection)
        spatial = [record.info for record in records]
        return [info for info in spatial if info.layout and max(info.layout.grid) > 1] or spatial

    def _representatives(self) -> Iterator[_Record]:
        """Yield one record per spatial tensor that no pooling made, the last first."""
        groups: dict[int, list[_Record]] = {}
        for record in reversed(self._records.values()):
            if record.tensor is not None and record.info.layout is not None:
                groups.setdefault(record.tensor, []).append(record)
        for tensor, group in groups.items():
            if tensor not in self._pooled:
                yield min(group, key=self._rank)

    def _rank(self, record: _Record) -> tuple[bool, bool, int]:
        """Order modules that return the same tensor; of equal ones, the last to finish comes first already."""
        name = record.info.name
        holds_the_backbone = (self._first or "").startswith(f"{name}.")
        return holds_the_backbone, record.does_nothing or record.is_pooling, name.count(".")


class _Tensors:
    """Numbers for tensors: the same as before if it is the same memory in the same shape, still alive."""

    def __init__(self) -> None:
        self._alive: dict[object, tuple[weakref.ref[Tensor], int]] = {}
        self._count = 0

    def number(self, tensor: Tensor) -> tuple[int, bool]:
        """Return the tensor's number and whether it is new."""
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        known, number = self._alive.get(key, (None, 0))
        is_new = known is None or known() is None  # freed memory may have been given to another tensor
        if is_new:
            self._count += 1
            number = self._count
        self._alive[key] = (weakref.ref(tensor), number)
        return number, is_new


class _Layouts:
    """What the input's shape and the shapes seen so far say about the next one."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._batch, _, self._height, self._width = shape
        self._kinds: dict[tuple[int, ...], Kind] = {}  # of 4-D shapes
        self._grids: list[Grid] = []  # the latest first

    def of(self, module: nn.Module, shape: tuple[int, ...]) -> Layout | None:
        """Return the layout of an output of `module`, None if it has no grid."""
        if 0 in shape or shape[:1] != (self._batch,):
            return None  # windows of an attention layer are folded into the batch
        if len(shape) == 3:
            return self._of_tokens(shape[1])
        return self._of_map(module, shape) if len(shape) == 4 else None

    def _of_map(self, module: nn.Module, shape: tuple[int, ...]) -> Layout | None:
        kind = _kind_of_type(module, shape) or self._kinds.get(shape) or self._kind_of_neighbours(shape)
        if kind is None:
            return None
        grid = shape[2:] if kind == "channels_first" else shape[1:3]
        layout = Layout(kind, (grid[0], grid[1]))
        if self._distortion(layout.grid) > 1:
            return None
        self._kinds[shape] = kind
        self._note(layout.grid)
        return layout

    def _of_tokens(self, count: int) -> Layout | None:
        """Return the layout of `count` tokens: a grid that was seen before, else an even one, after prefix tokens."""
        for find in (self._seen, self._even):
            for prefix in range(_MAX_PREFIX_TOKENS + 1):
                if grid := find(count - prefix):
                    return Layout("tokens", grid, prefix)
        return None

    def _seen(self, cells: int) -> Grid | None:
        return next((grid for grid in self._grids if grid[0] * grid[1] == cells), None)

    def _even(self, cells: int) -> Grid | None:
        """Return the grid of so many cells that covers the picture evenly; LeViT's and Hiera's last was no map."""
        if cells < 2:
            return None
        height = max(1, round(math.sqrt(cells * self._height / self._width)))
        grid = height, cells // height
        return grid if grid[0] * grid[1] == cells and self._distortion(grid) < 1 else None

    def _kind_of_neighbours(self, shape: tuple[int, ...]) -> Kind | None:
        """Conclude from a known map of which this is a permutation, or whose grid it shares."""
        batch, first, second, third = shape
        if self._kinds.get((batch, third, first, second)) == "channels_first":
            return "channels_last"
        if self._kinds.get((batch, second, third, first)) == "channels_last":
            return "channels_first"
        if (second, third) in self._grids:
            return "channels_first"
        return "channels_last" if (first, second) in self._grids else None

    def _distortion(self, grid: Grid) -> float:
        """Return by how many cells `grid` differs from one of the picture's proportions; a stack of windows does."""
        height, width = grid
        exact_height, exact_width = width * self._height / self._width, height * self._width / self._height
        return min(abs(height - exact_height), abs(width - exact_width))

    def _note(self, grid: Grid) -> None:
        if grid in self._grids:
            self._grids.remove(grid)
        self._grids.insert(0, grid)


def _kind_of_type(module: nn.Module, shape: tuple[int, ...]) -> Kind | None:
    """Conclude from a module that knows on which axis its channels are."""
    if isinstance(module, _CHANNELS_FIRST):
        return "channels_first"
    if isinstance(module, nn.Linear):
        return "channels_last"
    if isinstance(module, nn.LayerNorm) and shape[1] != shape[3]:
        width = module.normalized_shape[-1]  # subclasses such as LayerNorm2d normalise axis 1
        return "channels_last" if shape[3] == width else "channels_first" if shape[1] == width else None
    return None
