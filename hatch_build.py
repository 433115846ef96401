"""The hook of the package's build: compile the kernels of the NumPy backend where there is a C compiler.

Without one the package is the same, and NumPy does the kernels' work. ``BACKBURN_COMPILED=0`` leaves them out, which
makes a wheel for every machine. Otherwise a wheel has those of the processor that it is built on, or with
``BACKBURN_COMPILED_LEVELS=all`` those of every instruction set.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = Path("backends/backburn_numpy/compiled")


class CompileKernels(BuildHookInterface[Any]):
    """Compiles into the source tree; a wheel takes the libraries along, an editable install finds them there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel or an editable install is made; ``build_data`` is what the builder goes by."""
        if self.target_name != "wheel" or os.environ.get("BACKBURN_COMPILED") == "0":
            return
        spec = importlib.util.spec_from_file_location("build_kernels", Path(self.root) / COMPILED / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            # A wheel stays small: on lesser processors than this one NumPy does the work, unless it is to have the
            # kernels for all. In a source tree the tests want them all as well.
            wants_all = version == "editable" or os.environ.get("BACKBURN_COMPILED_LEVELS") == "all"
            made = module.build(only_best=not wants_all)
        except module.NoCompilerError as error:
            self.app.display_warning(f"backburn: the NumPy backend's kernels are not compiled. {error}")
            return
        if version != "editable":
            # The libraries know nothing of Python: they serve every version of it on this kind of machine.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["force_include"].update({str(p): f"backburn_numpy/compiled/{p.name}" for p in made})
