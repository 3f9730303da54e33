# SPDX-License-Identifier: Apache-2.0
"""Runs a program of gpushare and notes each function of it that is called, and when.

`python tools/check/traced.py OUT PROGRAM [ARGUMENT...]`: PROGRAM is a script of the package
(`gpushared`, `gpushare`). OUT is one JSON list: `[seconds, thread, module, function]` for each
call, in the clock of time.monotonic(). What runs while a module is imported is left out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_MODULE_BODY = "<module>"


class Tracer:
    """Notes the calls of all threads that are started from now on, and of this one."""

    def __init__(self) -> None:
        package = find_spec("gpushare")
        assert package is not None
        assert package.origin is not None
        self._folder = Path(package.origin).parent
        self._modules: dict[CodeType, str] = {}
        self._importing: dict[int, int] = {}
        self.calls: list[tuple[float, int, str, str]] = []

    def start(self) -> None:
        """Begin to note."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in {"call", "return"}:
            return
        code = frame.f_code
        thread = threading.get_ident()
        if code.co_name == _MODULE_BODY:
            change = 1 if event == "call" else -1
            self._importing[thread] = self._importing.get(thread, 0) + change
        if event == "return" or self._importing.get(thread, 0) > 0:
            return
        module = self._modules.get(code)
        if module is None:
            module = self._modules[code] = self._module(code)
        if module:
            function = f"{code.co_name}:{code.co_firstlineno}"
            self.calls.append((time.monotonic(), thread, module, function))

    def _module(self, code: CodeType) -> str:
        """Return gpushare's module that `code` is of; empty: it is of none."""
        path = Path(code.co_filename)
        if not path.is_relative_to(self._folder):
            return ""
        return ".".join(path.relative_to(self._folder.parent).with_suffix("").parts)


def main() -> None:
    """Run the program that the command line names."""
    out, program, *arguments = sys.argv[1:]
    name = Path(program).name
    script, *_ = entry_points(group="console_scripts", name=name)
    run = script.load()
    sys.argv = [name, *arguments]
    tracer = Tracer()
    tracer.start()
    try:
        run()
    finally:
        sys.setprofile(None)
        Path(out).write_text(json.dumps(tracer.calls))


if __name__ == "__main__":
    main()
