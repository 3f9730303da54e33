# SPDX-License-Identifier: Apache-2.0
"""The copyright file of a package: gpushare's licence, and those of what the package bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .environment import LicensedPart

_HEAD = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpushare
Comment: Each licence below begins with the software of others that it applies to. All of it is
 in the package's private environment, or linked into the static programs.

Files: *
Copyright: the gpushare developers
License: Apache-2.0
"""
_APACHE_BEGIN: Final = "Apache License\n"
_APACHE_END: Final = "END OF TERMS AND CONDITIONS"
_APACHE: Final = """Apache License, Version 2.0
On Debian systems, its full text is in /usr/share/common-licenses/Apache-2.0."""


def write(place: Path, licence: Path, parts: Sequence[LicensedPart]) -> None:
    """Write `place` in Debian's format, with the texts of all licences."""
    texts = [_HEAD.rstrip() + "\n" + _indented(_shortened(licence.read_text(encoding="utf-8")))]
    for licensed in sorted(parts, key=lambda each: each.part.name):
        part = licensed.part
        text = "\n\n".join(map(_shortened, licensed.texts))
        texts.append(
            f"Files: {part.name}\nCopyright: as in the text below\n"
            f"Comment: {part.name} {part.version} ({part.licence})\n"
            f"License: {part.licence.replace(' ', '-')}-{part.name}\n{_indented(text)}"
        )
    place.write_text("\n".join(texts), encoding="utf-8")


def _shortened(text: str) -> str:
    """Replace the Apache License by a reference to the copy that every Debian has."""
    if _APACHE_BEGIN not in text or _APACHE_END not in text:
        return text
    before, _, rest = text.partition(_APACHE_BEGIN)
    return f"{before.rstrip()}\n{_APACHE}{rest.partition(_APACHE_END)[2]}".strip()


def _indented(text: str) -> str:
    return "".join(f" {line.rstrip() or '.'}\n" for line in text.strip().splitlines())
