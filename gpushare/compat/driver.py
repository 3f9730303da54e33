# SPDX-License-Identifier: Apache-2.0
"""A CUDA runtime against the driver that it is to run on, and against the interposer between."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.compat import matrix
from gpushare.compat.facts import Finding, Image, Machine, Runtime
from gpushare.compat.version import Version, minor, shown, whole

TOO_OLD = "driver-too-old"
MINOR = "minor-version"
MAJORS = "majors-apart"
BASELINE = "interposer-baseline"
FITS = "driver"
PACKAGE = "cuda-compat"


def effective_cuda(image: Image, machine: Machine) -> Version:
    """Return the CUDA of the libcuda that the container gets: the driver's, or the image's own.

    An image's cuda-compat counts where the create would take it: newer than the driver, and every
    card one of data centres (gpushare/oci/compat.py).
    """
    own = cuda_of(image.compat)
    if not own or not machine.driver or image.compat <= machine.driver:
        return machine.cuda
    if not machine.cards or not all(card.datacenter for card in machine.cards):
        return machine.cuda
    return max(own, machine.cuda)


def cuda_of(driver: Version) -> Version:
    """Return the newest CUDA that a driver of this version can do, () where it is not known.

    It is that of the newest toolkit whose own driver is of this branch, or an older one.
    """
    if not driver:
        return ()
    known = [cuda for cuda, own in matrix.TOOLKITS.items() if own[0] <= driver[0]]
    newest = max(own[0] for own in matrix.TOOLKITS.values())
    return max(known) if known and driver[0] <= newest else ()


def driver_for(cuda: Version) -> str:
    """Return the driver that came with a release of CUDA, in words; "" where it is not known."""
    own = matrix.TOOLKITS.get(minor(cuda))
    return f"driver {whole(own)} or newer" if own else ""


def judge(runtime: Runtime, image: Image, machine: Machine) -> Iterator[Finding]:
    """Yield what there is to say of one runtime."""
    cuda = effective_cuda(image, machine)
    if not cuda or not runtime.version:
        return
    wanted = minor(runtime.version)
    numbers = _numbers(runtime, image, machine, cuda)
    # Of some runtimes only the major version is in the name: nothing finer is said of those.
    fine = len(runtime.version) > 1
    if wanted[0] > cuda[0] or (fine and wanted > cuda):
        told = _newer(wanted, cuda, numbers, image, machine)
        yield told
        if told.level == "block":
            return  # nothing of it reaches the interposer
    elif cuda[0] - wanted[0] > matrix.MOST_MAJORS_APART:
        yield Finding(
            "warn",
            MAJORS,
            f"CUDA {shown(wanted)} in {runtime.where} is {cuda[0] - wanted[0]} major versions "
            f"behind the driver's CUDA {shown(cuda)}: it loads, and hardly anybody tries the two "
            "together",
            numbers,
            f"take an image of CUDA {cuda[0] - matrix.MOST_MAJORS_APART} or {cuda[0]}",
        )
    else:
        yield Finding(
            "ok",
            FITS,
            f"CUDA {_shown(runtime)} in {runtime.where} runs on a driver of CUDA {shown(cuda)}",
            numbers,
        )
    if machine.backend == "interposer":
        yield from _interposer(runtime, cuda, machine, numbers)


def package(image: Image, machine: Machine) -> Iterator[Finding]:
    """Yield what becomes of the image's own libcuda."""
    if not image.compat or not machine.driver or image.compat <= machine.driver:
        return
    own, than = whole(image.compat), whole(machine.driver)
    numbers = {"compat": own, "driver": than}
    said = f"cuda-compat {own} of the image is newer than the driver {than}"
    other = next((card for card in machine.cards if not card.datacenter), None)
    if machine.cards and other is None:
        yield Finding("ok", PACKAGE, f"{said}: its libcuda is the container's", numbers)
        return
    name = other.name if other and other.name else "the card"
    known = other is not None and other.datacenter is False
    why = f"{name} is none" if known else f"whether {name} is one is not known"
    yield Finding(
        "warn",
        PACKAGE,
        f"{said}, and is not used: it is for cards of data centres, and {why}",
        numbers,
        f"install driver {own} or newer, where it is needed",
    )


def _newer(
    wanted: Version, cuda: Version, numbers: dict[str, str], image: Image, machine: Machine
) -> Finding:
    """Return what a runtime is told that is newer than the driver."""
    least = matrix.MINOR_COMPATIBLE.get(wanted[0])
    drivers = [version for version in (machine.driver, image.compat) if version]
    fits = wanted[0] == cuda[0] and least is not None
    if fits and (not drivers or max(drivers) >= (least or ())):
        return Finding(
            "warn",
            MINOR,
            f"CUDA {shown(wanted)} is newer than the driver's CUDA {shown(cuda)}: of the same "
            "major version it runs, but without what is new in it, and PTX of its compiler fails "
            "with CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            numbers,
            _either(driver_for(wanted), f"an image of CUDA {shown(cuda)} or older"),
        )
    if fits and least is not None:
        rule = f"CUDA {wanted[0]}.x takes driver {whole(least)} or newer"
        numbers = {**numbers, "least driver": whole(least)}
    else:
        rule = "a runtime runs on a driver of its own CUDA or of a newer one"
    return Finding(
        "block",
        TOO_OLD,
        f"CUDA {shown(wanted)} is newer than the driver's CUDA {shown(cuda)}, and {rule}: every "
        "call would fail",
        numbers,
        _either(driver_for(wanted), f"an image of CUDA {shown(cuda)} or older"),
    )


def _interposer(
    runtime: Runtime, cuda: Version, machine: Machine, numbers: dict[str, str]
) -> Iterator[Finding]:
    baseline = machine.baseline
    wanted = minor(runtime.version)
    numbers = {**numbers, "baseline": shown(baseline)}
    if wanted > baseline:
        what = f"CUDA {_shown(runtime)} in {runtime.where}"
    elif cuda[0] > baseline[0]:
        what = f"the driver's CUDA {shown(cuda)}"
    else:
        return
    yield Finding(
        "warn",
        BASELINE,
        f"{what} is newer than the interposer's {shown(baseline)}: a call that is new in it goes "
        "past the interposer, and its memory is charged by the audit, afterwards",
        numbers,
        "take a newer gpushare, or a whole card, which has no interposer",
    )


def _numbers(runtime: Runtime, image: Image, machine: Machine, cuda: Version) -> dict[str, str]:
    found = {"runtime": _shown(runtime), "cuda": shown(cuda)}
    if machine.driver:
        found["driver"] = whole(machine.driver)
    if cuda != machine.cuda:
        found["compat"] = whole(image.compat)
    return found


def _shown(runtime: Runtime) -> str:
    """Return the version, and of a name that has the major alone no more than that."""
    if len(runtime.version) == 1:
        return f"{runtime.version[0]}.x"
    return shown(runtime.version)


def _either(first: str, second: str) -> str:
    return f"install {first}, or take {second}" if first else f"take {second}"
