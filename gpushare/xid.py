# SPDX-License-Identifier: Apache-2.0
"""XIDs: the errors that the driver reports for a card, and which of them are the card's fault.

Numbers and actions: NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors (the catalog's
immediate actions RESET_GPU, RESTART_BM, WORKFLOW_*). Other XIDs are caused by a program (13, 31,
43, 45, 68 and 94) or need no action: they are logged and counted.
"""

from __future__ import annotations

from typing import Final

LOST: Final = 79
_RESET: Final = "drain it, then nvidia-smi --gpu-reset, or reboot"
_BUS: Final = "reseat or replace it where a reboot does not bring it back"

#: XIDs that make a card unhealthy: the meaning, and the fix.
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

#: XIDs caused by a program; the card is healthy.
OF_A_PROGRAM: Final = {
    13: "an exception in a kernel",
    31: "a memory page fault",
    43: "a program's work was stopped",
    45: "work was cleaned up after a program",
    68: "an exception in the video decoder",
    94: "an ECC error that was contained: its program has ended",
}


def meaning(number: int) -> str:
    """Return the meaning of an XID in a few words."""
    if number in FATAL:
        return FATAL[number][0]
    return OF_A_PROGRAM.get(number, "see NVIDIA's list of XID errors")
