"""The Python frames that a call takes."""

import sys
from collections.abc import Callable
from types import FrameType


def frames(call: Callable[[], object]) -> list[str]:
    """The functions that a call runs, after three calls to warm up, as file, line and name, without ``call`` itself."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            found.append(f"{code.co_filename}:{code.co_firstlineno} {code.co_name}")

    for _ in range(3):
        call()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found[1:]
