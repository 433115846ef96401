"""Which constants of a graph are parameters, under which paths, and which of them are tied.

Exporters write all constants as initializers, merge equal ones, copy transposed ones, and stack those of recurrent
layers. Parameters are found by the use of a constant (the weight of a convolution, a table of embeddings) and by the
exporter's notes at the node (:mod:`backburn.onnx.naming`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, hint_for
from backburn.base.mutable_trees import path_matches
from backburn.onnx import naming
from backburn.onnx.compile import HOST_FLOATS, HOST_INTEGERS, Compiled, Constant, Use
from backburn.onnx.graph import Step
from backburn.tensor import shape as shapes

#: The inputs of operators that are weights, and their names in PyTorch's modules.
_NORM = {1: "weight", 2: "bias"}
ROLES: dict[str, dict[int, str]] = {
    "Conv": _NORM, "ConvTranspose": _NORM, "DeformConv": {1: "weight", 3: "bias"}, "Gemm": {0: "weight", **_NORM},
    "MatMul": {0: "weight", 1: "weight"}, "Gather": {0: "weight"}, "Einsum": {0: "weight", 1: "weight"},
    "LSTM": {1: "weight_ih", 2: "weight_hh", 3: "bias", 7: "weight_peephole"},
    "GRU": {1: "weight_ih", 2: "weight_hh", 3: "bias"}, "RNN": {1: "weight_ih", 2: "weight_hh", 3: "bias"},
    "BatchNormalization": _NORM, "InstanceNormalization": _NORM, "LayerNormalization": _NORM,
    "GroupNormalization": _NORM, "RMSNormalization": {1: "weight"}, "PRelu": {1: "weight"},
}  # fmt: skip
#: Operators after which an added constant is a bias.
_BEFORE_BIAS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
#: PyTorch's names of the functions whose operators have weights; a node of another function was fused.
_TARGETS = {
    "Conv": ("conv",), "ConvTranspose": ("conv",), "Gemm": ("linear", "mm", "matmul"), "Gather": ("embedding", "index"),
    "MatMul": ("linear", "mm", "matmul", "einsum", "bilinear"), "PRelu": ("prelu",), "Einsum": ("einsum", "bilinear"),
}  # fmt: skip
#: Last parts of paths that only parameters have, for exporters that decompose norms.
_PARAMETERS = ("weight", "bias", "gamma", "beta", "kernel", "alpha", "scale")
#: The order of gates in a file's recurrent layers, as indices of PyTorch's blocks.
GATES: dict[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@dataclass
class Binding:
    """A slot of the graph that is filled from tensors of the model: one, or several that are combined."""

    slot: int
    paths: tuple[str, ...]
    assemble: Callable[..., Any] | None = None


@dataclass
class Found:
    """A tensor that the model will hold."""

    path: str
    array: NDArray[Any]
    role: str
    names: list[str]
    change: str
    reason: str
    #: The number of the first node that reads it, plus the input's index there in hundredths.
    order: float


@dataclass
class Plan:
    """The decisions for the constants of a graph."""

    tensors: dict[str, Found] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    host: list[Constant] = field(default_factory=list)
    ties: list[tuple[str, str]] = field(default_factory=list)
    splits: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    #: Other paths of shared parameters, with the parameter's path and the number of the node there.
    aliases: dict[str, tuple[str, float]] = field(default_factory=dict)
    #: Parameters that the exporter noted, but that have no tensor in the file.
    missing: list[str] = field(default_factory=list)


@dataclass
class _Claim:
    """The evidence of a use that a constant is a parameter: its path, and the reason."""

    path: str
    reason: str
    is_noted: bool
    #: ``"T"`` for a matrix that is transposed in the file, ``"reshaped"`` for one axis among others of length 1.
    change: str = ""
    #: The path of a shared parameter in the module of this use, if it differs, and the number of the node.
    alias: str = ""
    order: float = 0


def transposed(x: Any) -> Any:
    """The transposed matrix."""
    return shapes.permute_dims(x, (1, 0))


class Planner:
    """Decides the role of each constant."""

    def __init__(
        self, compiled: Compiled, trainable: Sequence[str] | None, ties: str | Sequence[tuple[str, str]]
    ) -> None:
        self.compiled = compiled
        self.trainable = trainable
        self.ties = ties
        self.plan = Plan()
        #: Whether the file is backburn's and states the role of each tensor.
        self.is_ours = any(naming.role_of(c.metadata) for c in compiled.constants)
        self.known = {naming.underlined(c.name): c.name for c in compiled.constants if not self._is_anonymous(c)}
        self.matched: set[str] = set()
        self.layers: dict[str, list[str]] = {}

    def run(self) -> Plan:
        """The plan. Raises :class:`ArgumentError` for patterns without a match and ties that are not possible."""
        constants = self.compiled.constants
        floats = [c for c in constants if c.is_float]
        # Constants that kept their names first, since others may be copies of them.
        for constant in constants if self.is_ours else sorted(floats, key=self._is_anonymous):
            (self._ours if self.is_ours else self._float)(constant)
        for constant in constants:
            if not constant.is_float and not self.is_ours:
                self._constant(constant, "integers" if constant.array.dtype.kind in "iu" else "truth values")
        if self.trainable is not None:
            for pattern in self.trainable:
                if pattern not in self.matched:
                    names = [c.name for c in floats] + list(self.plan.tensors)
                    raise ArgumentError(
                        f"load: trainable={pattern!r} matches no tensor of floats. {hint_for(pattern, names)}"
                    )
        self._tie()
        self._note_missing()
        return self.plan

    def _is_anonymous(self, constant: Constant) -> bool:
        """Whether an exporter invented the name of a constant."""
        if self.is_ours:
            return not naming.role_of(constant.metadata)
        if not constant.is_initializer or naming.is_exporters(constant.name):
            return True
        spelled = naming.underlined(constant.name)
        noted, buffers = self.compiled.noted, self.compiled.noted_buffers
        return bool(noted) and "." not in constant.name and spelled not in noted and spelled not in buffers

    def _note_missing(self) -> None:
        """Note the parameters without a tensor in the file: omitted zeros, and folded ones."""
        here = {naming.underlined(path) for path in (*self.plan.tensors, *self.plan.aliases)}
        here |= {naming.underlined(name) for found in self.plan.tensors.values() for name in found.names}
        for name, scopes in self.compiled.noted.items():
            if name not in here:
                self.plan.missing.append(naming.path_of(name, scopes))

    # ---- evidence of uses ----

    def _claims(self, constant: Constant) -> list[tuple[Use, _Claim | None]]:
        return [(use, self._claim(constant, use)) for use in constant.uses]

    def _role(self, constant: Constant, use: Use) -> str | None:
        """The name of a weight in a use; None if the input is not a weight."""
        if use.operator == "Add" and use.step is not None:
            for slot in use.step.inputs:
                maker = self.compiled.makers.get(slot)
                if maker is not None and maker.operator in _BEFORE_BIAS and constant.array.ndim <= 2:
                    return "bias"
        if "_norm" in naming.target_of(use.metadata) and _is_one_axis(constant.array):
            return {"Mul": "weight", "Add": "bias"}.get(use.operator) or ROLES.get(use.operator, {}).get(use.place)
        return ROLES.get(use.operator, {}).get(use.place)

    def _claim(self, constant: Constant, use: Use) -> _Claim | None:
        """The evidence of one use; None if it does not show a parameter."""
        called = naming.called_parameters(use.metadata)
        role = self._role(constant, use)
        own = naming.underlined(constant.name)
        anonymous = self._is_anonymous(constant)
        where = f"{role} of {use.operator}" if role else f"operand of {use.operator}"
        if called is not None and own in called and not anonymous:
            return _Claim(
                constant.name, where, True, "", self._alias(called, use, role), use.order + use.place / 100 - 0.005
            )
        target = naming.target_of(use.metadata)
        is_fused = called is not None and not any(word in target for word in _TARGETS.get(use.operator, ("",)))
        if called and role is not None and use.operator not in GATES and not is_fused:
            if anonymous and _is_uniform(constant.array) and constant.array.ndim < 2:
                return None
            path = self._called_path(called, use, role)
            if path is not None:
                return _Claim(
                    path,
                    where,
                    True,
                    self._change(constant, use, target),
                    self._alias(called, use, role),
                    use.order - 0.5,
                )
        if called is not None and (own in naming.called_buffers(use.metadata) or (anonymous and not is_fused)):
            return None
        if role is not None:
            if anonymous and (constant.array.size <= 1 or (_is_uniform(constant.array) and use.operator not in GATES)):
                return None
            module = naming.path_of_node(use.name) if called is None and anonymous else ""
            if module:
                turned = use.operator == "MatMul" and use.place == 1 and constant.array.ndim == 2 and not use.through
                return _Claim(f"{module}.{role}", where, False, "T" if turned else "")
            name = constant.name
            if name.endswith(".weight_bias"):  # the bias of a batch norm folded into a convolution
                name = f"{name.removesuffix('.weight_bias')}.bias"
            return _Claim(name, where, False)
        last = constant.name.rsplit(".", 1)
        if not anonymous and len(last) == 2 and last[1] in _PARAMETERS and constant.array.ndim:
            return _Claim(constant.name, f"called {last[1]}", False)
        return None

    @staticmethod
    def _change(constant: Constant, use: Use, target: str) -> str:
        """How the layout of a weight in the file differs from PyTorch's."""
        if use.through:
            return ""
        if constant.array.ndim == 2 and use.place == 1 and "linear" in target and not use.attributes.get("transB", 0):
            return "T"
        if use.operator in ("PRelu", "Mul", "Add") and constant.array.ndim > 1 and _is_one_axis(constant.array):
            return "reshaped"
        return ""

    @staticmethod
    def _alias(called: list[str], use: Use, role: str | None) -> str:
        """The path of a shared parameter in the module of a use; empty if it is not shared."""
        module = naming.module_of(use.metadata)
        path = f"{module}.{role}"
        return path if module and role in ("weight", "bias") and naming.underlined(path) not in called else ""

    def _called_path(self, called: list[str], use: Use, role: str) -> str | None:
        """The path of the parameter that has the role of a use in its call."""
        fitting = [name for name in called if name.endswith(f"_{role}") or name == role]
        others = [name for name in called if name not in fitting]
        if role == "weight" and not fitting:
            fitting = [name for name in others if not name.endswith("_bias")]
        elif role == "bias" and not fitting:
            fitting = others[1:2]
        if not fitting:
            return None
        name = fitting[0]
        return self.known.get(name) or naming.path_of(name, naming.scopes_of(use.metadata))

    # ---- decisions ----

    def _wanted(self, *names: str) -> bool:
        """Whether ``trainable`` names one of these."""
        assert self.trainable is not None
        found = [p for p in self.trainable if any(path_matches(name, p) for name in names)]
        self.matched.update(found)
        return bool(found)

    def _ours(self, constant: Constant) -> None:
        """Enter a constant of a file of backburn, which states its role."""
        role = naming.role_of(constant.metadata)
        is_parameter = role == "parameter" if self.trainable is None else role != "" and self._wanted(constant.name)
        if is_parameter and constant.is_float:
            path = self._add(constant, [constant.slot], _Claim(constant.name, "noted in the file", True))
        else:
            path = self._constant(constant, "noted in the file" if role else "made by a call")
        if not path:
            return
        # In the order of the file, which is that of the model; other paths come last.
        self.plan.tensors[path].order = constant.slot
        if self.ties == "auto":
            for alias in naming.aliases_of(constant.metadata):
                self.plan.aliases[alias] = (path, len(self.compiled.graph.start))

    def _float(self, constant: Constant) -> None:
        recurrent = self._stack(constant)
        if recurrent:
            return
        claims = self._claims(constant)
        given = [(use, claim) for use, claim in claims if claim is not None]
        if self.trainable is not None:
            paths = {claim.path for _, claim in given} | {constant.name}
            if not self._wanted(*paths):
                given = []
            elif not given:
                self._add(constant, [constant.slot], _Claim(constant.name, "trainable", True))
                return
        if not given:
            why = "of the exporter" if self._is_anonymous(constant) else "no place of a weight"
            self._constant(constant, why)
            return
        groups: dict[str, list[tuple[Use, _Claim]]] = {}
        for use, claim in given:
            groups.setdefault(claim.path, []).append((use, claim))
        if len(groups) == 1 and not self._splits_by_module(constant, given):
            self._add(constant, [constant.slot], given[0][1])
            return
        self._split(constant, claims, groups)

    def _splits_by_module(self, constant: Constant, given: list[tuple[Use, _Claim]]) -> bool:
        """Whether nodes share a constant only because an exporter merged equal ones."""
        return (
            len(given) > 1
            and not any(claim.is_noted for _, claim in given)
            and _is_uniform(constant.array)
            and constant.array.size > 1
            and len({use.name for use, _ in given}) == len(given)
        )

    def _split(
        self, constant: Constant, claims: list[tuple[Use, _Claim | None]], groups: dict[str, list[tuple[Use, _Claim]]]
    ) -> None:
        """Split one constant into several parameters, each for some of its uses."""
        parts = list(groups.values())
        if len(parts) == 1:  # no metadata: each node is one module
            parts = [[pair] for pair in parts[0]]
        if any(use.step is None or use.through for part in parts for use, _ in part):
            self._add(constant, [constant.slot], parts[0][0][1])
            return
        paths = []
        for i, part in enumerate(parts):
            claim = part[0][1]
            path = claim.path
            if len(groups) == 1 and i:
                module = naming.path_of_node(part[0][0].name)
                path = f"{module}.{path.rsplit('.', 1)[-1]}" if module else f"{path}_{i + 1}"
            slot = constant.slot
            if i or any(c is None for _, c in claims):
                slot = len(self.compiled.graph.start) - 1
                self.compiled.graph.start.insert(slot, None)
                for use, _ in part:
                    assert use.step is not None
                    _redirect(use.step, use.place, slot)
            paths.append(self._add(constant, [slot], replace(claim, path=path)))
        if any(c is None for _, c in claims):
            self._constant(constant, "no place of a weight")
        self.plan.splits.append((constant.name, tuple(paths)))

    def _add(self, constant: Constant, slots: Iterable[int], claim: _Claim) -> str:
        """Enter a parameter, or tie it to one with the same path and values."""
        array, assemble = constant.array, None
        if claim.change == "T":
            array, assemble = array.T, transposed
        elif claim.change == "reshaped":
            array, assemble = array.reshape(-1), _Reshaped(constant.array.shape)
        path = claim.path
        order = _first(constant)
        held = self.plan.tensors.get(path)
        if held is not None:
            turned = _relation(held.array, constant.array)
            if turned is not None and self.ties == "auto":
                self.plan.ties.append((path, constant.name))
                held.names.append(constant.name)
                held.order = min(held.order, order)
                self._bind(slots, path, transposed if turned else None)
                self._note_alias(claim, path)
                return path
            path = self._free(path)
        self.plan.tensors[path] = Found(path, array, "parameter", [constant.name], claim.change, claim.reason, order)
        self._bind(slots, path, assemble)
        self._note_alias(claim, path)
        return path

    def _note_alias(self, claim: _Claim, path: str) -> None:
        module = claim.alias.rpartition(".")[0]
        if module and not path.startswith(f"{module}.") and self.ties == "auto":
            self.plan.aliases[claim.alias] = (path, claim.order)

    def _bind(self, slots: Iterable[int], path: str, assemble: Callable[..., Any] | None) -> None:
        self.plan.bindings += [Binding(slot, (path,), assemble) for slot in slots]

    def _free(self, path: str) -> str:
        """An unused path that begins with ``path``."""
        number = 2
        while f"{path}_{number}" in self.plan.tensors:
            number += 1
        return f"{path}_{number}"

    def _constant(self, constant: Constant, why: str) -> str:
        """Keep a constant: on the host if it is read there or small, else as a tensor of the model.

        Returns its path, which is empty on the host.
        """
        small = HOST_FLOATS if constant.is_float else HOST_INTEGERS
        anonymous = self._is_anonymous(constant)
        is_buffer = naming.role_of(constant.metadata) == "buffer"
        if constant.is_read or (
            constant.array.size <= small and (anonymous or not constant.is_float) and not is_buffer
        ):
            self.plan.host.append(constant)
            return ""
        path = f"constants.{constant.name}" if anonymous else constant.name
        role = "buffer" if is_buffer or (not anonymous and constant.is_float) else "constant"
        path = self._free(path) if path in self.plan.tensors else path
        order = _first(constant)
        self.plan.tensors[path] = Found(path, constant.array, role, [constant.name], "", why, order)
        self._bind([constant.slot], path, None)
        return path

    # ---- recurrent layers ----

    def _stack(self, constant: Constant) -> bool:
        """Enter the weights of PyTorch's recurrent layer that are stacked in a constant. Returns whether they are."""
        if len(constant.uses) != 1 or constant.uses[0].operator not in GATES or constant.uses[0].through:
            return False
        use = constant.uses[0]
        names = naming.called_parameters(use.metadata)
        role = ROLES[use.operator].get(use.place)
        if not names or role in (None, "weight_peephole") or use.step is None:
            return False
        if constant.array.ndim != (2 if role == "bias" else 3):
            return False
        layers = self.layers.setdefault(naming.call_of(use.metadata), [])
        if use.name not in layers:
            layers.append(use.name)
        directions, rows = constant.array.shape[0], len(GATES[use.operator])
        each = 4 if any("bias" in name for name in names) else 2
        first = layers.index(use.name) * directions * each
        own = names[first : first + directions * each]
        size = constant.array.shape[1] // (rows * (2 if role == "bias" else 1))
        if len(own) != directions * each or (role == "bias" and each != 4):
            return False
        scopes = naming.scopes_of(use.metadata)
        paths, arrays = [], []
        places = {"weight_ih": (0,), "weight_hh": (1,), "bias": (2, 3)}[str(role)]
        order = GATES[use.operator]
        for d in range(directions):
            for i, place in enumerate(places):
                block = constant.array[d][i * rows * size : (i + 1) * rows * size]
                ours = np.concatenate([block[order.index(g) * size :][:size] for g in range(rows)])
                paths.append(naming.path_of(own[d * each + place], scopes))
                arrays.append(ours)
        if any(path in self.plan.tensors for path in paths):
            return False
        if self.trainable is not None and not self._wanted(constant.name, *paths):
            return False
        for path, array in zip(paths, arrays, strict=True):
            self.plan.tensors[path] = Found(
                path, array, "parameter", [constant.name], "stacked", f"{role} of {use.operator}", _first(constant)
            )
        self.plan.bindings.append(Binding(constant.slot, tuple(paths), _Stack(order, size, directions)))
        return True

    # ---- ties ----

    def _tie(self) -> None:
        """Tie parameters that are equal up to transposition, unless an exporter noted both."""
        tensors = self.plan.tensors
        if self.ties == "auto" and self.is_ours:
            pairs = list[tuple[str, str]]()
        elif self.ties == "auto":
            noted = self.compiled.noted
            pairs = []
            near: dict[Any, list[Found]] = {}
            for found in tensors.values():
                if found.role != "parameter" or found.array.ndim != 2 or found.change == "stacked":
                    continue
                if found.array.size < 4 or _is_uniform(found.array):
                    continue
                # Transposing keeps the first and the last element.
                ends = found.array[0, 0].item(), found.array[-1, -1].item()
                others = near.setdefault((*sorted(found.array.shape), *ends), [])
                for other in others:
                    are_noted = naming.underlined(found.path) in noted and naming.underlined(other.path) in noted
                    if not are_noted and _relation(other.array, found.array) is not None:
                        pairs.append((other.path, found.path))
                        break
                else:
                    others.append(found)
        else:
            pairs = [] if self.ties == "none" else [self._pair(pair) for pair in self.ties]
        for first, second in pairs:
            if first not in tensors or second not in tensors:
                raise ArgumentError(f"load: ties={first!r}, {second!r}: no parameter. {hint_for(second, tensors)}")
            turned = _relation(tensors[first].array, tensors[second].array)
            if turned is None:
                raise ArgumentError(f"load: ties={first!r}, {second!r}: they have different values")
            for binding in self.plan.bindings:
                if binding.paths == (second,):
                    binding.paths = (first,)
                    is_turned = (binding.assemble is transposed) != turned
                    binding.assemble = transposed if is_turned else None
            self.plan.ties.append((first, second))
            tensors[first].names += tensors.pop(second).names
            self._follow(first, second)

    def _follow(self, first: str, second: str) -> None:
        """Replace the path ``second`` by ``first``, which it is tied to."""
        plan = self.plan
        plan.splits = [(name, tuple(first if p == second else p for p in paths)) for name, paths in plan.splits]
        plan.ties = [(first if path == second else path, name) for path, name in plan.ties]
        plan.aliases = {
            alias: (first if path == second else path, number) for alias, (path, number) in plan.aliases.items()
        }

    @staticmethod
    def _pair(pair: Any) -> tuple[str, str]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(p, str) for p in pair):
            raise ArgumentError(f"load: ties is 'auto', 'none' or pairs of paths, not {pair!r}")
        return pair[0], pair[1]


class _Reshaped:
    """Adds the axes of length 1 that a vector has in the file."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __call__(self, x: Any) -> Any:
        return shapes.reshape(x, self.shape)


class _Stack:
    """Stacks the weights of PyTorch's recurrent layer as in the file."""

    def __init__(self, order: tuple[int, ...], size: int, directions: int) -> None:
        self.order = order
        self.size = size
        self.directions = directions

    def __call__(self, *weights: Any) -> Any:
        each = len(weights) // self.directions
        rows = []
        for d in range(self.directions):
            blocks = [
                weight[i * self.size : (i + 1) * self.size]
                for weight in weights[d * each : (d + 1) * each]
                for i in self.order
            ]
            rows.append(shapes.concat(blocks, axis=0) if len(blocks) > 1 else blocks[0])
        return shapes.stack(rows, axis=0)


def _redirect(step: Step, place: int, slot: int) -> None:
    step.inputs = (*step.inputs[:place], slot, *step.inputs[place + 1 :])


def _first(constant: Constant) -> float:
    """The position of the first read of a constant."""
    return min((use.order + use.place / 100 for use in constant.uses), default=0.0)


def _is_one_axis(array: NDArray[Any]) -> bool:
    """Whether at most one axis has a length other than 1."""
    return sum(n != 1 for n in array.shape) <= 1


def _is_uniform(array: NDArray[Any]) -> bool:
    """Whether all elements of an array are equal."""
    if array.size == 0:
        return True
    first = array[(0,) * array.ndim]
    return bool(array[(-1,) * array.ndim] == first and (array == first).all())


def _relation(x: NDArray[Any], y: NDArray[Any]) -> bool | None:
    """False if two arrays are equal, True if one is the other transposed, None if neither."""
    if x.dtype != y.dtype:
        return None
    if x.shape == y.shape and _same(x, y):
        return False
    if x.ndim == 2 and x.shape == y.shape[::-1] and _same(x, y.T):
        return True
    return None


def _same(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether two arrays are equal; the first row is compared first, since most differ there."""
    return bool(np.array_equal(x[:1], y[:1]) and np.array_equal(x, y))


def segments(path: str, taken: Callable[[str], bool]) -> tuple[str, ...]:
    """The attributes on the way to a path, with an underscore after names that a module uses."""
    return tuple(f"{part}_" if taken(part) else part for part in path.split(".") if part) or ("tensor",)
