# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over every C file that is compiled, once each; what it passed is remembered.

The analyzer follows the paths through each function, which takes minutes of CPU for all of them. A
result holds as long as clang-tidy, its settings, the command and every file that is included are
the same.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from .command import BUILD, ROOT, Failure, run
from .native import configure

PASSED = BUILD / "cache/clang-tidy"
AT_ONCE = 2


def check() -> None:
    """Look at every C file that is compiled."""
    folder = configure("tidy")
    commands = json.loads((folder / "compile_commands.json").read_text())
    # Tests compile the libraries' files again.
    once = {command["file"]: command["command"] for command in reversed(commands)}
    program = _program()
    PASSED.mkdir(parents=True, exist_ok=True)

    def look(file: str) -> str:
        passed = PASSED / _key(once[file], _parts(file, once[file]))
        if passed.exists():
            passed.touch()
            return ""
        try:
            run(
                program,
                "--quiet",
                "--warnings-as-errors=*",
                "-p",
                folder,
                file,
                telling=" error: ",
            )
        except Failure as failure:
            return str(failure)
        passed.touch()
        return ""

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        flaws = [flaw for flaw in pool.map(look, once) if flaw]
    if flaws:
        raise Failure("\n".join(flaws))


def _program() -> str:
    """Return the program itself: on PATH is one in Python that starts it, for each file anew."""
    package = find_spec("clang_tidy")
    for folder in (package and package.submodule_search_locations) or ():
        program = Path(folder) / "data/bin/clang-tidy"
        if program.is_file():
            return str(program)
    raise Failure("clang-tidy is missing: ./dev setup brings it")


def _parts(file: str, command: str) -> set[Path]:
    """Return `file` and what it includes of this repository, relative to its root."""
    words = [word for word in shlex.split(command) if word.startswith(("-D", "-I", "-f", "-std"))]
    rule = run("gcc", "-MM", *words, file)
    paths = (Path(word).resolve() for word in rule.partition(":")[2].split() if word != "\\")
    return {path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)}


def _key(command: str, parts: Collection[Path]) -> str:
    known = [version("clang-tidy"), command, *map(_digest, (Path(".clang-tidy"), *sorted(parts)))]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()


@cache
def _digest(path: Path) -> str:
    return f"{path} {hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}"
