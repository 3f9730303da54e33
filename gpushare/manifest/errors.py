# SPDX-License-Identifier: Apache-2.0
"""A file that cannot be read as manifests."""

from __future__ import annotations

from gpushare.errors import UserError
from gpushare.marks import Fault, at


class ManifestError(UserError):
    """It is no YAML or JSON, or too much of it; the text has file, line, column and the fix."""

    def __init__(self, path: str, fault: Fault) -> None:
        super().__init__(f"{at(path, fault.line, fault.column)}: {fault.told}")
        self.path = path
        self.fault = fault
