# SPDX-License-Identifier: Apache-2.0
"""The documentation as a static site: every Markdown page of the repository, by Sphinx.

`./dev docs` builds it, and `./dev check site` fails for any warning, for example a link that leads
nowhere. The reasons for Sphinx are in docs/adr/0030.
"""

from __future__ import annotations

from typing import Final

import gpushare

project: Final = "gpushare"
version = release = gpushare.__version__
html_title: Final = f"gpushare {version}"
html_theme: Final = "furo"
html_extra_path: Final = ["index.html"]
html_show_copyright: Final = False
html_show_sourcelink: Final = False
html_copy_source: Final = False

root_doc: Final = "docs/index"
source_suffix: Final = {".md": "markdown"}
include_patterns: Final = ["*.md", "docs/**.md", "simulator/README.md"]
exclude_patterns: Final = ["build", ".*", "tests", "gpushare", "libhook", "packaging"]
extensions: Final = ["myst_parser"]
#: Links to headings, as forges make them.
myst_heading_anchors: Final = 4
nitpicky: Final = True
