# SPDX-License-Identifier: Apache-2.0
"""Manifests in the shape of real ones, of every vendor, and what is expected of each.

`<vendor>/<case>.yaml` is a manifest, `<case>.to-<target>.yaml` what it is converted to.
`<case>.json` says what each of its containers requests (`requests`), which canonical keys a target
has no word for (`lost`), which target refuses it with what (`refused`), and what becomes of it
through the policies of a mode, or, if it is not for Kubernetes, by itself (`admitted`). After a
change, `python -m tests.corpus update` writes those again: read the difference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpushare.manifest import read
from gpushare.manifest.convert import Converted, convert
from gpushare.manifest.convert.conversion import CannotConvert
from gpushare.manifest.convert.targets import TARGETS
from gpushare.manifest.model import ManifestFile

FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class CorpusManifest:
    """One manifest of the corpus."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(FOLDER).with_suffix(""))

    @property
    def file(self) -> ManifestFile:
        return read(self.path)

    @property
    def expected(self) -> dict[str, Any]:
        found = json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found

    def golden(self, target: str) -> Path:
        return self.path.with_suffix(f".to-{target}.yaml")


CASES: Final = [
    CorpusManifest(path) for path in sorted(FOLDER.glob("*/*.yaml")) if ".to-" not in path.name
]


@cache
def conversion(case: CorpusManifest, target: str = "gpushare") -> Converted | str:
    """Return what a manifest is converted to, or why it is refused."""
    try:
        return convert(case.file, TARGETS[target])
    except CannotConvert as error:
        return str(error).replace(f"{FOLDER}/", "")
