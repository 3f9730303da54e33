# SPDX-License-Identifier: Apache-2.0
"""A CUDA runtime, and what a program computes with, against the cards."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.compat import matrix
from gpushare.compat.facts import Card, Finding, Image, Machine, Runtime
from gpushare.compat.matrix import Architecture
from gpushare.compat.version import Version, minor, shown, whole

DROPPED = "card-dropped"
TOO_NEW = "card-too-new"
DRIVER = "driver-dropped-card"
PRECISION = "precision"


def judge(runtime: Runtime, machine: Machine) -> Iterator[Finding]:
    """Yield whether the runtime's toolkit makes programs for the cards."""
    for capability, card in _kinds(machine):
        known = matrix.ARCHITECTURES.get(capability)
        if known is None or not runtime.version:
            continue
        numbers = {"runtime": shown(runtime.version), "capability": shown(capability)}
        name = _name(card, known)
        if known.last is not None and runtime.version[0] > known.last:
            yield Finding(
                "block",
                DROPPED,
                f"{name} has compute capability {shown(capability)}, and CUDA {known.last} was the "
                f"last that makes programs for it: those of CUDA {runtime.version[0]} in "
                f"{runtime.where} fail with CUDA_ERROR_NO_BINARY_FOR_GPU",
                {**numbers, "last": str(known.last)},
                f"take an image of CUDA {known.last} or older, or another card",
            )
        elif len(runtime.version) > 1 and minor(runtime.version) < known.first:
            yield Finding(
                "warn",
                TOO_NEW,
                f"{name} has compute capability {shown(capability)}, and CUDA {shown(known.first)} "
                f"is the first that makes programs for it: those of CUDA {shown(runtime.version)} "
                f"in {runtime.where} run only where they bring PTX, and start slowly",
                {**numbers, "first": shown(known.first)},
                f"take an image of CUDA {shown(known.first)} or newer",
            )


def of_driver(machine: Machine) -> Iterator[Finding]:
    """Yield whether the driver still knows the cards."""
    for capability, card in _kinds(machine):
        known = matrix.ARCHITECTURES.get(capability)
        if known is None or known.last_driver is None or not machine.driver:
            continue
        if machine.driver[0] > known.last_driver:
            yield Finding(
                "block",
                DRIVER,
                f"driver {whole(machine.driver)} does not know {_name(card, known)} of compute "
                f"capability {shown(capability)}: {known.last_driver} is the last branch that does",
                {"driver": whole(machine.driver), "last branch": str(known.last_driver)},
                f"keep a driver of branch {known.last_driver}",
            )


def precision(image: Image, machine: Machine) -> Iterator[Finding]:
    """Yield what the program is told to compute with, and a card cannot."""
    for name, where in image.precisions:
        wanted = matrix.PRECISIONS[name]
        for capability, card in _kinds(machine):
            if capability >= wanted.capability:
                continue
            known = matrix.ARCHITECTURES.get(capability)
            yield Finding(
                "warn",
                PRECISION,
                f"{where} asks for {name}, which cards have from compute capability "
                f"{shown(wanted.capability)} on, and {_name(card, known)} has {shown(capability)}",
                {"capability": shown(capability), "wanted": shown(wanted.capability)},
                f"write {wanted.instead}, or take another card",
            )


def _kinds(machine: Machine) -> Iterator[tuple[Version, Card]]:
    """Yield each compute capability among the cards once, with a card that has it."""
    found: dict[Version, Card] = {}
    for card in machine.cards:
        if card.capability is not None:
            found.setdefault(card.capability, card)
    yield from found.items()


def _name(card: Card, known: Architecture | None) -> str:
    if card.name:
        return card.name
    return f"the card ({known.name})" if known else "the card"
