# SPDX-License-Identifier: Apache-2.0
"""What goes with what: toolkits, drivers, cards. The figures of every rule, and nothing else.

docs/reference/compatibility.md is made of these tables. To add a release of CUDA: a row of
TOOLKITS, and of ARCHITECTURES where it brought or dropped a card.

Sources: NVIDIA, "CUDA Toolkit Release Notes", tables of drivers; "CUDA Compatibility", minor
version compatibility; "CUDA Toolkit, Driver, and Architecture Matrix" of the data centre drivers;
"MIG User Guide", deployment considerations; "Multi-Process Service".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushare.compatibility.facts import Version

#: The CUDA whose headers the interposer's table of calls is made of: the oldest and the newest.
#: libhook/table/headers.py has them, and a test holds that these are the same.
BASELINE_OLDEST: Final[Version] = (11, 8)
BASELINE: Final[Version] = (13, 5)

#: Of each release of the toolkit the driver that came with it, on Linux x86_64: the first that
#: can do all of it. Of 13.4 only the branch.
TOOLKITS: Final[Mapping[Version, Version]] = {
    (9,): (384, 81),
    (9, 1): (390, 46),
    (9, 2): (396, 26),
    (10,): (410, 48),
    (10, 1): (418, 39),
    (10, 2): (440, 33),
    (11,): (450, 36, 6),
    (11, 1): (455, 23),
    (11, 2): (460, 27, 3),
    (11, 3): (465, 19, 1),
    (11, 4): (470, 42, 1),
    (11, 5): (495, 29, 5),
    (11, 6): (510, 39, 1),
    (11, 7): (515, 43, 4),
    (11, 8): (520, 61, 5),
    (12,): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13,): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
    (13, 3): (610, 43, 2),
    (13, 4): (615,),
}

#: Of each major release the oldest driver that runs any of its minor releases, with what the
#: driver itself has. Before 11 there was no such thing: each release needed its own driver.
MINOR_COMPATIBLE: Final[Mapping[int, Version]] = {
    11: (450, 80, 2),
    12: (525, 60, 13),
    13: (580, 65, 6),
}

#: So far behind a driver's major version a runtime is not tried by anybody any more.
MOST_MAJORS_APART: Final = 1


@dataclass(frozen=True)
class Architecture:
    """A family of cards: which toolkits make programs for it, and which drivers know it.

    `first` is the first toolkit, `last` the last major version of it, `last_driver` the last
    branch; None: it goes on.
    """

    name: str
    first: Version
    last: int | None = None
    last_driver: int | None = None


#: By compute capability.
ARCHITECTURES: Final[Mapping[Version, Architecture]] = {
    (3,): Architecture("Kepler", (6,), 10, 470),
    (3, 5): Architecture("Kepler", (6,), 11, 470),
    (3, 7): Architecture("Kepler", (6, 5), 11, 470),
    (5,): Architecture("Maxwell", (6, 5), 12, 580),
    (5, 2): Architecture("Maxwell", (6, 5), 12, 580),
    (5, 3): Architecture("Maxwell", (6, 5), 12, 580),
    (6,): Architecture("Pascal", (8,), 12, 580),
    (6, 1): Architecture("Pascal", (8,), 12, 580),
    (7,): Architecture("Volta", (9,), 12, 580),
    (7, 5): Architecture("Turing", (10,)),
    (8,): Architecture("Ampere", (11,)),
    (8, 6): Architecture("Ampere", (11, 1)),
    (8, 9): Architecture("Ada", (11, 8)),
    (9,): Architecture("Hopper", (11, 8)),
    (10,): Architecture("Blackwell", (12, 8)),
    (10, 3): Architecture("Blackwell", (12, 9)),
    (12,): Architecture("Blackwell", (12, 8)),
    (12, 1): Architecture("Blackwell", (12, 9)),
}


@dataclass(frozen=True)
class Precision:
    """A format of numbers: from which compute capability a card computes with it, and what else."""

    capability: Version
    instead: str


#: Programs refuse to start on a card without what they were told to compute with.
PRECISIONS: Final[Mapping[str, Precision]] = {
    "float16": Precision((5, 3), "--dtype=float32"),
    "bfloat16": Precision((8,), "--dtype=half"),
    "tf32": Precision((8,), "--dtype=half"),
    "int8": Precision((6, 1), "--dtype=half"),
    "fp8": Precision((8, 9), "--dtype=half, or a quantization that the card has"),
    "fp4": Precision((10,), "--quantization=fp8"),
}

#: MPS: the cards whose clients have address spaces and limits of their own (Volta and newer), the
#: CUDA of the driver from which it is run here, and from which it has a limit of memory.
MPS_CAPABILITY: Final[Version] = (7,)
MPS_CUDA: Final[Version] = (11, 4)
MPS_MEMORY_CUDA: Final[Version] = (11, 5)

#: MIG: the oldest driver, by the compute capability of cards that may have partitions.
MIG_DRIVERS: Final[Mapping[Version, Version]] = {
    (8,): (450, 80, 2),
    (9,): (525, 85, 12),
    (10,): (570, 133, 20),
    (10, 3): (580, 82, 7),
    (12,): (575, 51, 3),
}
