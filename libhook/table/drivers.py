"""What NVIDIA's libraries of some releases have: drivers.txt, beside what the headers say.

A header declares what no driver exports, and an earlier driver may have what it declares first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

FACTS = Path(__file__).with_name("drivers.txt")
UNKNOWN = "Unknown Error"  # NVML's words for a code that it does not know
NEVER = 65535  # a CUDA version that there is not; libhook/cuda/symbols.h has 16 bits
#: In the headers, and in no driver for Linux on servers: of Windows, and of Tegra.
NOWHERE = frozenset({"cuWGLGetDevice", "cuEventCreateFromEGLSync"})


@dataclass
class DriverFacts:
    """The releases, oldest first, and the first that has each function and each error."""

    releases: list[int] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    errors: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)

    def since(self, headers: Iterable[int], first: int | None) -> int:
        """Return the CUDA version from which there is what these `headers` declare.

        `first` is the first of the releases that has it, None if none has.
        """
        lacking = [release for release in self.releases if first is None or release < first]
        after = lacking[-1] if lacking else 0
        known = [*headers, *([] if first is None else [first])]
        return min((version for version in known if version > after), default=NEVER)


def read() -> DriverFacts:
    """Return the facts of drivers.txt."""
    facts = DriverFacts()
    for line in FACTS.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        version, kind, *rest = line.split(" ", 3)
        release = int(version)
        if release not in facts.releases:
            facts.releases.append(release)
        if not rest:
            facts.functions[kind] = release
        else:
            code, text = int(rest[0]), rest[1]
            first, _ = facts.errors.get((kind, code), (release, text))
            facts.errors[kind, code] = first, text
    return facts
