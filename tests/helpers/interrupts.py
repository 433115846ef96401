"""Interrupts at each point of a call at which Python checks for signals, one at a time."""

from __future__ import annotations

import os
import sys
from typing import Any

#: Code is interrupted in files whose path contains one of these.
WITHIN = ("/backburn/", "/backburn_numpy/", "<backburn")
#: Files whose functions run when arrays are freed, where Python prints an exception and continues.
FREE = ("guards.py", "memory.py")


class Interrupter:
    """Raises KeyboardInterrupt where Python checks for signals: when functions begin, and after calls."""

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
