"""Configuration of the documentation (Sphinx, furo, MyST)."""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "backburn"
author = "The backburn authors"
copyright = "The backburn authors"
version = release = installed_version("backburn")
changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
#: Whether the changelog has changes under *Unreleased*: the pages then describe more than any release.
unreleased = re.search(r"^## Unreleased\n(?!\s*## )", changelog, re.MULTILINE) is not None

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "public_api",
    "conformance_pages",
    "gradient_rules",
    "operation_table",
    "pictures",
    "sharding_table",
    "wide_tables",
]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
# Each page of the reference begins with a list of its names. Adding these to the tables of contents, which every page
# repeats, would take three times as long as the rest of the build.
toc_object_entries = False
html_title = f"backburn {release}{', unreleased' if unreleased else ''}"
html_static_path = ["_static", "images/logo-light.svg", "images/logo-dark.svg"]
html_css_files = ["backburn.css"]
html_favicon = "images/logo-light.svg"
html_theme_options = {
    **({"announcement": "These pages describe changes that no release has yet."} if unreleased else {}),
    "light_logo": "logo-light.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {
        "color-brand-primary": "#b23c0b",
        "color-brand-content": "#b23c0b",
        "color-sidebar-link-text--top-level": "var(--color-foreground-primary)",
    },
    "dark_css_variables": {"color-brand-primary": "#ff9a5c", "color-brand-content": "#ffab78"},
}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The copy button leaves prompts and output out.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# In docstrings `x` is code.
default_role = "code"
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

# Examples on pages run here; those in docstrings run under pytest, which also reaches private names.
doctest_test_doctest_blocks = ""
