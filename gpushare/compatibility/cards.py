# SPDX-License-Identifier: Apache-2.0
"""The cards: against a CUDA runtime, requested precisions, and the backends MPS and MIG."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.compatibility import matrix
from gpushare.compatibility.facts import (
    CardFacts,
    CompatibilityFinding,
    Image,
    Machine,
    Runtime,
    Version,
    cuda_text,
    driver_text,
    major_minor,
    refuse,
    warn,
)
from gpushare.compatibility.matrix import Architecture

DROPPED = "card-dropped"
TOO_NEW = "card-too-new"
DRIVER = "driver-dropped-card"
PRECISION = "precision"
MPS_ON_MIG = "mps-on-mig"
MPS_CARD = "mps-card"
MPS_DRIVER = "mps-driver"
MPS_MEMORY = "mps-memory"
MIG_CARD = "mig-card"
MIG_DRIVER = "mig-driver"

_OMIT = "omit the backend: the interposer enforces the quota"


def check_toolkit(runtime: Runtime, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield the cards that the runtime's toolkit does not build programs for."""
    if not runtime.version:
        return
    cuda, major = cuda_text(runtime.version), runtime.version[0]
    for capability, card, known in _distinct_cards(machine):
        if known is None:
            continue
        has = cuda_text(capability)
        name = f"{_name(card, known)} has compute capability {has}"
        if known.last is not None and major > known.last:
            yield refuse(
                DROPPED,
                f"{name}, which CUDA {known.last} was the last to build programs for: those of "
                f"CUDA {major} in {runtime.where} fail with CUDA_ERROR_NO_BINARY_FOR_GPU",
                f"use an image with CUDA {known.last} or older, or another card",
                runtime=cuda,
                capability=has,
                last=str(known.last),
            )
        elif len(runtime.version) > 1 and major_minor(runtime.version) < known.first:
            first = cuda_text(known.first)
            yield warn(
                TOO_NEW,
                f"{name}, which CUDA {first} was the first to build programs for: those of CUDA "
                f"{cuda} in {runtime.where} only run if they contain PTX, and start slowly",
                f"use an image with CUDA {first} or newer",
                runtime=cuda,
                capability=has,
                first=first,
            )


def check_driver_support(machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield the cards that the driver no longer supports."""
    for capability, card, known in _distinct_cards(machine):
        last = None if known is None else known.last_driver
        if last is not None and machine.driver and machine.driver[0] > last:
            driver = driver_text(machine.driver)
            yield refuse(
                DRIVER,
                f"driver {driver} does not support {_name(card, known)} with compute capability "
                f"{cuda_text(capability)}: the last branch that does is {last}",
                f"keep a driver of branch {last}",
                driver=driver,
                last_branch=str(last),
            )


def check_precisions(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield the precisions that the program is configured to use and that a card does not have."""
    for name, where in image.precisions:
        wanted = matrix.PRECISIONS[name]
        for capability, card, known in _distinct_cards(machine):
            if capability < wanted.capability:
                least, has = cuda_text(wanted.capability), cuda_text(capability)
                yield warn(
                    PRECISION,
                    f"{where} requests {name}, which needs compute capability {least}, and "
                    f"{_name(card, known)} has {has}",
                    f"use {wanted.instead}, or another card",
                    capability=has,
                    wanted=least,
                )


def check_backend(machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield why the backend cannot enforce a quota on this machine."""
    if machine.backend == "mps":
        yield from _check_mps(machine)
    elif machine.backend == "mig":
        yield from _check_mig(machine)


def _check_mps(machine: Machine) -> Iterator[CompatibilityFinding]:
    for card in machine.cards:
        name = card.name or "the card"
        if card.mig:
            yield refuse(
                MPS_ON_MIG,
                f"{name} is partitioned by MIG, and gpushare does not run MPS on MIG instances",
                "disable MIG on that card, or omit the backend",
            )
        if card.capability is not None and card.capability < matrix.MPS_CAPABILITY:
            has, wanted = cuda_text(card.capability), cuda_text(matrix.MPS_CAPABILITY)
            yield refuse(
                MPS_CARD,
                f"{name} has compute capability {has}, and MPS isolates and limits its clients "
                f"only from {wanted} on",
                _OMIT,
                capability=has,
                wanted=wanted,
            )
    cuda = machine.cuda
    if cuda and cuda < matrix.MPS_CUDA:
        has, wanted = cuda_text(cuda), cuda_text(matrix.MPS_CUDA)
        what = f"MPS needs a driver with CUDA {wanted} or newer, and this one has {has}"
        yield refuse(MPS_DRIVER, what, _OMIT, cuda=has, wanted=wanted)
    elif cuda and cuda < matrix.MPS_MEMORY_CUDA:
        has, wanted = cuda_text(cuda), cuda_text(matrix.MPS_MEMORY_CUDA)
        what = (
            f"MPS limits a client's memory (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) from CUDA {wanted} "
            f"on, and this driver has {has}"
        )
        yield warn(MPS_MEMORY, what, _OMIT, cuda=has, wanted=wanted)


def _check_mig(machine: Machine) -> Iterator[CompatibilityFinding]:
    for card in machine.cards:
        if card.capability is None:
            continue
        has = cuda_text(card.capability)
        least = matrix.MIG_DRIVERS.get(card.capability)
        if least is None:
            supported = ", ".join(cuda_text(version) for version in matrix.MIG_DRIVERS)
            what = (
                f"{card.name or 'the card'} has compute capability {has} and does not support "
                f"MIG, which needs one of {supported}"
            )
            yield refuse(MIG_CARD, what, _OMIT, capability=has)
        elif machine.driver and machine.driver < least:
            driver, wanted = driver_text(machine.driver), driver_text(least)
            yield refuse(
                MIG_DRIVER,
                f"MIG on cards with compute capability {has} needs driver {wanted} or newer, and "
                f"this is {driver}",
                f"install driver {wanted}, or omit the backend",
                driver=driver,
                least_driver=wanted,
            )


def _distinct_cards(
    machine: Machine,
) -> Iterator[tuple[Version, CardFacts, Architecture | None]]:
    """Yield each compute capability once, with a card that has it and its architecture."""
    found: dict[Version, CardFacts] = {}
    for card in machine.cards:
        if card.capability is not None:
            found.setdefault(card.capability, card)
    for capability, card in found.items():
        yield capability, card, matrix.ARCHITECTURES.get(capability)


def _name(card: CardFacts, known: Architecture | None) -> str:
    return card.name or (f"the card ({known.name})" if known else "the card")
