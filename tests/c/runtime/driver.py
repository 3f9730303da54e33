# SPDX-License-Identifier: Apache-2.0
"""The launcher's parsers, asked one after another of one process (driver.c)."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any, final


@final
class Driver:
    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        _, said = self._process.communicate()
        if kind is None:
            assert self._process.returncode == 0, said.decode()

    def args(self, *words: str) -> dict[str, Any]:
        """Return what args.c reads in a command line; words include argv[0]."""
        return self._ask(b"a", b"".join(w.encode() + b"\0" for w in words))

    def spec(self, text: bytes) -> dict[str, Any]:
        """Return what spec.c reads in a config.json."""
        return self._ask(b"s", text)

    def _ask(self, letter: bytes, text: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(struct.pack("=I", len(text)) + letter + text)
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            _, said = self._process.communicate()
            raise AssertionError(f"the parser died on {text[:200]!r}:\n{said.decode()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
