"""``python -m backburn.conformance``: the command ``backburn conformance``."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv.insert(1, "conformance")
    runpy.run_module("backburn", run_name="__main__", alter_sys=True)
