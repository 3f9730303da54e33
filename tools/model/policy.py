# SPDX-License-Identifier: Apache-2.0
"""The compiled policy (scheduler/card.h), called as the scheduler's loop calls it."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "card",
    "charge",
    "contention",
    "credit",
    "gang",
    "lending",
    "pick",
    "progress",
    "virtual_time",
    "window",
)
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wmissing-prototypes", "-Werror")

OPEN, METERED, WINDOW, CLOSED = range(4)
FOREVER = (1 << 64) - 1


class ShareStruct(ctypes.Structure):
    """struct share."""

    _fields_ = [
        ("permille", ctypes.c_uint32),
        ("capped", ctypes.c_bool),
        ("online", ctypes.c_bool),
        ("priority", ctypes.c_uint32),
        ("gang", ctypes.c_uint32),
        ("measured", ctypes.c_bool),
        ("correction_permille", ctypes.c_int32),
    ]


class SeenStruct(ctypes.Structure):
    _fields_ = [
        ("at_ns", ctypes.c_uint64),
        ("busy_ns", ctypes.c_uint64),
        ("pending_ns", ctypes.c_uint64),
        ("progress_ns", ctypes.c_uint64),
        ("idle_ns", ctypes.c_uint64),
        ("submitted", ctypes.c_uint64),
        ("contexts", ctypes.c_uint32),
        ("waiting", ctypes.c_uint32),
    ]


class GateStruct(ctypes.Structure):
    _fields_ = [
        ("mode", ctypes.c_uint32),
        ("in_flight_max_ns", ctypes.c_uint64),
        ("timing_interval_ns", ctypes.c_uint64),
        ("wait_max_ns", ctypes.c_uint64),
        ("self_throttle_permille", ctypes.c_uint32),
        ("pieces_min", ctypes.c_uint32),
        ("charged_ns", ctypes.c_uint64),
        ("windows", ctypes.c_uint64),
        ("overruns", ctypes.c_uint64),
        ("demand_ns", ctypes.c_uint64),
        ("claimed_ns", ctypes.c_uint64),
        ("ungated_ns", ctypes.c_uint64),
        ("hung", ctypes.c_bool),
    ]


class GangPlace(ctypes.Structure):
    _fields_ = [("card", ctypes.c_void_p), ("tenant", ctypes.c_int)]


@functools.cache
def library() -> ctypes.CDLL:
    """Built with the repository's warnings; arithmetic that is undefined ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "card.so"
        include = ROOT / "libhook" / "include"
        checks = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
        options = ("-std=c11", *WARNINGS, *checks, "-O2", "-fPIC", "-shared", f"-I{include}")
        subprocess.run(
            [
                "gcc",
                *options,
                *(str(ROOT / "scheduler" / f"{name}.c") for name in SOURCES),
                "-o",
                str(built),
            ],
            check=True,
        )
        loaded = ctypes.CDLL(str(built))
    card, number, ns = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    share, seen = ctypes.POINTER(ShareStruct), ctypes.POINTER(SeenStruct)
    for name, result, arguments in (
        ("new", card, [ctypes.c_uint32, ctypes.c_uint32]),
        ("free", None, [card]),
        ("add", number, [card, share, ns]),
        ("change", None, [card, number, share, ns]),
        ("remove", None, [card, number, ns]),
        ("see", None, [card, number, seen]),
        ("decide", ns, [card, ns]),
        ("gate", ctypes.POINTER(GateStruct), [card, number]),
    ):
        function = getattr(loaded, f"card_{name}")
        function.restype = result
        function.argtypes = arguments
    loaded.gang_align.restype = ctypes.c_uint32
    loaded.gang_align.argtypes = [ctypes.POINTER(GangPlace), ctypes.c_uint32]
    return loaded


class CardPolicy:
    """One struct card."""

    def __init__(self, time_scale: int = 1, switch_ns: int = 160_000) -> None:
        self._library = library()
        self._card = self._library.card_new(time_scale, switch_ns)
        assert self._card

    def __del__(self) -> None:
        self._library.card_free(self._card)

    def add(self, share: ShareStruct, now: int) -> int:
        """The tenant's number; -1 where there is no room."""
        return int(self._library.card_add(self._card, share, now))

    def change(self, number: int, share: ShareStruct, now: int) -> None:
        self._library.card_change(self._card, number, share, now)

    def remove(self, number: int, now: int) -> None:
        self._library.card_remove(self._card, number, now)

    def see(self, number: int, seen: SeenStruct) -> None:
        self._library.card_see(self._card, number, seen)

    def decide(self, now: int) -> int:
        """When to look again."""
        return int(self._library.card_decide(self._card, now))

    def gate(self, number: int) -> GateStruct:
        """It stays where it is: what is decided later is seen in it."""
        gate: GateStruct = self._library.card_gate(self._card, number).contents
        return gate

    def place(self, number: int) -> GangPlace:
        """A tenant of this card, as gang_align gets it."""
        return GangPlace(self._card, number)


def align(places: list[GangPlace]) -> list[int]:
    """gang_align: of which places the cards are to be decided again."""
    changed = library().gang_align((GangPlace * len(places))(*places), len(places))
    return [at for at in range(len(places)) if changed >> at & 1]
