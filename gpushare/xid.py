# SPDX-License-Identifier: Apache-2.0
"""XIDs: what the driver reports of a card, and which of them are the card's fault.

Numbers and actions: NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors (the catalog's
immediate actions RESET_GPU, RESTART_BM, WORKFLOW_*). Whatever is not here is a program's doing, as
13, 31, 43, 45, 68 and 94 are, or says nothing that asks for an act: it is logged and counted.
"""

from __future__ import annotations

from typing import Final

LOST: Final = 79
_RESET: Final = "drain it, then nvidia-smi --gpu-reset, or reboot"
_BUS: Final = "reseat or replace it where a reboot does not bring it back"

#: What makes a card unfit, and what to do.
FATAL: Final = {
    46: ("it stopped processing", _RESET),
    48: ("an ECC error of two bits", _RESET),
    62: ("its microcontroller halted", _RESET),
    64: ("a row of its memory could not be remapped", _RESET),
    LOST: ("it has fallen off the bus", _BUS),
    95: ("an ECC error that was not contained", _RESET),
    109: ("a context switch did not end", _RESET),
    119: ("its GSP does not answer", _RESET),
    120: ("an error in its GSP", _RESET),
    136: ("its link could not be trained", _RESET),
    140: ("an ECC error that was not recovered", _RESET),
    143: ("it could not be initialised", _RESET),
}

#: What a program does to itself; the card is well.
OF_A_PROGRAM: Final = {
    13: "an exception in a kernel",
    31: "a memory page fault",
    43: "a program's work was stopped",
    45: "work was cleaned up after a program",
    68: "an exception in the video decoder",
    94: "an ECC error that was contained: its program has ended",
}


def meaning(number: int) -> str:
    """Return what an XID means in a few words."""
    if number in FATAL:
        return FATAL[number][0]
    return OF_A_PROGRAM.get(number, "see NVIDIA's list of XID errors")
