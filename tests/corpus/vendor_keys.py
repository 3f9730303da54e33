# SPDX-License-Identifier: Apache-2.0
"""Other systems' keys by themselves, and what nodes make of them: vendor-keys.txt.

A line `limit: NAME=TEXT env: NAME=TEXT` has the keys of a container. The indented lines beneath it
have the request of each dialect, the refusals, and the notes; they begin with `strict` or `lenient`
where such nodes differ. `@1` is the container's position in its pod, `@main` its name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.parse import combine
from gpushare.quota.dialects.vendor_key import KeyLocation, VendorValue

from .cases import FOLDER

FILE: Final = FOLDER / "vendor-keys.txt"


class VendorKeys(NamedTuple):
    """The keys of one container."""

    line: str
    values: list[VendorValue]
    position: int
    container: str

    def outcome(self, *, strict: bool) -> Iterator[str]:
        """Yield what a node makes of the keys."""
        for one in combine(
            self.values, strict=strict, position=self.position, container=self.container
        ):
            for problem in one.problems:
                yield f"{one.dialect.name} refuses {problem.error}"
            if one.layer and not one.problems:
                texts = " ".join(f"{key}={asked.text}" for key, asked in one.layer.items())
                yield f"{one.dialect.name} {texts}"
            yield from (f"note: {note}" for note in one.notes)


def containers() -> Iterator[VendorKeys]:
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in " #":
            texts: dict[KeyLocation, dict[str, str]] = {}
            position, container, where = 0, "", ""
            for word in shlex.split(line):
                if word.startswith("@"):
                    position = int(word[1:]) if word[1:].isdecimal() else position
                    container = "" if word[1:].isdecimal() else word[1:]
                elif word.endswith(":"):
                    where = word[:-1].replace("-", " ")
                else:
                    name, _, text = word.partition("=")
                    texts.setdefault(cast("KeyLocation", where), {})[name] = text
            values = [one for at, each in texts.items() for one in TABLES.find(at, each)]
            yield VendorKeys(line, values, position, container)


def text() -> str:
    """Return the file as it should be."""
    lines = [*FILE.read_text(encoding="utf-8").partition("\n\n")[0].splitlines(), ""]
    for keys in containers():
        strict, lenient = (list(keys.outcome(strict=one)) for one in (True, False))
        lines.append(keys.line)
        if strict == lenient:
            lines += [f"  {one}" for one in strict]
        else:
            lines += [f"  strict: {one}" for one in strict]
            lines += [f"  lenient: {one}" for one in lenient]
    return "\n".join(lines) + "\n"
