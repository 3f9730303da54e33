# SPDX-License-Identifier: Apache-2.0
"""Manifests as people write them, with where everything stands.

`nodes` is text to nodes, bounded; `file` says what there is to find; `read` finds it: `kubernetes`
with `pods`, `compose_file`, `ecs`, `oci`. What a container asks by it is in `request`.
"""

from gpushare.manifest.errors import ManifestError
from gpushare.manifest.file import STDIN, Container, Document, File, Pod, Value, Values
from gpushare.manifest.own import Refusal
from gpushare.manifest.read import read
from gpushare.manifest.request import Found, Request, request_of, settings_of

__all__ = [
    "STDIN",
    "Container",
    "Document",
    "File",
    "Found",
    "ManifestError",
    "Pod",
    "Refusal",
    "Request",
    "Value",
    "Values",
    "read",
    "request_of",
    "settings_of",
]
