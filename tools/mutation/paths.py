# SPDX-License-Identifier: Apache-2.0
"""Every function that coverage.txt calls charged, broken: it goes to the driver uncharged.

As INVARIANTS, one for each symbol. The definition is found in libhook/cuda, and the arguments in
its parameters; those of a macro's functions in the headers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from libhook.table import coverage
from tools.mutation.invariants import Invariant

_ROOT: Final = Path(__file__).resolve().parents[2]
_TEST: Final = (
    "tests/c/interposer/test_allocation_paths.py"
    "::test_a_path_takes_the_last_byte_of_the_quota_and_gives_it_back[{symbol}]"
)


def _arguments(parameters: str) -> str:
    """Return the names of `parameters`, which have no functions among them."""
    return ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters.strip()))


def _uncharged(symbol: str, text: str, headers: str) -> tuple[str, str] | None:
    """Return what `text` defines `symbol` with, and what calls the driver instead."""
    if match := re.search(rf"^CUDA\({symbol},\s*\((.*?)\)\)\n{{\n", text, re.MULTILINE | re.DOTALL):
        return match[0], f"{match[0]}\treturn REAL({symbol})({_arguments(match[1])});\n"
    if match := re.search(rf"^[A-Z_0-9]+\(\s*{symbol},[^{{}};]*?\)$", text, re.MULTILINE):
        form = symbol.removesuffix("_ptsz")
        declared = re.search(
            rf"(?:CUresult {symbol}|CUDA_WITH_PTSZ\(\s*{form},\s*)\(([^;]*?)\)\)?;", headers
        )
        assert declared, symbol
        called = f"return REAL({symbol})({_arguments(declared[1])});"
        return match[0], f"CUDA({symbol}, ({declared[1]}))\n{{\n\t{called}\n}}"
    return None


def paths() -> tuple[Invariant, ...]:
    """Return all of them."""
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    charged = [name for name, entry in lines.items() if "charged: " in entry.reason]
    headers = "".join(path.read_text() for path in (_ROOT / "libhook/include").glob("cuda_*.h"))
    found = []
    for path in sorted((_ROOT / "libhook/cuda").glob("*.c")):
        text = path.read_text()
        for symbol in [name for name in charged if name in text]:
            if broken := _uncharged(symbol, text, headers):
                sentence = f"{symbol} is charged before the driver is asked."
                where = path.relative_to(_ROOT).as_posix(), *broken
                found.append(Invariant(sentence, *where, (_TEST.format(symbol=symbol),)))
    missed = set(charged) - {one.sentence.partition(" ")[0] for one in found}
    assert len(found) == len(charged), missed
    return tuple(found)
