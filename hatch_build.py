"""The hook of the package's build: compile the kernels of the NumPy backend where there is a C compiler.

Without one the package has their sources, and NumPy does their work. Variables of the environment:

- ``BACKBURN_COMPILED=0`` compiles nothing, which makes a wheel for every machine; ``zig`` compiles with ``ziglang``,
  which the build then requires.
- ``BACKBURN_COMPILED_LEVELS=all`` compiles for every instruction set, not only for that of this processor.
- ``BACKBURN_COMPILED_TARGET`` is another kind of machine, one of ``TARGETS`` in the kernels' ``build.py``: its wheel
  has the kernels of every instruction set, compiled by ``ziglang``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = Path("backends/backburn_numpy/compiled")


class CompileKernels(BuildHookInterface[Any]):
    """Compiles into the source tree for an editable install, else into a folder that the wheel is made from."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return ["ziglang"] if self.needs_zig() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel or an editable install is made; ``build_data`` is what the builder goes by."""
        if self.target_name != "wheel":
            return
        sources = Path(self.root) / COMPILED
        if version == "editable":
            self.compile(sources)
            return
        self.made = TemporaryDirectory()
        folder = Path(self.made.name)
        try:
            taken = self.compile(folder)
        except BaseException:
            self.made.cleanup()
            raise
        if taken:
            # The libraries know nothing of Python: they serve every version of it on this kind of machine.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{self.platform()}"
        else:
            folder, taken = sources, [*sources.rglob("*.[ch]")]
        places = {str(p): f"backburn_numpy/compiled/{p.relative_to(folder).as_posix()}" for p in taken}
        build_data["force_include"].update(places)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel has been made."""
        if hasattr(self, "made"):
            self.made.cleanup()

    def is_compiled(self, sources: Path) -> bool:
        """Whether an earlier installation compiled these sources, and no variable asks for another compiler."""
        is_chosen = os.environ.get("CC") or os.environ.get("BACKBURN_COMPILED") or self.target()
        return not is_chosen and bool(self.build_module().is_built(sources))

    def compile(self, folder: Path) -> list[Path]:
        """Compile into the folder; the libraries that were made, or none where there is no compiler.

        A wheel stays small: on lesser processors than this one NumPy does the work, unless it is to have the kernels
        for all. In a source tree the tests want them all as well. What an earlier installation compiled is taken.
        """
        if os.environ.get("BACKBURN_COMPILED") == "0":
            return []
        build = self.build_module()
        sources = Path(self.root) / COMPILED
        for_all = folder == sources or os.environ.get("BACKBURN_COMPILED_LEVELS") == "all"
        if for_all and self.is_compiled(sources):
            found = build.libraries(sources).values()
            return [*found] if folder == sources else [Path(shutil.copy2(path, folder)) for path in found]
        target = self.target()
        try:
            return list(build.build(folder, only_best=not for_all and target is None, target=target))
        except build.NoCompilerError as error:
            if self.needs_zig():
                raise
            self.app.display_warning(f"backburn: NumPy computes, two to four times slower than kernels. {error}")
            return []

    def platform(self) -> str:
        """The tag of the machine that the wheel is for."""
        target = self.target()
        if target is not None:
            return str(self.build_module().TARGETS[target])
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def target(self) -> str | None:
        """The machine to compile for, unless it is this one."""
        return os.environ.get("BACKBURN_COMPILED_TARGET") or None

    def needs_zig(self) -> bool:
        """Whether no other compiler will do."""
        return os.environ.get("BACKBURN_COMPILED") == "zig" or self.target() is not None

    def build_module(self) -> Any:
        """The kernels' ``build.py``, whose package is not installed yet."""
        spec = importlib.util.spec_from_file_location("build_kernels", Path(self.root) / COMPILED / "build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
