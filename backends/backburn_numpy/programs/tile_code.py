"""The code of passes over the rows of matrices: kernels and loops, called on tiles of rows that stay in cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backburn.base.dtypes import DType, bfloat16, float16, float32, float64, int64
from backburn.ops.table import OPERATIONS
from backburn.programs.fusion.plan import ALONG_ROWS, MAX_TERMS, Extent, Operand, Plan, Repeat
from backburn.programs.fusion.plan import Step as PlanStep
from backburn.programs.ir import Call, Variable, arguments, listed
from backburn.programs.lowering import UNTRACEABLE, Value
from backburn.programs.lowering import Call as KernelCall
from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.elementwise.fused import DOWNCASTS, UPCASTS, FormulaTrace, joined_calls, needed_calls
from backburn_numpy.machine_code import loops
from backburn_numpy.machine_code import memory as machine_code
from backburn_numpy.machine_code.loops import LINE
from backburn_numpy.programs import row_loops, tiles_verifier, verifier
from backburn_numpy.programs.effects import ARRAYS_ALONG_ROWS
from backburn_numpy.programs.tile_loops import Joined, Pass, Step

Array = Any

#: The ways to call a kernel, as ``tile_interpreter.c`` numbers them.
ELEMENTS, NUMBERS, BY_ROW, REDUCE, COLUMNS, ALONG, NORM, NORM_BACKWARD, CODE, MOMENTS = range(10)
#: The most arrays of a kernel, which determine the words of a step.
MOST_ARRAYS = 6
#: The dtype of indices.
INDEX = np.dtype(np.int64)
#: The kernels along rows that are not called as :data:`ALONG`.
NORMS = {"standardize": NORM, "standardize_backward": NORM_BACKWARD, row_loops.MOMENTS: MOMENTS}
#: The kernels of operations along rows whose names differ.
NAMES = {
    "take_along_axis": "pick", "take_along_axis_backward": "pick_backward", "layer_norm": "standardize",
    "layer_norm_backward": "standardize_backward", "rms_norm": "standardize",
    "rms_norm_backward": "standardize_backward",
}  # fmt: skip
#: The operations computed by a kernel in place of the body, if there is one for the dtype.
GRADIENTS = frozenset(("relu_backward", "sigmoid_backward", "sigmoid_slope", "silu_backward", "tanh_backward"))
#: The kernels that round float32 to 16-bit floats: a pass computes in float32, and rounds where separate calls would.
ROUNDINGS: dict[DType, str] = {float16: "round_to_half", bfloat16: "round_to_bfloat16"}
#: The operations that passes of 16-bit floats support: those of one kernel, which are rounded where separate calls are,
#: and those with exact results.
ROUNDED = frozenset((
    *("add", "sub", "mul", "div", "square", "sqrt", "reciprocal", "exp", "tanh", "sigmoid", "silu", "log_sigmoid"),
    *("softplus", "gelu", "gelu_backward", "sigmoid_backward", "silu_backward", "tanh_backward", "sigmoid_slope"),
))  # fmt: skip
EXACT = frozenset((
    *("neg", "abs", "sign", "floor", "round", "maximum", "minimum", "clip", "where", "masked_fill", "relu"),
    *("relu_backward", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_not"),
))  # fmt: skip
#: The kernels that reduce rows.
OF_ROWS = {"sum": "sum_rows", "mean": "sum_rows", "max": "max_rows", "min": "min_rows"}


#: The rows that sums of columns add in their own dtype.
ROWS_OF_SUMS = 4

#: Stands for an absent operand of a kernel.
ABSENT = Value()


#: Marks sums of columns in place of a stride: each portion has separate ones.
SUMS = -1


class Place(NamedTuple):
    """The location of an array: a start (-1: a thread's scratch memory, -2: absent), offset and row stride in bytes."""

    start: int
    offset: int
    step: int


class _Trace(FormulaTrace):
    """Records the kernels of steps."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        #: The number that kernels of norms add to a variance, and whether they subtract the mean, by the result.
        self.options: dict[Value, tuple[float, bool]] = {}
        #: The sums of columns that a kernel computes besides its result.
        self.sums: dict[Value, Value] = {}

    def along(self, operation: str, operands: Sequence[Value | None], options: Sequence[Any]) -> Value:
        """The result of an operation along rows."""
        made, kernel = Value(), NAMES.get(operation, operation)
        self.calls.append((kernel, made, [ABSENT if x is None else x for x in operands]))
        if kernel in NORMS:
            self.options[made] = options[1], operation.startswith("layer")
        if kernel == "standardize_backward":
            self.sums[made] = Value()
        return made

    def knows(self, operation: str) -> bool:
        """Whether there is a kernel for the operation and the dtype."""
        is_gradient = operation in GRADIENTS and compiled.kernel(self.kernel(operation)) is not None
        return is_gradient or super().knows(operation)

    def step(self, operation: str, *operands: Any) -> Value:
        """The result of an operation."""
        if operation in GRADIENTS:
            values = map(self.value, operands)
            return self.call(operation, *(self.array(x) if x.is_number else x for x in values))
        return super().step(operation, *operands)

    def gelu(self, x: Value, approximate: str = "none") -> Value:
        return self._either("gelu", {"none": "gelu", "tanh": "gelu_tanh"}, approximate, x)

    def gelu_backward(self, grad: Value, x: Value, approximate: str) -> Value:
        kernels = {"none": "gelu_backward", "tanh": "gelu_tanh_backward"}
        return self._either("gelu_backward", kernels, approximate, grad, x)

    def _either(self, name: str, kernels: dict[str, str], approximate: str, *operands: Value) -> Value:
        """A kernel where there is one for the dtype and the arrays, else the body."""
        kernel = kernels[approximate]
        if compiled.kernel(self.kernel(kernel)) is not None:
            return self.call(kernel, *(self.array(x) if x.is_number else x for x in operands))
        found: Value = OPERATIONS[name].body(self, *operands, approximate)
        return found


class TileCode:
    """The code of the passes of a plan and of equal ones: see :func:`backburn.programs.fusion.plan.key_of`.

    Several replays may run it at a time, each with separate scratch memory.
    """

    def __init__(self, plan: Plan) -> None:
        """Raises one of ``UNTRACEABLE`` if the plan has an operation without kernels."""
        is_flat = all(step.is_elementwise and step.has_one_shape for step in plan.steps)
        self._plan = plan = _of_elements(plan) if is_flat else plan
        space = plan.space
        self.dtype = FLOAT64 if space.dtype is float64 else FLOAT32
        #: The dtype of results; for 16-bit floats, the rounding kernel, and the values that memory holds as such.
        self._own = space.dtype.dtype
        self._rounding = ROUNDINGS.get(space.dtype)
        self._halves = set[Value]()
        size, width = self.dtype.itemsize, space.width
        tile = tuning.PASS_FLAT_TILE_BYTES if is_flat else tuning.PASS_TILE_BYTES
        #: The rows of a block, which tiles do not cross: repeated inputs lie elsewhere for the next one.
        self._block = plan.block or space.rows
        extents = plan.extents
        has_sums = any(extents[v] is Extent.COLUMN for v in plan.outputs)
        tall = max(1, tile // (width * size))
        self._tall = min(self._block, -(-tall // ROWS_OF_SUMS) * ROWS_OF_SUMS if has_sums else tall)
        tiles = -(-space.rows // self._tall)
        is_small = space.size <= tuning.MOST_ELEMENTS_OF_ONE_PORTION
        tasks = max(1, space.size // tuning.ELEMENTS_PER_TASK)
        portions = 1 if is_small else min(tuning.PASS_MAX_PORTIONS, tasks, tiles)
        if has_sums:
            portions = min(portions, max(1, space.rows // tuning.PASS_MIN_ROWS_OF_SUMS))
        self._portion = -(-tiles // portions) * self._tall
        self._portions = -(-space.rows // self._portion)
        #: Row strides in bytes, by extent.
        self._steps = {Extent.FULL: width * size, Extent.ROW: size, Extent.COLUMN: 0, Extent.ONE: 0}
        self._trace = _Trace(float32 if self._rounding else space.dtype)
        self._extents: dict[Value, Extent] = {ABSENT: Extent.COLUMN}
        #: The array of each value that stands for its single numbers.
        self._arrays: dict[Value, Value] = {}
        self._views: dict[Value, Value] = {}
        #: By the identity of a call's operand or result, its extent as an operand, and how it is repeated.
        self._values: dict[tuple[int, Extent, Repeat | None], Value] = {}
        #: The inputs that are repeated.
        self._repeats: dict[Value, Repeat] = {}
        #: The identities of results that are means of columns.
        self._means: set[int] = set()
        #: The recorded call for which each kernel is called.
        self._makers: dict[Value, Call] = {}
        #: The identities of values that kernels read along rows: constants among them are stored in full.
        along = (step for step in plan.steps if step.call.operation in ALONG_ROWS)
        self._whole = {id(x.value) for step in along for x in step.operands if x is not None}
        #: The values that are indices of elements of rows.
        self._indices: set[Value] = set()
        inputs = [self._input(x) for x in plan.inputs]
        #: The number of the step that uses each input as indices, if any.
        self.pickers = [self._picker(x) for x in plan.inputs]
        self._indices = {v for v, number in zip(inputs, self.pickers, strict=True) if number is not None}
        #: Which inputs are read as 16-bit floats.
        self.wholes = [v in self._halves for v in inputs]
        #: Which inputs are constants with a single value.
        self.splats = [x.extent is not self._extents[v] for x, v in zip(plan.inputs, inputs, strict=True)]
        for step in plan.steps:
            before = len(self._trace.calls)
            self._note(step)
            for _, made, _ in self._trace.calls[before:]:
                self._extents.setdefault(made, step.extent)
                self._makers[made] = step.call
                if (sums := self._trace.sums.get(made)) is not None:
                    self._extents[sums] = Extent.COLUMN
                    self._makers[sums] = step.call
        results = [self._values[id(v), extents[v], None] for v in plan.outputs]
        if self._rounding:
            results = [self._converted(DOWNCASTS, self._makers[x], x) for x in results]
            self._halves.update(results)
        if len({*results, *inputs}) < len(results) + len(inputs):
            raise TypeError("an output that no kernel makes")
        #: The shape and the dtype of the memory of each result, and by number, the divisors of sums of columns.
        self.shapes = [self._shape(v, extents[v]) for v in plan.outputs]
        columns = [i for i, v in enumerate(plan.outputs) if extents[v] is Extent.COLUMN]
        self.columns = {i: space.rows if id(plan.outputs[i]) in self._means else 1 for i in columns}
        self._lower(inputs, results)
        #: The code for the last row, if it is shorter.
        self._rest = TileCode(_of_rest(plan)) if space.rest else None

    def _shape(self, v: Variable, extent: Extent) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and the dtype of the memory that a result is written to."""
        return ((self._portions, self._plan.space.width), FLOAT64) if extent is Extent.COLUMN else (v.shape, self._own)

    def _converted(self, kernels: dict[str, str], maker: Call, x: Value) -> Value:
        """A value converted from or to 16-bit floats."""
        made = self._trace.call(kernels[self._plan.space.dtype.name], x)
        self._extents[made], self._makers[made] = Extent.FULL, maker
        return made

    def _bytes_of_row(self, x: Value) -> int:
        """The bytes of each row of a repeated input."""
        size = 2 if x in self._halves else self.dtype.itemsize
        return size * (self._plan.space.width if self._extents[x] in (Extent.FULL, Extent.COLUMN) else 1)

    def _row(self, x: Value) -> int:
        """The row stride of a value in memory, in bytes."""
        return self._steps[self._extents[x]] // (2 if x in self._halves else 1)

    def _input(self, x: Operand) -> Value:
        value = Value()
        constant = x.value
        if constant.dtype == np.bool_ if isinstance(constant, np.ndarray) else constant.dtype.kind == "bool":
            raise TypeError("a mask that is not converted")
        is_splat = isinstance(constant, np.ndarray) and not any(constant.strides) and id(constant) not in self._whole
        self._extents[value] = Extent.ONE if is_splat else x.extent
        key = id(constant), x.extent, x.repeat
        self._values[key] = value
        if x.repeat and not is_splat:
            self._repeats[value] = x.repeat
        if self._rounding and self._extents[value] is Extent.FULL:
            self._halves.add(value)
            self._values[key] = self._converted(UPCASTS, self._plan.steps[0].call, value)
        return value

    def _picker(self, x: Operand) -> int | None:
        """The number of the step that uses an input as indices; preferably of labels, which must not be negative."""
        names = {
            i: step.call.operation
            for i, step in enumerate(self._plan.steps)
            for kind, y in zip(ALONG_ROWS.get(step.call.operation, ""), step.operands, strict=False)
            if kind == "I" and y.value is x.value
        }
        return next((i for i, name in names.items() if takes_labels(name)), next(iter(names), None))

    def _operand(self, x: Any, extent: Extent) -> Any:
        """An operand of a step of that extent: an array, or one number per row."""
        if not isinstance(x, Operand):
            return float(np.asarray(x, self._own)) if self._rounding and isinstance(x, int | float) else x
        value = self._values[id(x.value), x.extent, x.repeat]
        own = self._extents[value]
        if own is extent or own is Extent.COLUMN:
            return value
        if value not in self._views:
            self._views[value] = view = Value(is_number=True)
            self._arrays[view] = value
        return self._views[value]

    def _note(self, step: PlanStep) -> None:
        """Record the kernels of a step."""
        trace, call = self._trace, step.call
        if step.is_reduction:
            x = self._values[id(step.operands[0].value), Extent.FULL, None]
            if self._extents[x] is not Extent.FULL:
                raise TypeError("a reduction of what is the same in all rows")
            made = Value()
            if step.extent is Extent.COLUMN:
                trace.calls.append(("sum_columns", made, [x]))
                if call.operation == "mean":
                    self._means.add(id(step.results[0]))
            else:
                trace.calls.append((OF_ROWS[call.operation], made, [x]))
                if call.operation == "mean":
                    made = trace.call("divide", made, float(self._plan.space.width))
            self._values[id(step.results[0]), step.extent, None] = made
            return
        if not step.is_elementwise:
            values = [None if x is None else self._values[id(x.value), x.extent, None] for x in step.operands]
            if call.operation == "rms_norm":
                values.append(None)  # it has no bias
            made = trace.along(call.operation, values, arguments(call)[len(step.operands) :])
            for v, value in zip(listed(call.results), (made, trace.sums.get(made)), strict=False):
                if v is not None and value is not None:
                    self._values[id(v), step.made[v], None] = value
            return
        given = [self._operand(x, step.extent) for x in step.operands]
        if call.operation == "fuse":
            found = given[0](trace, *given[1:], **call.attributes)
        else:
            found = getattr(trace, call.operation)(*given, **call.attributes)
        if not isinstance(found, Value) or found.is_number:
            raise TypeError("a step whose result is a number")
        if self._rounding and call.operation not in EXACT:
            found = trace.call(self._rounding, found)
        self._values[id(step.results[0]), step.extent, None] = found

    def _lower(self, inputs: list[Value], results: list[Value]) -> None:
        """Encode the kernel calls for the interpreter."""
        trace, size, width = self._trace, self.dtype.itemsize, self._plan.space.width
        needed = [x for x, sums in trace.sums.items() if sums in results and x not in results]
        calls = joined_calls(self._distinct(results), [*results, *needed], self._arrays)
        steps = self._loops(calls, results, {*inputs, *results} - self._halves) or [*calls]
        #: The values with several numbers per row.
        self._moments = {x[1] for x in steps if not isinstance(x, Joined) and x[0] == row_loops.MOMENTS}
        arrays = {
            Extent.FULL: -(-self._tall * width * size // LINE) * LINE,
            Extent.ROW: -(-self._tall * size // LINE) * LINE,
        }
        places: dict[Value, Place] = {ABSENT: Place(-2, 0, 0)}
        for i, value in enumerate([*results, *inputs]):
            extent = self._extents[value]
            is_sums = i < len(results) and extent is Extent.COLUMN
            places[value] = Place(i, 0, SUMS if is_sums else self._row(value))
            if value in self._indices:
                places[value] = Place(i, 0, INDEX.itemsize)
        self.constants = []
        known = {x: None for step in steps if not isinstance(step, Joined) for x in step[2] if x in trace.constants}
        for x in known:
            length = 1 if x.is_number else self._tall * width
            self.constants.append(np.full(length, trace.constants[x], self.dtype))
            places[x] = Place(len(results) + len(inputs) + len(self.constants) - 1, 0, 0)
        reads = [
            step.reads if isinstance(step, Joined) else [self._arrays.get(x, x) for x in step[2]] for step in steps
        ]
        last = {x: i for i, given in enumerate(reads) for x in given}
        free: dict[Extent, list[int]] = {Extent.FULL: [], Extent.ROW: []}
        room = 0
        words: list[int] = []
        #: The places of the arrays of loops, and their code.
        self._tables: list[np.ndarray[Any, Any]] = []
        self._codes = [step.code for step in steps if isinstance(step, Joined)]
        for i, step in enumerate(steps):
            for made in step.writes if isinstance(step, Joined) else [step[1]]:
                if made in self._moments:
                    places[made] = Place(-1, room, loops.MOMENTS * size)
                    room += loops.MOMENTS * arrays[Extent.ROW] + LINE
                if made not in places:
                    extent = self._extents[made]
                    if not free[extent]:
                        free[extent].append(room)
                        room += arrays[extent] + LINE  # not a power of 2 apart, else values share cache sets
                    places[made] = Place(-1, free[extent].pop(), self._steps[extent])
            if isinstance(step, Joined):
                for x in step.some:
                    places[x] = Place(-1, room, 0)
                    room += -(-(width * size) // LINE) * LINE + LINE
                self._tables.append(np.array([places[x] for x in step.arrays], np.int64))
                count, table = len(self._tables[-1]), compiled.address(self._tables[-1])
                words += [step.code.address, CODE, count, table, *[0] * (3 * MOST_ARRAYS + 1)]
            else:
                kernel, made, given = step
                found: Any = compiled.kernel(trace.kernel(kernel))
                if kernel == "sum_columns":
                    how, where = COLUMNS, [places[given[0]], places[made]]
                elif kernel in OF_ROWS.values():
                    how, where = REDUCE, [places[given[0]], places[made]]
                elif kernel in ARRAYS_ALONG_ROWS:
                    how, where = NORMS.get(kernel, ALONG), [places[x] for x in given]
                    where.insert(ARRAYS_ALONG_ROWS[kernel][1], places[made])
                    if how == NORM_BACKWARD:
                        sums, aligned = trace.sums[made], -(-width * size // LINE) * LINE
                        if sums not in places:
                            places[sums] = Place(-1, room + aligned, 0)
                        where += [Place(-1, room, 0), places[sums]]
                        room += aligned + 8 * width
                else:
                    how = self._how(self._extents[made], given)
                    where = [places[made], *(places[self._arrays.get(x, x)] for x in given)]
                eps, centred = trace.options.get(made, (0.0, False))
                words += [found.where, how, len(where), *(n for place in where for n in place)]
                words += [*[0] * (3 * (MOST_ARRAYS - len(where))), int(np.float64(eps).view(np.int64)), centred]
            for x in {*reads[i]}:
                if last[x] == i and places[x].start == -1 and x not in self._moments:
                    free[self._extents[x]].append(places[x].offset)
        kernels = sum(not isinstance(step, Joined) for step in steps)
        #: How it is computed, for plans.
        self.generator = f"{kernels} kernels"
        if self._codes:
            self.generator = f"machine code ({machine_code.describe()}), {len(self._codes)} loops and {self.generator}"
        self.room = -(-room // 4096) * 4096 + LINE
        self._words = np.array(words, np.int64)
        #: Where the rows of each result, input and constant begin, if any is repeated.
        self._terms = None
        if self._repeats:
            every = [(x, self._repeats.get(x)) for x in (*results, *inputs, *known)]
            self._terms = np.array(
                [row_terms(repeat, self._bytes_of_row(x) if repeat else places[x].step) for x, repeat in every],
                np.int64,
            )
        numbers = [len(steps), self._plan.space.rows, width, self._tall, self._portion, size, self.room]
        numbers += [self._block, 0 if self._terms is None else compiled.address(self._terms)]
        self._fixed = np.array([compiled.address(self._words), *numbers], np.int64)
        self.at_fixed = compiled.address(self._fixed)
        self._at_constants = compiled.addresses(*self.constants)
        self._run: Any = compiled.kernel("run_tiles")
        #: The bytes before the shorter row, of each result and input.
        self._before = np.array([self._row(x) * self._plan.space.rows for x in (*results, *inputs)], np.int64)
        if verifier.VERIFIES:
            self.finished = self._finished(steps, inputs, results, known)
            tiles_verifier.verify(self.finished)

    def _distinct(self, results: list[Value]) -> list[KernelCall]:
        """The recorded calls without those that compute the elements that another one does, unless they are results."""
        trace, same, known = self._trace, dict[Value, Value](), dict[tuple[Any, ...], Value]()
        found = list[KernelCall]()
        for kernel, made, operands in trace.calls:
            given = [same.get(x, x) for x in operands]
            if self._extents[made] is Extent.FULL and made not in results and made not in trace.options:
                key = kernel, *(float(trace.constants[x]).hex() if x in trace.constants else x for x in given)
                if (first := known.setdefault(key, made)) is not made:
                    same[made] = first
                    continue
            found.append((kernel, made, given))
        return found

    def _loops(self, calls: Sequence[KernelCall], results: list[Value], memory: set[Value]) -> list[Step] | None:
        """The calls, some joined into loops, and split before if that saves sweeps; None if nothing is joined."""
        trace, space, size = self._trace, self._plan.space, self.dtype.itemsize
        ways = [calls]
        is_wide = space.width >= row_loops.MIN_WIDTH and self.dtype is FLOAT32
        if is_wide and not machine_code.missing() and any(kernel in row_loops.SWEEPS for kernel, _, _ in calls):
            facts = trace.options, trace.sums, self._extents, self._makers
            parts = row_loops.split_rows(calls, ABSENT, trace.constant, *facts)
            ways.append(needed_calls(parts, results, self._arrays))
        found: list[list[Step]] = []
        for way in ways:
            one = Pass(way, results, self._extents, self._arrays, trace.constants, space.width, size, memory)
            if space.size * size >= tuning.MIN_BYTES_TO_FETCH:
                one.ahead = self._tall * space.width * size
            if (steps := one.loops()) is not None:
                found.append(steps)
        for steps in sorted(found, key=self._sweeps):
            if all(step.compiles() for step in steps if isinstance(step, Joined)):
                return steps
        return None

    def _sweeps(self, steps: Sequence[Step]) -> int:
        """About how many times steps sweep over the elements of a tile."""
        return sum(
            1 if isinstance(step, Joined) else row_loops.SWEEPS.get(step[0], not self._is_of_numbers(step))
            for step in steps
        )

    def _is_of_numbers(self, call: KernelCall) -> bool:
        """Whether a kernel computes numbers of rows from such numbers."""
        return self._extents[call[1]] is Extent.ROW and all(
            self._extents.get(self._arrays.get(x, x)) is not Extent.FULL for x in call[2]
        )

    def _finished(
        self,
        steps: Sequence[tuple[str, Value, list[Value]] | Joined],
        inputs: Sequence[Value],
        results: Sequence[Value],
        constants: Iterable[Value],
    ) -> tiles_verifier.Finished:
        """The pass as the verifier reads it."""
        space, size = self._plan.space, self.dtype.itemsize
        counts = {
            Extent.FULL: space.rows * space.width, Extent.ROW: space.rows, Extent.COLUMN: space.width, Extent.ONE: 1
        }  # fmt: skip

        def bytes_of(x: Value) -> int:
            if (repeat := self._repeats.get(x)) is not None:
                return prod(repeat.shape) * self._bytes_of_row(x)
            return counts[self._extents[x]] * (2 if x in self._halves else size)

        starts = []
        for value in results:
            is_sum = self._extents[value] is Extent.COLUMN
            row = -1 if is_sum else self._row(value)
            length = 8 * self._portions * space.width if is_sum else bytes_of(value)
            starts.append(tiles_verifier.Start(value, length, row, True))
        for value in inputs:
            start = tiles_verifier.Start(value, bytes_of(value), self._row(value), False)
            if (repeat := self._repeats.get(value)) is not None:
                start = start._replace(repeat=repeat, row_of_repeat=self._bytes_of_row(value))
            if value in self._indices:
                start = start._replace(size=space.rows * INDEX.itemsize, row=INDEX.itemsize)
            starts.append(start)
        for value, array in zip(constants, self.constants, strict=True):
            starts.append(tiles_verifier.Start(value, array.nbytes, 0, False))
        kernels = [step if isinstance(step, Joined) else self._kernel_of(step) for step in steps]
        numbers = [(array, self._trace.constants[x]) for x, array in zip(constants, self.constants, strict=True)]
        return tiles_verifier.Finished(
            self._words, self._fixed, space.rows, space.width, kernels, self._extents, self._arrays,
            self._trace.constants, self._tables, starts, self._portions, self._makers, numbers, self._trace.options,
            self._trace.sums, self._moments, ABSENT, self._terms,
        )  # fmt: skip

    def _kernel_of(self, call: tuple[str, Value, list[Value]]) -> tuple[str, Value, list[tuple[Value, bool]]]:
        name, made, given = call
        return self._trace.kernel(name), made, [(self._arrays.get(x, x), x.is_number) for x in given]

    def _how(self, extent: Extent, given: list[Value]) -> int:
        """The way to call an element-wise kernel."""
        if extent is Extent.ROW:
            return NUMBERS
        for x in given:
            own = self._extents.get(self._arrays.get(x, x))
            if own is Extent.COLUMN or own is Extent.ROW:
                return BY_ROW
        return ELEMENTS

    @property
    def is_small(self) -> bool:
        """Whether all rows are one portion of float32 or float64, and indices that vary are int64."""
        indices = (x.value for x, i in zip(self._plan.inputs, self.pickers, strict=True) if i is not None)
        return (
            self._portions == 1
            and self._rest is None
            and not self._rounding
            and all(x.__class__ is not Variable or x.dtype is int64 for x in indices)
        )

    @property
    def is_rounded(self) -> bool:
        """Whether it computes on 16-bit floats in float32."""
        return self._rounding is not None

    def room_of(self, threads: int) -> int:
        """The bytes of scratch memory for a number of threads."""
        return max(threads * self.room, self._rest.room if self._rest else 0, tuning.MIN_POOLED_BYTES)

    def run(self, starts: np.ndarray[Any, Any], rooms: Array, threads: int) -> None:
        """Run over all rows, with results and inputs at the addresses ``starts`` and scratch memory ``rooms``."""
        self._run_from(starts, rooms, threads)
        if self._rest is not None:
            self._rest._run_from(starts + self._before, rooms, 1)

    def _run_from(self, starts: np.ndarray[Any, Any], rooms: Array, threads: int) -> None:
        starts = np.array([*starts, *self._at_constants], np.int64)
        self._run(self.at_fixed, compiled.address(starts), compiled.address(rooms), threads)


def takes_labels(name: str) -> bool:
    """Whether the indices of an operation along rows are labels of classes."""
    return name.startswith("label")


def row_terms(repeat: Repeat | None, step: int) -> list[tuple[int, int, int]]:
    """Where the rows of an array begin, which are ``step`` bytes apart, as ``repeat.h`` reads it."""
    terms = [(1, 0, 1)] if repeat is None else repeat.terms
    return [(each, count, stride * step) for each, count, stride in (*terms, *[(1, 0, 0)] * (MAX_TERMS - len(terms)))]


def _of_elements(plan: Plan) -> Plan:
    """A plan in which each element is a row."""
    return Plan(plan.space._replace(rows=plan.space.size, width=1, rest=0), plan.steps, plan.outputs, plan.totals)


def _of_rest(plan: Plan) -> Plan:
    """The plan of the shorter row of a plan."""
    space = plan.space
    return Plan(space._replace(rows=1, width=space.rest, rest=0), plan.steps, plan.outputs)


def knows(name: str, dtype: DType) -> bool:
    """Whether a pass computes an operation in a dtype, by its kernel or those of its body."""
    level = compiled.level()
    if level is None:
        return False
    if dtype in ROUNDINGS:
        return (name in ROUNDED or name in EXACT) and _has_kernels(name, float32, level)
    return dtype in (float32, float64) and _has_kernels(name, dtype, level)


@cache
def _has_kernels(name: str, dtype: DType, level: str) -> bool:
    trace, entry = _Trace(dtype), OPERATIONS[name]
    if name in ALONG_ROWS:
        return compiled.kernel(trace.kernel(NAMES.get(name, name))) is not None
    known: dict[str, dict[str, Any]] = {"astype": {"dtype": dtype}, "gelu_backward": {"approximate": "none"}}
    values: list[Any] = [Value(), 2.0] if name == "pow" else [Value() for _ in entry.operands]
    try:
        getattr(trace, name)(*values, **known.get(name, {}))
    except UNTRACEABLE:
        return False
    return True
