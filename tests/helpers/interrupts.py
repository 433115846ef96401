"""Interrupts at every moment of a call at which Python looks for signals, one after the other."""

from __future__ import annotations

import os
import sys
from typing import Any

#: Parts of the names of files whose code is interrupted.
WITHIN = ("/backburn/", "/backburn_numpy/", "<backburn")
#: Files whose functions run as arrays die, where Python prints an interrupt and goes on.
FREE = ("guards.py", "memory.py")


class Interrupter:
    """Raises KeyboardInterrupt in a replay where Python looks for signals: as functions begin, and after calls."""

    def __init__(self, at: int) -> None:
        self.at, self.points, self.where = at, 0, ""

    def __enter__(self) -> Interrupter:
        sys.setprofile(self.pass_by)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def pass_by(self, frame: Any, event: str, argument: Any) -> None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if event not in ("call", "c_return") or name in ("__del__", "forget") or file.endswith(FREE):
            return
        if any(part in file for part in WITHIN):
            self.points += 1
            if self.points == self.at:
                self.where = f"{os.path.basename(file)}:{frame.f_lineno}"
                sys.setprofile(None)
                raise KeyboardInterrupt
