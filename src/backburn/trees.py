"""Trees: nested containers of tensors, such as models, parameters and batches.

Lists, tuples, named tuples, dicts, dataclasses and modules are nodes, and None is a node without children. Fields of
dataclasses declared ``field(metadata={"static": True})``, and attributes that are not fields, are kept unchanged and
are not children. Register your own classes with :func:`register_node`.

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
