"""The names of parameters in the metadata that exporters write.

PyTorch's exporter notes at each node the call in its own graph, in which parameters are called ``p_`` and their path
with underscores for dots, and the paths of the enclosing modules. So the path of a weight is known even if it was
merged with an equal one, transposed or stacked. Its older exporter, and others, put modules into the names of nodes:
``/encoder/linear1/MatMul``.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping

#: Names that exporters give to constants and to weights that they have transposed.
_EXPORTERS = re.compile(
    r"(val|v|_v|const|constant|permute|transpose|t|node|arg|tensor|init|initializer)s?_?\d*(_\d+)*|\d+|onnx::\w+",
    re.IGNORECASE,
)
#: Words that such names contain.
_WORDS = re.compile("Constant|const_fold|_output_", re.IGNORECASE)
#: The longest name that is considered an exporter's.
_LONGEST = 500
#: Notes in backburn's files: at a node the path of its module, and a mark that no gradient passes through it; at a
#: tensor its role and its other paths.
LAYER, STOP, ROLE, ALIASES = "backburn.layer", "backburn.stop_gradient", "backburn.role", "backburn.paths"
_CALL = "pkg.torch.onnx.fx_node"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_SCOPES = "pkg.torch.onnx.name_scopes"
_ARGUMENT = re.compile(r"%(p_\w+)")
_BODY = re.compile(r"%arg\d+_\d+")
_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")
_BUFFER = re.compile(r"%(b_\w+)")


def is_exporters(name: str) -> bool:
    """Whether an exporter invented a name.

    >>> is_exporters("val_72"), is_exporters("onnx::MatMul_14"), is_exporters("encoder.weight")
    (True, True, False)
    """
    return len(name) <= _LONGEST and (_EXPORTERS.fullmatch(name) or _WORDS.search(name)) is not None


def underlined(path: str) -> str:
    """A path as PyTorch's exporter writes it in calls.

    >>> underlined("encoder.0.weight")
    'encoder_0_weight'
    """
    return re.sub(r"\W", "_", path)


def called_parameters(metadata: Mapping[str, str]) -> list[str] | None:
    """The parameters among the operands of a node's call, without ``p_``; None if no call is noted.

    Also None in the body of a loop, where operands have the names of the body's inputs.
    """
    call = metadata.get(_CALL)
    if call is None or _BODY.search(call):
        return None
    return [name[2:] for name in _ARGUMENT.findall(call)]


def role_of(metadata: Mapping[str, str]) -> str:
    """The role of a tensor in a file of backburn, ``"parameter"`` or ``"buffer"``; empty if none is noted."""
    role = metadata.get(ROLE, "")
    return role if role in ("parameter", "buffer") else ""


def aliases_of(metadata: Mapping[str, str]) -> list[str]:
    """The other paths of a tensor in a file of backburn."""
    return _names(metadata.get(ALIASES, "[]"))


def called_buffers(metadata: Mapping[str, str]) -> list[str]:
    """The buffers among the operands of a node's call, without ``b_``."""
    return [name[2:] for name in _BUFFER.findall(metadata.get(_CALL, ""))]


def call_of(metadata: Mapping[str, str]) -> str:
    """The call that wrote a node; several nodes may share one."""
    return metadata.get(_CALL, "")


def target_of(metadata: Mapping[str, str]) -> str:
    """The function of PyTorch that a node comes from, such as ``aten.linear.default``; empty if none is noted."""
    found = _TARGET.search(metadata.get(_CALL, ""))
    return found[1] if found else ""


def scopes_of(metadata: Mapping[str, str]) -> list[str]:
    """The paths of the modules enclosing a node, the innermost last."""
    return [name for name in _names(metadata.get(_SCOPES, "[]"))[:-1] if name]


def module_of(metadata: Mapping[str, str]) -> str:
    """The path of the module that a node comes from, if it is one of ``torch.nn``; else empty."""
    scopes, classes = _names(metadata.get(_SCOPES, "[]")), _names(metadata.get(_CLASSES, "[]"))
    is_own = len(scopes) == len(classes) >= 2 and classes[-2].startswith("torch.nn.modules.")
    return scopes[-2] if is_own else ""


def _names(text: str) -> list[str]:
    try:
        with warnings.catch_warnings():  # Python warns of odd literals
            warnings.simplefilter("ignore")
            found = ast.literal_eval(text[:10_000])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, (list, tuple)) else []


def path_of(underlined_path: str, scopes: Iterable[str]) -> str:
    """A path from one with underscores for dots, by the innermost enclosing module that it begins with.

    >>> path_of("encoder_self_attn_in_proj_weight", ["encoder", "encoder.self_attn", "linear"])
    'encoder.self_attn.in_proj_weight'
    """
    best = ""
    for scope in scopes:
        if underlined_path.startswith(f"{underlined(scope)}_") and len(scope) > len(best):
            best = scope
    rest = underlined_path[len(best) + 1 :] if best else underlined_path
    return f"{best}.{rest}" if best else rest


def path_of_node(name: str) -> str:
    """The path of the module in the node names of other exporters; empty if there is none.

    >>> path_of_node("/encoder/layers.0/linear1/MatMul"), path_of_node("MatMul_3")
    ('encoder.layers.0.linear1', '')
    """
    parts = [part for part in name.split("/")[:-1] if part]
    if not name.startswith("/") or not parts:
        return ""
    path: list[str] = []
    for part in parts:
        pieces = part.split(".")
        # `/layers/layers.0/fc` repeats the path of the container in the name of its part.
        path = [*path[:-1], *pieces] if path and len(pieces) > 1 and pieces[0] == path[-1] else [*path, *pieces]
    return ".".join(path)
