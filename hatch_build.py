"""The hook of the package's build: compile the kernels of the NumPy backend where there is a C compiler.

Without one the package has their sources, and NumPy does their work. ``BACKBURN_COMPILED=0`` does the same, which
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
        if self.target_name != "wheel":
            return
        made = [] if os.environ.get("BACKBURN_COMPILED") == "0" else self.compiled(version == "editable")
        if version == "editable":
            return  # all lies in the source tree
        folder = Path(self.root) / COMPILED
        if made:
            # The libraries know nothing of Python: they serve every version of it on this kind of machine.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
        taken = made or [path for path in folder.iterdir() if path.suffix in (".c", ".h")]
        build_data["force_include"].update({str(p): f"backburn_numpy/compiled/{p.name}" for p in taken})

    def compiled(self, for_all: bool) -> list[Path]:
        """Compile; the libraries that were made, or none where there is no compiler.

        A wheel stays small: on lesser processors than this one NumPy does the work, unless it is to have the kernels
        for all. In a source tree the tests want them all as well.
        """
        spec = importlib.util.spec_from_file_location("build_kernels", Path(self.root) / COMPILED / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return list(module.build(only_best=not for_all and os.environ.get("BACKBURN_COMPILED_LEVELS") != "all"))
        except module.NoCompilerError as error:
            self.app.display_warning(f"backburn: the NumPy backend's kernels are not compiled. {error}")
            return []
