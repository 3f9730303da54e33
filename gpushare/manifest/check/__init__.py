# SPDX-License-Identifier: Apache-2.0
"""What is wrong with manifests: every error with its place, key, value, rule and fix.

`check` asks them all: `shapes` by the schemas in `schemas`, `scopes` for which container an
annotation is, `resources` of limits, `unknown` of keys that are none, `asked` of what is asked,
`alauda` of that console's ConfigMaps.
"""

from gpushare.manifest.check.check import Checked, check, unreadable
from gpushare.manifest.check.finding import ERROR, INFO, WARNING, Finding, Level

__all__ = [
    "ERROR",
    "INFO",
    "WARNING",
    "Checked",
    "Finding",
    "Level",
    "check",
    "unreadable",
]
