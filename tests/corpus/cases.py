# SPDX-License-Identifier: Apache-2.0
"""Manifests in the shape of real ones, of every vendor, and what is expected of each.

`<vendor>/<case>.yaml` is a manifest; `<case>.json` beside it says what each of its containers asks
(`asks`), which canonical keys a target has no word for (`lost`), and which target refuses it with
what (`refused`). `<case>.to-<target>.yaml` is what it is converted to. After a change of what is
written, `python -m tests.corpus.cases` writes those again: read the difference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.manifest import Container, ManifestFile, read
from gpushare.manifest.convert import TARGETS, CannotConvert, convert

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


def name_of(container: Container) -> str:
    """Return `Deployment serving/llm/model`."""
    return f"{container.document}/{container.name}"


def main() -> None:
    """Write what the manifests are converted to."""
    for case in CASES:
        for target in TARGETS.values():
            case.golden(target.name).unlink(missing_ok=True)
            try:
                made = convert(case.file, target)
            except CannotConvert:
                continue
            if made.changed:
                case.golden(target.name).write_text(made.text, encoding="utf-8")


if __name__ == "__main__":
    main()
