# SPDX-License-Identifier: Apache-2.0
"""Asks cuGetProcAddress_v2 everything the table knows, and compares with dlsym's addresses.

Prints one JSON object: how many look-ups there were, how many were answered, and every one whose
answer is not the table's.
"""

from __future__ import annotations

import ctypes
import json
import sys

from tools.gpu.table import Question, SymbolLine, cuda_lines, questions

STATUS = ("found", "not found", "version not sufficient")


class LookupLibrary:
    """The driver library at `path`, its symbols by address."""

    def __init__(self, path: str, lines: list[SymbolLine]) -> None:
        self.library = ctypes.CDLL(path)
        self.symbols: dict[int, set[str]] = {}
        for line in lines:
            address = self.address(line.symbol)
            if address is not None:
                self.symbols.setdefault(address, set()).add(line.symbol)

    def address(self, symbol: str) -> int | None:
        try:
            return ctypes.cast(getattr(self.library, symbol), ctypes.c_void_p).value
        except AttributeError:
            return None

    @property
    def version(self) -> int:
        version = ctypes.c_int()
        self.library.cuDriverGetVersion(ctypes.byref(version))
        return version.value

    def ask(self, question: Question) -> tuple[int | None, str]:
        """Return the address answered (None where there is none) and what the driver says to it."""
        found, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = self.library.cuGetProcAddress_v2(
            question.name.encode(),
            ctypes.byref(found),
            ctypes.c_int(question.version),
            ctypes.c_uint64(question.flags),
            ctypes.byref(status),
        )
        said = STATUS[status.value] if 0 <= status.value < len(STATUS) else str(status.value)
        return found.value if code == 0 else None, said if code == 0 else f"{said}, error {code}"


def difference(library: LookupLibrary, question: Question, expected: str | None) -> str | None:
    """Return in words how the answer differs from `expected`, None where it does not."""
    address, said = library.ask(question)
    asked = f"{question.name}, {question.version}, {question.flags}"
    names = library.symbols.get(address, set()) if address else set()
    if expected is None:
        return (
            f"{asked}: {'/'.join(sorted(names)) or 'unknown'}, expected none" if address else None
        )
    if address is None:
        return f"{asked}: {said}, expected {expected}"
    if expected in names:
        return None
    return f"{asked}: {'/'.join(sorted(names)) or 'no exported symbol'}, expected {expected}"


def suffixed(
    library: LookupLibrary, lines: list[SymbolLine], version: int
) -> tuple[list[str], list[str]]:
    """Return the exported symbols that answer as names too, and those of them that lead elsewhere.

    A program that asks for cuMemAlloc_v2, not for cuMemAlloc, must get what dlsym would give it.
    """
    names = {line.name for line in lines}
    answered, elsewhere = [], []
    for symbol in sorted({line.symbol for line in lines} - names):
        address, _ = library.ask(Question(symbol, version, 0))
        if address is None:
            continue
        answered.append(symbol)
        if symbol not in library.symbols.get(address, set()):
            elsewhere.append(symbol)
    return answered, elsewhere


def main() -> None:
    lines = cuda_lines()
    library = LookupLibrary(sys.argv[1], lines)
    version = library.version
    asked = questions(lines, version)
    found = [difference(library, question, expected) for question, expected in asked.items()]
    answered = sum(library.ask(question)[0] is not None for question in asked)
    by_suffix, elsewhere = suffixed(library, lines, version)
    answer = {
        "version": version,
        "suffixed": by_suffix,
        "suffixed_elsewhere": elsewhere,
        "asked": len(asked),
        "answered": answered,
        "differences": [text for text in found if text],
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
