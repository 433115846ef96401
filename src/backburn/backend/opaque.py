"""``Opaque``: the base class of primitives that only their backend computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from backburn.base.errors import DTypeError
from backburn.ops.table import OPERATIONS

#: The operations behind Python's operators, by the names of their methods; ``r`` before a name swaps the operands.
OPERATORS = {
    "add": ("x + y", "add"), "sub": ("x - y", "sub"), "mul": ("x * y", "mul"), "truediv": ("x / y", "div"),
    "floordiv": ("x // y", "floor_divide"), "mod": ("x % y", "remainder"), "pow": ("x ** y", "pow"),
    "matmul": ("x @ y", "matmul"), "and": ("x & y", "logical_and"), "or": ("x | y", "logical_or"),
    "xor": ("x ^ y", "logical_xor"), "lt": ("x < y", "less"), "le": ("x <= y", "less_equal"),
    "gt": ("x > y", "greater"), "ge": ("x >= y", "greater_equal"), "eq": ("x == y", "equal"),
    "ne": ("x != y", "not_equal"), "neg": ("-x", "neg"), "abs": ("abs(x)", "abs"), "invert": ("~x", "logical_not"),
}  # fmt: skip
_UNARY = ("neg", "abs", "invert")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
#: NumPy's names of functions, with the names of the operations.
_NUMPYS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs",
    "power": "pow", "reshape": "reshape", "transpose": "permute_dims", "concatenate": "concat",
}  # fmt: skip
_WHERE = "primitives have only the operations of their backend k, the first parameter of an operation's body: write "


class Opaque:
    """A primitive whose operators, methods and NumPy functions raise errors that name the operation to call.

    Otherwise such a primitive would be true, equal only to itself, and an object array for NumPy.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise _error("the truth of a primitive", "k.where(x, y, z) to choose by the elements of x")

    def __getitem__(self, key: object) -> NoReturn:
        raise _error("x[...]", "k.slice, k.select, k.take or k.take_along_axis")

    def __len__(self) -> NoReturn:
        raise _error("len(x)", "x.shape[0]")

    def __iter__(self) -> NoReturn:
        raise _error("iteration over a primitive", "k.select(x, 0, i) for each i in range(x.shape[0])")

    def __float__(self) -> NoReturn:
        raise _error("a Python number of a primitive", "operations of k, or k.to_numpy(x) where no gradient is needed")

    __int__ = __index__ = __float__

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _error("np.asarray(x)", "operations of k, or k.to_numpy(x) where no gradient is needed")

    def __array_ufunc__(self, function: Any, method: str, *_: Any, **__: Any) -> NoReturn:
        reduced = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
        name: str = function.__name__
        ours: str = reduced.get(name, name) if method == "reduce" else _NUMPYS.get(name, name)
        raise _error(f"np.{name}{'' if method == '__call__' else '.' + method}", _call(ours))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        name: str = function.__name__
        raise _error(f"np.{name}", _call(_NUMPYS.get(name, name)))


class _Operation:
    """A descriptor for a missing attribute with an operation's name. A ``__getattr__`` would slow all attributes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, primitive: Any, owner: type) -> NoReturn:
        words = f"{owner.__name__!r} object has no attribute {self.name!r}; here: {_call(self.name)}, of the backend k"
        raise AttributeError(words, name=self.name, obj=primitive)


def _call(name: str) -> str:
    """The call of an operation, as a hint; a general one for an unknown name."""
    entry = OPERATIONS.get(name)
    return f"operations of k, as k.{name}" if entry is None else f"k.{name}({', '.join(entry.operands)})"


def _error(what: str, instead: str) -> DTypeError:
    return DTypeError(f"{what}: {_WHERE}{instead}")


def _refusing(shown: str, operation: str) -> Callable[..., NoReturn]:
    call = f"k.{operation}(x)" if "y" not in shown else f"k.{operation}(x, y)"

    def operator(self: Opaque, *_: object) -> NoReturn:
        raise _error(shown, call)

    return operator


for _name in OPERATIONS:
    setattr(Opaque, _name, _Operation(_name))
for _name, (_shown, _operation) in OPERATORS.items():
    for _method in {_name, _name if _name in (*_UNARY, *_COMPARISONS) else f"r{_name}"}:
        setattr(Opaque, f"__{_method}__", _refusing(_shown, _operation))
