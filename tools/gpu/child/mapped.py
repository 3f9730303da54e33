# SPDX-License-Identifier: Apache-2.0
"""Prints, as a JSON object, which files this process maps when it loads the library it is given."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path


def mapped(name: str) -> list[str]:
    """Return the files of that name, any version, that this process has mapped."""
    fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = {entry[5] for entry in fields if len(entry) == 6}
    stem = name.partition(".so")[0] + ".so"
    return sorted(path for path in paths if Path(path).name.startswith(stem))


def main() -> None:
    answer: dict[str, object] = {}
    try:
        ctypes.CDLL(sys.argv[1])
    except OSError as error:
        answer["error"] = str(error)
    answer["mapped"] = {path: Path(path).stat().st_ino for path in mapped(sys.argv[1])}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
