"""``Profile``: a decorator that measures the cost of each operation of a backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from backburn.backend.wrapper import Wrapper


@dataclass(frozen=True)
class Cost:
    """The cost of the calls of one operation: their number, and their total time in seconds."""

    calls: int
    seconds: float


class Profile(Wrapper):
    """A backend that measures the operations of ``wrapped``: how often each is called, and how long it takes.

    Models, data and results are those of the wrapped backend, so that only the spec of a program changes:
    ``autodiff(profile(numpy))`` instead of ``autodiff(numpy)``. Reverse passes and optimizers are measured too. The
    backend is synchronized after each operation, so on an asynchronous device the times add up to more than a program
    takes without a profile. Formulas that a backend
    computes in one pass, such as the gradient of ``div``, count as one operation. Steps are not captured.

        >>> import backburn as bb
        >>> profile = bb.load_backend("profile(numpy)")
        >>> x = bb.ones(3, backend="autodiff(profile(numpy))").require_grad()
        >>> profile.reset()
        >>> gradients = (x * x).sum().backward()
        >>> {name: cost.calls for name, cost in sorted(profile.costs.items())}
        {'add': 1, 'broadcast_to': 1, 'full': 1, 'mul': 3, 'reshape': 1, 'sum': 1}
        >>> print(profile.table(limit=1).splitlines()[0])
        operation        calls   total ms    mean us    share
    """

    name: ClassVar[str] = "profile"

    def __init__(self, wrapped: Any) -> None:
        """Wrap a backend, which is not changed; nothing is counted yet."""
        super().__init__(wrapped)
        self._measured: dict[str, Cost] = {}
        self._lock = threading.Lock()

    def call(self, operation: str, /, *operands: Any, **attributes: Any) -> Any:
        """Call an operation of the wrapped backend, and measure it."""
        return self._run(operation, getattr(self._inner, operation), operands, attributes)

    def fuse(self, formula: Callable[..., Any], x: Any, /, *values: Any, donate: tuple[int, ...] = ()) -> Any:
        """Compute a formula as the wrapped backend does, measured as one operation of the formula's name."""
        name = getattr(formula, "__name__", "fuse")  # partials have no name
        return self._run(name, self._inner.fuse, (formula, x, *values), {"donate": donate})

    @property
    def costs(self) -> Mapping[str, Cost]:
        """The cost of each operation called since the last :meth:`reset`, by name, the most time first."""
        with self._lock:
            measured = list(self._measured.items())
        return dict(sorted(measured, key=lambda item: item[1].seconds, reverse=True))

    def table(self, limit: int = 20) -> str:
        """The ``limit`` operations that took most time as a table: calls, total and mean time, share of all time."""
        costs = self.costs
        total = sum(cost.seconds for cost in costs.values())
        shown = list(costs.items())[:limit]
        width = max([16, *(len(name) for name, _ in shown)])
        lines = [f"{'operation':<{width}} {'calls':>5} {'total ms':>10} {'mean us':>10} {'share':>8}"]
        for name, cost in shown:
            lines.append(
                f"{name:<{width}} {cost.calls:>5} {cost.seconds * 1e3:>10.3f} {cost.seconds / cost.calls * 1e6:>10.1f} "
                f"{cost.seconds / total:>8.1%}"
            )
        if len(costs) > len(shown):
            lines.append(f"and {len(costs) - len(shown)} more; all operations: {total * 1e3:.3f} ms")
        return "\n".join(lines)

    def reset(self) -> None:
        """Forget all costs."""
        with self._lock:
            self._measured.clear()

    def _run(self, name: str, function: Callable[..., Any], operands: Any, attributes: Mapping[str, Any]) -> Any:
        start = time.perf_counter()
        result = function(*operands, **attributes)
        self._inner.synchronize()
        end = time.perf_counter()
        with self._lock:
            before = self._measured.get(name, Cost(0, 0.0))
            self._measured[name] = Cost(before.calls + 1, before.seconds + end - start)
        self._note(name, operands, attributes, result, start, end)
        return result

    def _note(
        self, name: str, operands: Any, attributes: Mapping[str, Any], result: Any, start: float, end: float
    ) -> None:
        """Called after each operation, which ran from ``start`` to ``end``; for subclasses."""
