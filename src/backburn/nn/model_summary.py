"""``summary``: the layers of a model with output shapes, parameters, bytes and multiply-adds, computed from shapes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from backburn.autodiff import Autodiff
from backburn.backend.contract import is_autodiff
from backburn.backend.registry import SHAPES_ONLY, load_backend
from backburn.backend.wrapper import Wrapper
from backburn.base.contexts import scoped
from backburn.base.errors import ArgumentError, BackburnError
from backburn.base.module_calls import CALL, WATCHERS, ModuleCall, Watcher
from backburn.base.mutable_trees import Leaf, TreeNode
from backburn.base.trees import flatten, tree_map
from backburn.nn.module import Module, state_places
from backburn.nn.module_repr import short_type
from backburn.ops.rules.work import multiply_adds_of
from backburn.tensor import generators
from backburn.tensor.core.host import asarray
from backburn.tensor.core.wrapping import is_tensor, wrap
from backburn.tensor.creation import zeros


@dataclass(frozen=True)
class LayerSummary:
    """One module of a :class:`Summary`, excluding its submodules: each number belongs to one layer.

    ``path`` is that of the module, ``name`` its class, ``output`` the dtypes and shapes of the tensors that the first
    of its ``calls`` returned. ``parameters`` counts the elements of its parameters and quantized weights, of which
    ``trainable`` require gradients; ``shared`` counts those that belong to an earlier layer. ``nbytes`` is the size of
    parameters and buffers. ``multiply_adds`` are those of operations that the module itself calls.
    """

    path: str
    name: str
    output: tuple[str, ...]
    calls: int
    parameters: int
    trainable: int
    shared: int
    nbytes: int
    multiply_adds: int


@dataclass(frozen=True)
class Summary:
    """The result of :func:`summary`: ``layers`` in the order of the model, and their sums. Prints as a table."""

    layers: tuple[LayerSummary, ...]

    @property
    def parameters(self) -> int:
        """The elements of all parameters and quantized weights, shared ones counted once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def trainable(self) -> int:
        """The elements of the parameters that require gradients."""
        return sum(layer.trainable for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """The bytes of all parameters and buffers."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of the call."""
        return sum(layer.multiply_adds for layer in self.layers)

    def table(self, depth: int | None = None) -> str:
        """The layers as a table; those more than ``depth`` levels below the model are added to their parents."""
        kept: dict[str, tuple[int, str, list[int]]] = {}
        rows: dict[str, LayerSummary] = {}
        for layer in self.layers:
            above = _above(layer.path, kept)
            level = kept[above][0] + 1 if above is not None else 0
            if above is not None and depth is not None and level > depth:
                place = above
            else:
                label = layer.path[len(above) :].removeprefix(".") if above is not None else ""
                indent = "  " * level
                kept[layer.path] = level, f"{indent}{label}: {layer.name}" if label else layer.name, [0, 0, 0, 0]
                rows[layer.path], place = layer, layer.path
            numbers = kept[place][2]
            for i, n in enumerate((layer.parameters, layer.nbytes, layer.multiply_adds, layer.shared)):
                numbers[i] += n
        containers = {_above(path, kept) for path in kept}
        lines = [("layer", "output", "parameters", "bytes", "multiply-adds")]
        for path, (_, label, (parameters, nbytes, work, shared)) in kept.items():
            layer = rows[path]
            times = f" (x{layer.calls})" if layer.calls > 1 else ""
            times = times if layer.calls or path in containers else " (not called)"
            count = f"{parameters:,}" if parameters else "shared" if shared else ""
            cells = count, f"{nbytes:,}" if nbytes else "", f"{work:,}" if work else ""
            lines.append((label + times, ", ".join(layer.output), *cells))
        lines.append(("total", "", f"{self.parameters:,}", f"{self.nbytes:,}", f"{self.multiply_adds:,}"))
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        aligned = [
            "  ".join(c.ljust(n) if i < 2 else c.rjust(n) for i, (c, n) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        return "\n".join(line.rstrip() for line in aligned)

    def __str__(self) -> str:
        return self.table()


def _above(path: str, known: Mapping[str, Any]) -> str | None:
    """The nearest ancestor of ``path`` among ``known``."""
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None


class _Counting(Wrapper):
    """A backend that counts multiply-adds by the path of the module that is being called."""

    name: ClassVar[str] = "counting"

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.counts: Counter[str] = Counter()

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Call an operation of the wrapped backend, and count its multiply-adds."""
        result = super().call(operation, *operands, **attributes)
        call = CALL.get()
        if call is not None and (work := multiply_adds_of(operation, operands, attributes, result)):
            chain = call.chain
            inside = [c.path for c in chain if c.paths is chain[0].paths and c.path is not None]
            self.counts[inside[-1]] += work
        return result


class Outputs(Watcher):
    """Counts the calls of each module, and records what the first one returned."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.outputs: dict[str, tuple[str, ...]] = {}
        self._thread = threading.get_ident()

    def ended(self, call: ModuleCall, result: Any) -> None:
        """Record the result of a module's call."""
        if threading.get_ident() != self._thread or call.kind != "module" or call.failed:
            return
        if call.path is not None and call.paths is call.chain[0].paths:
            self.calls[call.path] += 1
            tensors = (x for x in flatten(result)[0] if is_tensor(x))
            self.outputs.setdefault(call.path, tuple(map(short_type, tensors)))


def summary(model: Module, *inputs: Any, **options: Any) -> Summary:
    """The layers of ``model`` for these inputs: output shapes, parameters, bytes, and multiply-adds of a call.

    A copy of the model is called, ``model(*inputs, **options)``, on a backend with shapes but no values: nothing is
    computed or changed, whatever the size. Inputs are tensors, arrays or trees of them; ``bb.zeros(shape,
    backend="null")`` takes no memory. The model runs in its current mode.

    Multiply-adds are those of matrix products, convolutions, attention (including masked keys) and recurrences, plain
    or quantized; embeddings have none. Operations count for the innermost module that called them.

    Raises :class:`ArgumentError` for anything but a module, and the errors of the model's call, for example if its
    shapes depend on values.

        >>> import backburn as bb
        >>> model = bb.nn.Sequential(bb.nn.Conv2d(3, 8, 3), bb.nn.ReLU(), bb.nn.Flatten(), bb.nn.Linear(288, 10))
        >>> print(summary(model, bb.zeros((1, 3, 8, 8), backend="null")))
        layer         output         parameters   bytes  multiply-adds
        Sequential    f32[1,10]
          0: Conv2d   f32[1,8,6,6]          224     896          7,776
          1: ReLU     f32[1,8,6,6]
          2: Flatten  f32[1,288]
          3: Linear   f32[1,10]           2,890  11,560          2,880
        total                             3,114  12,456         10,656
    """
    given: object = model
    if not isinstance(given, Module):
        hint = f"; write {model.__name__}(...)" if isinstance(model, type) else ""
        raise ArgumentError(f"summary: takes a module, not {given!r:.80}{hint}")
    counting, outputs = _Counting(load_backend(SHAPES_ONLY)), Outputs()
    leaves, k = state_places(model)[0], cast(Any, counting)
    if any(is_autodiff(leaf.value.backend) for leaf in leaves):
        k = Autodiff(counting)

    def there(x: Any) -> Any:
        if not is_tensor(x):
            return asarray(x, backend=k) if hasattr(x, "__array__") else x
        if x.dtype.kind == "quantized":
            return wrap(counting.quantized_from_parts(None, None, None, dtype=x.dtype, shape=x.shape), k)
        made = zeros(x.shape, dtype=x.dtype, backend=k)
        return made.require_grad() if x.is_require_grad else made

    copied = model._copied(there)
    given_inputs, given_options = tree_map(there, (inputs, options))
    WATCHERS.append(outputs)
    try:
        with scoped(CALL, None), generators.fork():
            copied(*given_inputs, **given_options)
    except BackburnError as error:
        error.add_note("summary: the model was called on shapes alone, without values.")
        raise
    finally:
        WATCHERS.remove(outputs)
    return Summary(tuple(_layers(model, leaves, counting.counts, outputs)))


def _layers(model: Module, leaves: list[Leaf], counts: Counter[str], outputs: Outputs) -> Iterator[LayerSummary]:
    """The parameters, bytes and results of each module alone, without those of its children."""
    modules = model.named_modules()
    paths = {id(module): path for path, module in modules}
    trained = {id(x) for x in model.parameters()}
    parameters, trainable, shared, nbytes = (Counter[str]() for _ in range(4))
    for leaf in leaves:
        x = leaf.value
        owner, *others = (paths[id(_module_at(node))] for node, _ in leaf.parents)
        nbytes[owner] += x.nbytes
        if id(x) in trained or x.dtype.kind == "quantized":
            parameters[owner] += x.size
            trainable[owner] += x.size * (id(x) in trained and x.is_require_grad)
            for other in others:
                shared[other] += x.size * (other != owner)
    for path, module in modules:
        yield LayerSummary(
            path, type(module).__name__, outputs.outputs.get(path, ()), outputs.calls[path], parameters[path],
            trainable[path], shared[path], nbytes[path], counts[path],
        )  # fmt: skip


def _module_at(node: TreeNode | None) -> Module:
    """The innermost module that contains a node, which may be the node itself."""
    while node is not None and not isinstance(node.value, Module):
        node = node.parent
    assert node is not None
    return node.value
