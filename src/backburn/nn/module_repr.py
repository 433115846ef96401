"""The string representation of modules: a tree, with shapes of tensors and numbers of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, cast

from backburn.backend.contract import is_autodiff
from backburn.base.trees import NODE_TYPES, joined
from backburn.tensor.core.wrapping import is_tensor

_SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}


def short_type(x: Any) -> str:
    """A tensor's dtype and shape, as ``f32[64,128]``.

    >>> import backburn as bb
    >>> short_type(bb.asarray([[1, 2, 3]], dtype="uint8"))
    'u8[1,3]'
    """
    name = x.dtype.name
    letters = name.rstrip("0123456789")
    return f"{_SHORT.get(letters, letters)}{name[len(letters) :]}[{','.join(map(str, x.shape))}]"


def module_repr(module: Any, roles: Mapping[str, str]) -> str:
    """One line for each module, container and tensor; ``roles`` describes tensors that are not parameters, by path."""
    lines: list[str] = []
    first_paths: dict[int, str] = {}

    def visit(value: Any, name: str, path: str, depth: int) -> int:
        """Describe ``value`` and its parts; return the number of parameters."""
        start = "  " * depth + (f"{name}: " if name else "")
        kind = None if value is None else NODE_TYPES[value.__class__]
        known = first_paths.setdefault(id(value), path)
        if known != path and (is_tensor(value) or kind is not None):
            lines.append(f"{start}the same as {known or 'the whole'}")
            return 0
        if is_tensor(value):
            lines.append(f"{start}{short_type(value)}{_role(value, roles.get(path))}")
            return 0 if path in roles else int(cast("Any", value).size)
        if kind is None:
            lines.append(f"{start}{value!r}")
            return 0
        line = len(lines)
        lines.append("")
        children, keys, rest = kind.flatten(value)
        parts = zip(keys, children, strict=True)
        count = sum(visit(child, str(key), joined(path, key), depth + 1) for key, child in parts)
        counted = f"  # {count:,} parameter{'s' if count != 1 else ''}" if count else ""
        lines[line] = f"{start}{type(value).__name__}{_options(rest)}{counted}"
        return count

    visit(module, "", "", 0)
    return "\n".join(lines)


def _role(x: Any, role: str | None) -> str:
    if role is not None:
        return f" {role}"
    return " frozen" if is_autodiff(x.backend) and not x.is_require_grad else ""


def _options(rest: Any) -> str:
    """A module's plain attributes, in the form of arguments of its constructor."""
    attributes = rest[1] if isinstance(rest, tuple) and len(rest) == 2 and isinstance(rest[1], dict) else {}
    shown = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, (bool, int, float, str, tuple)) and name != "training" and not name.startswith("_")
    }
    return f"({', '.join(f'{name}={value!r}' for name, value in shown.items())})" if shown else ""


#: The maximum number of lines shown in a notebook.
LONGEST_HTML = 1000


def repr_html(text: str) -> str:
    """The text of :func:`module_repr` as HTML for notebooks: a collapsible tree with the first two levels open.

    >>> repr_html("ReLU")
    '<div style="font-family: monospace; line-height: 1.4"><div>ReLU</div></div>'
    """
    lines = text.split("\n")
    more = len(lines) - LONGEST_HTML
    parts = ['<div style="font-family: monospace; line-height: 1.4">']
    depths: list[int] = []
    for line in lines[:LONGEST_HTML]:  # lines of another object's repr may be indented further
        depths.append(min((len(line) - len(line.lstrip(" "))) // 2, depths[-1] + 1 if depths else 0))
    depths.append(0)
    for line, depth, following in zip(lines[:LONGEST_HTML], depths, depths[1:], strict=False):
        indent = ' style="margin-left: 1.5em"' if depth else ""
        words = escape(line.strip())
        if following > depth:
            parts.append(f"<details{indent}{' open' if depth < 2 else ''}><summary>{words}</summary>")
        else:
            parts.append(f"<div{indent}>{words}</div>" + "</details>" * (depth - following))
    if more > 0:
        parts.append(f"<div>and {more:,} more</div>")
    return "".join([*parts, "</div>"])
