# SPDX-License-Identifier: Apache-2.0
"""What MPS and MIG need of driver and cards, and that the one is not run on the other's parts."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.compat import matrix
from gpushare.compat.facts import Card, Finding, Machine
from gpushare.compat.version import Version, shown, whole

MPS_ON_MIG = "mps-on-mig"
MPS_CARD = "mps-card"
MPS_DRIVER = "mps-driver"
MPS_MEMORY = "mps-memory"
MIG_CARD = "mig-card"
MIG_DRIVER = "mig-driver"

_INSTEAD = "leave the backend out: the interposer holds the quota"


def judge(machine: Machine) -> Iterator[Finding]:
    """Yield what keeps the backend from holding a quota here."""
    if machine.backend == "mps":
        yield from _mps(machine)
    elif machine.backend == "mig":
        yield from _mig(machine)


def _mps(machine: Machine) -> Iterator[Finding]:
    for card in machine.cards:
        if card.mig:
            yield Finding(
                "block",
                MPS_ON_MIG,
                f"{_name(card)} is partitioned by MIG, and MPS is not run on its parts here",
                {},
                "turn MIG off on that card, or leave the backend out",
            )
        if card.capability is not None and card.capability < matrix.MPS_CAPABILITY:
            yield Finding(
                "block",
                MPS_CARD,
                f"{_name(card)} has compute capability {shown(card.capability)}, and clients of "
                "MPS have address spaces and limits of their own from "
                f"{shown(matrix.MPS_CAPABILITY)} on",
                _numbers(card.capability, matrix.MPS_CAPABILITY),
                _INSTEAD,
            )
    cuda = machine.cuda
    if cuda and cuda < matrix.MPS_CUDA:
        yield Finding(
            "block",
            MPS_DRIVER,
            f"MPS takes a driver of CUDA {shown(matrix.MPS_CUDA)} or newer, and this has "
            f"{shown(cuda)}",
            {"cuda": shown(cuda), "wanted": shown(matrix.MPS_CUDA)},
            _INSTEAD,
        )
    elif cuda and cuda < matrix.MPS_MEMORY_CUDA:
        yield Finding(
            "warn",
            MPS_MEMORY,
            "MPS limits the memory of a client from CUDA "
            f"{shown(matrix.MPS_MEMORY_CUDA)} on (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), and the "
            f"driver has {shown(cuda)}",
            {"cuda": shown(cuda), "wanted": shown(matrix.MPS_MEMORY_CUDA)},
            _INSTEAD,
        )


def _mig(machine: Machine) -> Iterator[Finding]:
    for card in machine.cards:
        if card.capability is None:
            continue
        least = matrix.MIG_DRIVERS.get(card.capability)
        if least is None:
            yield Finding(
                "block",
                MIG_CARD,
                f"{_name(card)} of compute capability {shown(card.capability)} cannot be "
                "partitioned: MIG is of cards with "
                + ", ".join(shown(version) for version in matrix.MIG_DRIVERS),
                {"capability": shown(card.capability)},
                _INSTEAD,
            )
        elif machine.driver and machine.driver < least:
            yield Finding(
                "block",
                MIG_DRIVER,
                f"MIG on cards of compute capability {shown(card.capability)} takes driver "
                f"{whole(least)} or newer, and this is {whole(machine.driver)}",
                {"driver": whole(machine.driver), "least driver": whole(least)},
                f"install driver {whole(least)}, or leave the backend out",
            )


def _numbers(has: Version, wanted: Version) -> dict[str, str]:
    return {"capability": shown(has), "wanted": shown(wanted)}


def _name(card: Card) -> str:
    return card.name or "the card"
