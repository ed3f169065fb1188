"""Sphinx configuration."""

from __future__ import annotations

from importlib.metadata import version as _version

project = "skipscope"
author = "The skipscope authors"
project_copyright = "The skipscope authors"
release = version = _version("skipscope")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "examples"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Shape", "notes"), ("Unit", "notes"), ("Source", "notes")]

html_theme = "furo"
html_title = f"skipscope {release}"
