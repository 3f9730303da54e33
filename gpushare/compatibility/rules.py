# SPDX-License-Identifier: Apache-2.0
"""The rules: driver and cards against a CUDA runtime, precisions, and the backends MPS and MIG.

Pure, as all rules.
"""

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
    ok,
    refuse,
    warn,
)
from gpushare.compatibility.matrix import Architecture

TOO_OLD = "driver-too-old"
MINOR = "minor-version"
MAJORS = "majors-apart"
BASELINE = "interposer-baseline"
FITS = "driver"
PACKAGE = "cuda-compat"


def effective_cuda(image: Image, machine: Machine) -> Version:
    """Return the CUDA of the libcuda that the container gets: the driver's, or the image's own.

    An image's cuda-compat counts where the create would take it: newer than the driver, and every
    card one of data centres (gpushare/oci/cuda_compat.py).
    """
    own = newest_cuda(image.compat)
    if not own or not machine.driver or image.compat <= machine.driver:
        return machine.cuda
    if not machine.cards or not all(card.datacenter for card in machine.cards):
        return machine.cuda
    return max(own, machine.cuda)


def newest_cuda(driver: Version) -> Version:
    """Return the newest CUDA that a driver of this version can do, () where it is not known.

    It is that of the newest toolkit whose own driver is of this branch, or an older one.
    """
    if not driver:
        return ()
    known = [cuda for cuda, own in matrix.TOOLKITS.items() if own[0] <= driver[0]]
    newest = max(own[0] for own in matrix.TOOLKITS.values())
    return max(known) if known and driver[0] <= newest else ()


def describe_driver(cuda: Version) -> str:
    """Return the driver that came with a release of CUDA, in words; "" if it is unknown."""
    own = matrix.TOOLKITS.get(major_minor(cuda))
    return f"driver {driver_text(own)} or newer" if own else ""


def check_runtime(
    runtime: Runtime, image: Image, machine: Machine
) -> Iterator[CompatibilityFinding]:
    """Yield whether the driver and the interposer serve one runtime."""
    cuda = effective_cuda(image, machine)
    if not cuda or not runtime.version:
        return
    wanted = major_minor(runtime.version)
    # Some runtimes have only the major version in their name: no more is known of those.
    is_exact = len(runtime.version) > 1
    text = cuda_text(wanted) if is_exact else f"{wanted[0]}.x"
    where = f"CUDA {text} in {runtime.where}"
    numbers = {"runtime": text, "cuda": cuda_text(cuda)}
    if machine.driver:
        numbers["driver"] = driver_text(machine.driver)
    if cuda != machine.cuda:
        numbers["compat"] = driver_text(image.compat)
    if wanted[0] > cuda[0] or (is_exact and wanted > cuda):
        finding = _newer_runtime(wanted, cuda, numbers, image, machine)
        yield finding
        if finding.level == "refuse":
            return  # nothing of it reaches the interposer
    elif cuda[0] - wanted[0] > matrix.MOST_MAJORS_APART:
        yield warn(
            MAJORS,
            f"CUDA {cuda_text(wanted)} in {runtime.where} is {cuda[0] - wanted[0]} major versions "
            f"behind the driver's CUDA {cuda_text(cuda)}: it loads, but the combination is rarely "
            "tested",
            f"use an image with CUDA {cuda[0] - matrix.MOST_MAJORS_APART} or {cuda[0]}",
            **numbers,
        )
    else:
        yield ok(FITS, f"{where} runs on a driver with CUDA {cuda_text(cuda)}", **numbers)
    if machine.backend == "interposer":
        yield from _check_baseline(where, wanted, cuda, machine.baseline, numbers)


def check_cuda_compat(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield whether the container gets the image's own libcuda."""
    if not image.compat or not machine.driver or image.compat <= machine.driver:
        return
    own, driver = driver_text(image.compat), driver_text(machine.driver)
    what = f"cuda-compat {own} of the image is newer than the driver {driver}"
    other = next((card for card in machine.cards if not card.datacenter), None)
    if machine.cards and other is None:
        what = f"{what}: the container gets its libcuda"
        yield ok(PACKAGE, what, compat=own, driver=driver)
        return
    name = other.name if other and other.name else "the card"
    known = other is not None and other.datacenter is False
    why = f"{name} is not one" if known else f"{name} may not be one"
    yield warn(
        PACKAGE,
        f"{what}, but is not used: it is for data center cards, and {why}",
        f"install driver {own} or newer if the image needs it",
        compat=own,
        driver=driver,
    )


def _newer_runtime(
    wanted: Version, cuda: Version, numbers: dict[str, str], image: Image, machine: Machine
) -> CompatibilityFinding:
    """Return the finding for a runtime that is newer than the driver."""
    least = matrix.MINOR_COMPATIBLE.get(wanted[0])
    drivers = [version for version in (machine.driver, image.compat) if version]
    what = f"CUDA {cuda_text(wanted)} is newer than the driver's CUDA {cuda_text(cuda)}"
    fix = f"use an image with CUDA {cuda_text(cuda)} or older"
    if known := describe_driver(wanted):
        fix = f"install {known}, or {fix}"
    rule = "a runtime needs a driver with its own CUDA or a newer one"
    if wanted[0] == cuda[0] and least is not None:
        if not drivers or max(drivers) >= least:
            what += (
                ": it runs, because the major version is the same, but without its new features, "
                "and PTX of its compiler fails with CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
            )
            return warn(MINOR, what, fix, **numbers)
        rule = f"CUDA {wanted[0]}.x needs driver {driver_text(least)} or newer"
        numbers = {**numbers, "least driver": driver_text(least)}
    return refuse(TOO_OLD, f"{what}, and {rule}: every call would fail", fix, **numbers)


def _check_baseline(
    where: str, wanted: Version, cuda: Version, baseline: Version, numbers: dict[str, str]
) -> Iterator[CompatibilityFinding]:
    if wanted <= baseline and cuda[0] <= baseline[0]:
        return
    newer = where if wanted > baseline else f"the driver's CUDA {cuda_text(cuda)}"
    yield warn(
        BASELINE,
        f"{newer} is newer than the interposer's {cuda_text(baseline)}: new calls bypass the "
        "interposer, and only the audit charges their memory, afterwards",
        "use a newer gpushare, or a whole card, which has no interposer",
        **numbers,
        baseline=cuda_text(baseline),
    )


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


def describe_precisions(image: Image) -> Iterator[str]:
    """Yield what the precisions that the program is configured to use need of any card."""
    for name, where in image.precisions:
        wanted = matrix.PRECISIONS[name]
        least = cuda_text(wanted.capability)
        yield (
            f"{where} requests {name}, which needs a card of compute capability {least} or newer; "
            f"on others, use {wanted.instead}"
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
