"""Chat templates of folders, rendered by jinja2 within a bound on steps and on sizes.

A template is a program by whoever made the folder. jinja2's sandbox keeps it from objects and files, but not from
nested loops, from ``'a' * 3000000000`` and from nested lists that double at each step. Here every iteration of a loop,
call, filter, test, comparison and operator consumes steps of a budget, more for larger operands, and no value exceeds
:data:`LARGEST`: a size that could exceed the operands' is computed before the value.

The input is not bounded: messages of any length are read, and the limits on steps and sizes grow with them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar, NoReturn

#: The steps that a template may take, and how many more for each 64 characters of its input.
STEPS, STEPS_GIVEN = 300_000, 100
#: The largest value in characters and elements, plus four times the size of the input.
LARGEST, _TIMES_GIVEN = 1_000_000, 4
#: The longest template in characters; published ones have some thousands.
LONGEST_TEMPLATE = 50_000
#: The largest width, precision or count, the most spaces of JSON, and the most bits of a number.
_WIDEST, _MOST_SPACES, _MOST_BITS = 10_000, 16, 20_000
#: Filters and methods that take widths and counts, and names that are never called.
_WIDE = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "truncate", "wordwrap", "zfill"}
)
_NEVER = frozenset({"decode", "encode", "format_map", "from_bytes", "maketrans", "to_bytes", "translate"})
#: Methods whose time is the product of the lengths of a text and of their argument.
_PRODUCTS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})
#: Functions that look at a list or a table, but not into its elements.
_SHALLOW = frozenset(
    {"attr", "boolean", "callable", "count", "d", "default", "defined", "false", "first", "get", "items", "iterable",
     "keys", "last", "length", "list", "map", "mapping", "none", "number", "reject", "rejectattr", "reverse", "sameas",
     "select", "selectattr", "sequence", "true", "undefined", "values"}
)  # fmt: skip
_LONGEST_FORM = 200
_WIDE_FORMAT = re.compile(r"\d{5}|\*|\{[^{}]*\{")
#: The filters that templates may use; the others of jinja2 are for HTML, or random.
_FILTERS = frozenset(
    {"abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first",
     "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower",
     "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr",
     "slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount",
     "wordwrap"}
)  # fmt: skip


def rendered(source: str, messages: Sequence[Mapping[str, Any]], generate: bool, names: Mapping[str, str]) -> str:
    """The text of a template for messages. Raises what jinja2 and the template raise, and ValueError beyond bounds."""
    if len(source) > LONGEST_TEMPLATE:
        raise ValueError(f"it has {len(source)} characters; at most {LONGEST_TEMPLATE} are read")
    given = [*map(dict, messages)]
    budget = _Budget(given)
    template = _environment(budget).from_string(source)
    parts, size = [], 0
    for part in template.generate(messages=given, tools=None, documents=None, add_generation_prompt=generate, **names):
        size += len(part)
        budget.check(size)
        parts.append(part)
    return "".join(parts)


class _Budget:
    """The remaining steps, and the largest value."""

    def __init__(self, given: Any) -> None:
        self.left = self.largest = 1 << 62
        #: The sizes of lists and tables, which a template cannot change, so that each is counted once.
        self._known: dict[int, tuple[Any, int]] = {}
        size = self.size(given)
        self.left = STEPS + STEPS_GIVEN * (size // 64 + 1)
        self.largest = LARGEST + _TIMES_GIVEN * size

    def take(self, steps: int = 1) -> None:
        """Consume steps."""
        self.left -= steps
        if self.left < 0:
            raise ValueError("it takes too many steps")

    def check(self, size: int) -> None:
        """Refuse a value of this size if it is too large."""
        if size > self.largest:
            raise ValueError(f"it makes a value of {size} characters and elements; {self.largest} are allowed")

    def size(self, value: Any) -> int:
        """The characters and elements of a value; what is in it twice counts twice."""
        if isinstance(value, (str, bytes)):
            return len(value) + 1
        if isinstance(value, int):
            return value.bit_length() // 8 + 1
        if not isinstance(value, (list, tuple, Mapping)):
            return 1
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        self.take(4 + len(value))
        size = sum(map(self.size, value)) + 1
        if isinstance(value, Mapping):
            size += sum(map(self.size, value.values()))
        self.check(size)
        self._known[id(value)] = (value, size)
        return size

    def weighed(self, value: Any) -> Any:
        """A new value: its size is checked, and consumes steps."""
        self.check(self.size(value))
        self.take((len(value) if isinstance(value, (str, bytes, list, tuple, Mapping)) else 0) // 64 + 1)
        return value

    def compared(self, value: Any) -> Any:
        """An operand of a comparison, which may look at all its elements."""
        self.take(self.size(value) // 64 + 1)
        return value

    def counted(self, values: Any) -> Iterator[Any]:
        """The values of a loop, each a step."""
        for value in values:
            self.take()
            yield value

    def joined(self, values: Any) -> str:
        """The values as one text."""
        parts = [str(self.weighed(value)) for value in values]
        self.check(sum(map(len, parts)))
        return "".join(parts)


def _environment(budget: _Budget) -> Any:
    """The sandbox in which every step is counted."""
    jinja2, sandbox, nodes = (import_module(name) for name in ("jinja2", "jinja2.sandbox", "jinja2.nodes"))
    utils, extensions, visitors = (import_module(f"jinja2.{name}") for name in ("utils", "ext", "visitor"))

    class Generation(extensions.Extension):  # type: ignore[misc, name-defined]
        """The block that marks an assistant's text for training: rendered like the rest."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(utils.Namespace):  # type: ignore[misc, name-defined]
        """The namespace of templates, with a short text: nested namespaces would double it."""

        def __repr__(self) -> str:
            return "<namespace>"

    def call(name: str, *arguments: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), [*arguments], [], None, None)

    class Counted(visitors.NodeTransformer):  # type: ignore[misc, name-defined]
        """Wraps loops, comparisons, and values created without a call, filter or operator in calls of ours."""

        def visit(self, node: Any, *values: Any, **options: Any) -> Any:
            node = self.generic_visit(node)
            if isinstance(node, nodes.For):
                node.iter = call("count_loop", node.iter)
            elif isinstance(node, nodes.Compare):
                for part in (node, *node.ops):
                    part.expr = call("weigh_whole", part.expr)
            elif isinstance(node, nodes.Concat):
                return call("join_texts", nodes.List(node.nodes))
            is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
            is_literal = isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict)) and vars(node).get("ctx") != "store"
            return call("weigh", node) if is_slice or is_literal else node

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
        """The sandbox."""

        intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
        count_loop = staticmethod(budget.counted)
        weigh = staticmethod(budget.weighed)
        weigh_whole = staticmethod(budget.compared)
        concat = join_texts = staticmethod(budget.joined)

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            return Counted().visit(super()._parse(source, name, filename))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(budget, operator, left, right)
            return budget.weighed(super().call_binop(context, operator, left, right))

        def call(self, context: Any, function: Any, /, *values: Any, **options: Any) -> Any:
            if any(function is own for own in (self.count_loop, self.weigh, self.weigh_whole, self.join_texts)):
                return function(*values)
            owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # the sandbox wraps format
            is_value = isinstance(owner, (str, bytes, list, tuple, Mapping, int))
            _check_call(budget, getattr(function, "__name__", ""), owner if is_value else None, values, options)
            return budget.weighed(super().call(context, function, *values, **options))

    # the optimizer would recompute a filter of a chain for each later one
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"],
        finalize=budget.weighed, cache_size=0, optimized=False,
    )  # fmt: skip

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(str(message)[:1000])

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        spaces = len(indent) if isinstance(indent, str) else indent or 0
        if spaces > _MOST_SPACES:
            raise ValueError(f"tojson is given an indent of {spaces}; {_MOST_SPACES} are allowed")
        budget.check(budget.size(value) * (1 + sum(map(len, separators or ()))))
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )  # part by part, as each line of a deep tree has many spaces
        return budget.joined(budget.counted(encoder.iterencode(value)))

    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    environment.globals.update(namespace=Namespace, raise_exception=refuse, strftime_now=_now)
    environment.filters = {name: x for name, x in environment.filters.items() if name in _FILTERS}
    environment.filters["tojson"] = as_json
    for table in (environment.filters, environment.tests):
        for name, made in table.items():
            table[name] = _counted(budget, name, made)
    return environment


def _now(form: str) -> str:
    """The current time; a width in a format could make it as long as the largest value."""
    if len(form) > _LONGEST_FORM or re.search(r"\d{4}", form):
        raise ValueError(f"the format of a time has {len(form)} characters or a width of four digits")
    return datetime.now().strftime(form)


def _counted(budget: _Budget, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test whose operands and result are counted."""
    first = 1 if hasattr(made, "jinja_pass_arg") else 0

    @functools.wraps(made)
    def counted(*values: Any, **options: Any) -> Any:
        operands = tuple([_listed(budget, x) for x in values[first:]])
        _check_call(budget, name, operands[0] if operands else None, operands[1:], options)
        return budget.weighed(_listed(budget, made(*values[:first], *operands, **options)))

    return counted


def _listed(budget: _Budget, value: Any) -> Any:
    """A value; those of a lazy filter as a list."""
    return list(budget.counted(value)) if hasattr(value, "__next__") else value


def _check_call(budget: _Budget, name: str, owner: Any, values: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse a method or filter of ``owner`` whose result would be too large; what it iterates over consumes steps."""
    given = [*values, *options.values()]
    size = budget.size(owner) + sum(map(budget.size, given))
    is_shallow = name in _SHALLOW and not isinstance(owner, (str, bytes))
    budget.take((len(owner) if is_shallow and hasattr(owner, "__len__") else size) // 64 + 1)
    if name in _NEVER:
        raise ValueError(f"{name} is not available")
    widths = [abs(x) for x in given if isinstance(x, int)]
    if name in _WIDE and max(widths, default=0) > _WIDEST:
        raise ValueError(f"{name} is given a number above {_WIDEST}")
    lengths = [len(x) for x in given if isinstance(x, (str, list, tuple, Mapping))]
    if name in _PRODUCTS:
        budget.take(size * max(lengths, default=0) // 1024)
    if name == "format":
        _check_format(budget, owner, size)
    elif name == "replace" and len(given) > 1:
        text, old, new = str(owner), str(given[0]), str(given[1])
        budget.check(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    elif name == "join":
        budget.check(size + (len(owner) if hasattr(owner, "__len__") else 0) * max(lengths, default=0))
    elif name in ("indent", "expandtabs", "wordwrap"):
        text = str(owner)
        count = len(text) if name == "wordwrap" else text.count("\n") + text.count("\t") + 1
        sizes: list[int] = [*lengths, *([] if name == "wordwrap" else widths)]
        budget.check(size + count * max(sizes, default=8))
    elif name == "sum" and lengths and not isinstance(given[-1], str):
        raise ValueError("sum adds numbers")
    elif name == "batch":
        budget.check(size + max(widths, default=0))


def _check_format(budget: _Budget, text: Any, size: int) -> None:
    """Refuse a format with large widths, or whose result would be too large."""
    if _WIDE_FORMAT.search(str(text)):
        raise ValueError("a format has a width of five digits, or one from an argument")
    budget.check(size * (str(text).count("{") + str(text).count("%") + 1))


def _check_operands(budget: _Budget, operator: str, left: Any, right: Any) -> None:
    """Refuse operands of an operator whose result would be too large."""
    sizes = budget.size(left), budget.size(right)
    budget.take(sum(sizes) // 64 + 1)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        need = bits[0] * min(abs(right), _MOST_BITS) if operator == "**" and abs(left) > 1 else sum(bits)
        if need > _MOST_BITS:
            raise ValueError(f"{operator} of numbers makes one of {need} bits")
    elif operator == "%" and isinstance(left, (str, bytes)):
        _check_format(budget, left, sum(sizes))
    elif operator == "*" and isinstance(left, int):
        budget.check(sizes[1] * max(left, 1))
    elif operator == "*" and isinstance(right, int):
        budget.check(sizes[0] * max(right, 1))
    else:
        budget.check(sum(sizes))
