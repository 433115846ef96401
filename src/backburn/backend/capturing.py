"""Recording a program of a backend's operations, to replay it without Python.

A backend that can (with CUDA graphs, say) declares ``capabilities.capture`` and implements
:class:`CapturingBackend`; others need nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: A function from the state and the inputs of a step to its new state and its outputs.
Step = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]


class Executable(Protocol):
    """A recorded program with separate memory."""

    #: The primitives that hold the state, undefined until they are set. A replay overwrites or replaces them.
    state: list[Any]
    #: Whether a replay overwrites them, even if others refer to them; it is then called with two arguments. Otherwise
    #: nothing is copied, and the state is released while another program is replayed.
    in_place: bool
    #: The number of recorded launches (calls of the device, or of operations).
    launches: int

    @abstractmethod
    def set_state(self, place: int, value: Any) -> None:
        """Copy a primitive into the state, or refer to it; None, in a program that is not in place, releases it."""

    @abstractmethod
    def __call__(
        self, inputs: Sequence[Any], numbers: Sequence[float], release: Callable[[], list[int]] | None = None
    ) -> list[Any]:
        """Run the program once: copy ``inputs`` in, update ``state`` in place, return copies of the outputs.

        ``numbers`` are the values of the recording's numbers
        (:class:`backburn.backend.host_numbers.Recording`), by place. A program that is not in place may overwrite
        state that it has allocated itself and that nothing else refers to: ``release()`` drops references where it can,
        and returns how many remain to each part of the state. Without it nothing is overwritten.
        An error or an interrupt leaves the state as it was, or as it is after the step; :attr:`state` is then another
        list.
        """


class CapturingBackend(Protocol):
    """A backend that can record programs."""

    @abstractmethod
    def capture(self, step: Step, state: Sequence[Any], inputs: Sequence[Any]) -> Executable:
        """Record one run of ``step`` on copies of ``state`` and ``inputs``, without changing either.

        ``step`` has run before, so that whatever it needs is compiled. It is called once; its results are not read
        before a replay. Numbers that differ from replay to replay reach operations as ``ReplayedFloat`` and
        ``ReplayedInt``: each is bound (``RECORDING_STEP.get().bind(number)``). Values from the host are constants if
        the step took the same when it ran before (``RECORDING_STEP.get().host_constants``, where the backend has put
        them: ``HOST_CONSTANTS``).
        A backend that overwrites the old state during the step raises ``Overwritten`` if the old state is read later;
        it is then called again and must not overwrite (``RECORDING_STEP.get().overwrites`` is false).
        Raises :class:`CaptureError` for what cannot be recorded, such as reading a value on the host, with nothing
        changed.
        """


def copy_primitive(k: Any, primitive: Any) -> Any:
    """A copy of a primitive of ``k``, in separate memory."""
    dtype, shape = k.dtype(primitive), tuple(primitive.shape)
    if dtype.kind == "quantized":
        return k.quantized_from_parts(*k.quantized_parts(primitive), dtype=dtype, shape=shape)
    return k.slice_assign(primitive, primitive, tuple(slice(0, n, 1) for n in shape))
