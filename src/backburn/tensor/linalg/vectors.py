"""Trees of tensors as one vector; public in :mod:`backburn.trees`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

from backburn.base.errors import ArgumentError, ShapeError
from backburn.base.trees import flatten, unflatten
from backburn.tensor.classes import FloatTensor
from backburn.tensor.core.dispatch import call, cast, float_operand
from backburn.tensor.core.messages import describe
from backburn.tensor.shape import concat

T = TypeVar("T")


def ravel(tree: T) -> tuple[FloatTensor, Callable[[FloatTensor], T]]:
    """The elements of all float tensors of a tree as one vector, and a function that restores the tree from it.

    The tensors come in the order of :func:`flatten`, each in row-major order, in their promoted dtype. The function
    takes a vector of the same length, and gives each tensor its shape and dtype back; all other leaves are those of
    ``tree``. Gradients flow both ways. Algorithms for vectors, such as a Hessian matrix or SciPy's optimizers, thus
    apply to models. Raises :class:`ArgumentError` for a tree without float tensors, and :class:`BackendMismatchError`
    for tensors on several backends; the function raises :class:`ShapeError` for a vector of another length.

        >>> import backburn as bb
        >>> vector, unravel = bb.trees.ravel({"w": bb.asarray([[1.0, 2.0]]), "b": bb.asarray(3.0), "n": 7})
        >>> vector.tolist(), unravel(2.0 * vector)["w"].tolist(), unravel(vector)["n"]
        ([1.0, 2.0, 3.0], [[2.0, 4.0]], 7)
    """
    leaves, structure = flatten(tree)
    places = [i for i, x in enumerate(leaves) if isinstance(x, FloatTensor)]
    if not places:
        raise ArgumentError(f"ravel: there is no float tensor in the tree, a {type(tree).__name__}")
    tensors: list[Any] = [leaves[i] for i in places]
    stops = list(accumulate(x.size for x in tensors))

    def unravel(vector: FloatTensor) -> T:
        """The tree with the elements of a vector."""
        given: Any = float_operand("unravel", vector)
        if given.shape != (stops[-1],):
            raise ShapeError(f"unravel: takes a vector of {stops[-1]} elements, not {describe((given,))}")
        found = list(leaves)
        for i, x, stop in zip(places, tensors, stops, strict=True):
            part = call("slice", given, key=(slice(stop - x.size, stop, 1),))
            found[i] = cast(call("reshape", part, shape=x.shape), x.dtype)
        return unflatten(structure, found)

    vector: Any = concat([call("reshape", x, shape=(x.size,)) for x in tensors])
    return vector, unravel
