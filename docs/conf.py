"""Configuration of the documentation (Sphinx, furo, MyST)."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "backburn"
author = "The backburn authors"
copyright = "The backburn authors"
version = release = installed_version("backburn")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "public_api",
    "operation_table",
]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = f"backburn {release}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# In docstrings `x` is code.
default_role = "code"
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

# Pages are run here; the examples in docstrings are run by pytest, which reaches the private ones too.
doctest_test_doctest_blocks = ""
