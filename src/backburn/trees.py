"""Trees: nested containers whose leaves are tensors, as models, parameters and batches are.

Lists, tuples, named tuples, dicts, dataclasses and modules are nodes, and None is a node without children. A field of a
dataclass that is declared ``field(metadata={"static": True})`` is kept as it is, and is not a child; so is an
attribute that is not a field. Your own classes become nodes by :func:`register_node`.

    >>> from backburn import trees
    >>> trees.tree_map(lambda x: 2 * x, {"w": [1.0, 2.0], "b": None})
    {'w': [2.0, 4.0], 'b': None}
"""

from typing import TYPE_CHECKING

from backburn.base.trees import Structure, flatten, leaves_with_paths, register_node, tree_map, unflatten
from backburn.hints import lookups
from backburn.tensor.linalg.vectors import ravel

__all__ = ["Structure", "flatten", "leaves_with_paths", "ravel", "register_node", "tree_map", "unflatten"]

if not TYPE_CHECKING:
    __dir__, __getattr__ = lookups("backburn.trees", __all__)
