# SPDX-License-Identifier: Apache-2.0
"""A CUDA runtime against the driver that it is to run on, and against the interposer between."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.compatibility import matrix
from gpushare.compatibility.facts import (
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
