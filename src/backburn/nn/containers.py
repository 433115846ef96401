"""Containers of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from typing_extensions import TypeVar

from backburn.base.errors import ArgumentError, DTypeError, OutOfRangeError
from backburn.base.trees import NodeType, Parts, add_node_type
from backburn.nn.module import Module, attribute_parts, module_from_parts
from backburn.tensor.classes import FloatTensor

R = TypeVar("R", covariant=True, default=FloatTensor)


class ModuleList(Module):
    """A list of modules; their parameters have the paths ``"0.weight"``, ``"1.weight"``, ...

    A plain Python list in an attribute works as well. Raises :class:`ArgumentError` for anything but a module.

    >>> from backburn.nn import Linear
    >>> layers = ModuleList([Linear(2, 3), Linear(3, 1)])
    >>> len(layers), [path for path, tensor in layers.named_parameters()]
    (2, ['0.weight', '0.bias', '1.weight', '1.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._items: list[Module] = []
        if not isinstance(modules, Iterable):
            raise ArgumentError(f"{type(self).__name__}: takes a list of modules, not {modules!r}")
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add ``module`` at the end."""
        self._items.append(self._checked(module))

    def __setitem__(self, index: int, module: Module) -> None:
        """Replace a module, as in ``model[-1] = Linear(8, 2)``."""
        given: object = index
        if isinstance(given, slice):
            raise DTypeError(f"{type(self).__name__}: takes the index of one module, not {given!r}")
        checked, _ = self._checked(module), self[index]
        self._items[index] = checked

    def _checked(self, module: Module) -> Module:
        if not isinstance(module, Module):
            what, hint = repr(module), "wrap a function f in nn.Function(f)"
            if isinstance(module, type):
                hint = f"write {module.__name__}(...)"
            elif isinstance(module, (list, tuple)):
                what, hint = f"a {type(module).__name__}", "write Sequential(*modules)"
            elif isinstance(module, Mapping):
                what = f"a {type(module).__name__}"
                hint = "modules are numbered here: write Sequential(*modules.values())"
            raise ArgumentError(f"{type(self).__name__}: holds modules, not {what}; {hint}")
        return module

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module:
        """One module, or for a slice a list of the same modules."""
        if isinstance(index, slice):
            return self._row(self._items[index])
        try:
            return self._items[index]
        except IndexError:
            raise OutOfRangeError(f"{type(self).__name__}: no module {index} among {len(self)}") from None
        except TypeError:
            what = f"takes the index of a module or a slice, not {index!r}"
            raise DTypeError(f"{type(self).__name__}: {what}") from None

    def _row(self, modules: list[Module]) -> ModuleList:
        return ModuleList(modules)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items)


class _Last(Protocol[R]):
    """The last module of a :class:`Sequential`, whose result is that of the whole."""

    def forward(self, x: Any, /) -> R: ...


class Sequential(ModuleList, Generic[R]):
    """Modules applied one after the other: each gets the result of the one before.

    For type checkers, a call returns what the last module returns: ``T`` for ``Sequential[T]``, a float tensor for
    plain ``Sequential``. A slice, ``model[:2]``, is a ``Sequential`` of the same modules.

    >>> import backburn as bb
    >>> from backburn.nn import Flatten, Linear, ReLU
    >>> model = Sequential(Flatten(), Linear(4, 2), ReLU())
    >>> model(bb.asarray([[[1.0, 2.0], [3.0, 4.0]]])).shape
    (1, 2)
    """

    @overload
    def __init__(self, *modules: *tuple[*tuple[Module, ...], _Last[R]]) -> None: ...
    @overload
    def __init__(self: Sequential[Any], *modules: Module) -> None: ...
    def __init__(self, *modules: Any) -> None:  # type: ignore[misc]  # it accepts both overloads
        super().__init__(modules)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> Module: ...
        @overload
        def __getitem__(self, index: slice) -> Sequential[Any]: ...
        def __getitem__(self, index: int | slice) -> Module: ...

    def _row(self, modules: list[Module]) -> Sequential[Any]:
        return Sequential(*modules)

    def forward(self, x: Any) -> R:
        """The result of the last module; ``x`` itself if there are no modules."""
        for module in self._items:
            x = module(x)
        return x


class Function(Module):
    """A function as a module without parameters, for :class:`Sequential`.

    >>> Function(abs)(-3)
    3
    """

    def __init__(self, function: Any) -> None:
        if not callable(function):
            raise ArgumentError(f"Function: takes a function, not {function!r}")
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function."""
        return self.function(*args, **kwargs)


def _parts(module: ModuleList) -> Parts:
    children, keys, rest = attribute_parts(module, skip="_items")
    return [*module._items, *children], [*range(len(module._items)), *keys], rest


def _from_parts(children: Sequence[Any], keys: Sequence[Any], rest: Any) -> Module:
    numbered = sum(isinstance(key, int) for key in keys)
    made = module_from_parts(children[numbered:], keys[numbered:], rest)
    vars(made)["_items"] = list(children[:numbered])
    return made


def _put(module: ModuleList, key: Any, child: Any) -> None:
    if isinstance(key, int):
        module._items[key] = child
    else:
        vars(module)[key] = child


add_node_type(
    ModuleList,
    NodeType(_parts, _from_parts, _put, shares=True, containers=lambda module: (module._items, vars(module))),
)
