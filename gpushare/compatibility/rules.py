# SPDX-License-Identifier: Apache-2.0
"""The rules: driver and cards against a CUDA runtime, and precisions.

Pure, as all rules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    known = [cuda for cuda, own in TOOLKITS.items() if own[0] <= driver[0]]
    newest = max(own[0] for own in TOOLKITS.values())
    return max(known) if known and driver[0] <= newest else ()


def describe_driver(cuda: Version) -> str:
    """Return the driver that came with a release of CUDA, in words; "" if it is unknown."""
    own = TOOLKITS.get(major_minor(cuda))
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
    if wanted[0] > cuda[0] or (is_exact and wanted > cuda):
        finding = _newer_runtime(wanted, cuda, image, machine)
        yield finding
        if finding.level == "refuse":
            return  # nothing of it reaches the interposer
    elif cuda[0] - wanted[0] > MOST_MAJORS_APART:
        yield warn(
            MAJORS,
            f"CUDA {cuda_text(wanted)} in {runtime.where} is {cuda[0] - wanted[0]} major versions "
            f"behind the driver's CUDA {cuda_text(cuda)}: it loads, but the combination is rarely "
            "tested",
            f"use an image with CUDA {cuda[0] - MOST_MAJORS_APART} or {cuda[0]}",
        )
    else:
        yield ok(FITS, f"{where} runs on a driver with CUDA {cuda_text(cuda)}")
    if machine.backend == "interposer":
        yield from _check_baseline(where, wanted, cuda)


def check_cuda_compat(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield whether the container gets the image's own libcuda."""
    if not image.compat or not machine.driver or image.compat <= machine.driver:
        return
    own, driver = driver_text(image.compat), driver_text(machine.driver)
    what = f"cuda-compat {own} of the image is newer than the driver {driver}"
    other = next((card for card in machine.cards if not card.datacenter), None)
    if machine.cards and other is None:
        what = f"{what}: the container gets its libcuda"
        yield ok(PACKAGE, what)
        return
    name = other.name if other and other.name else "the card"
    known = other is not None and other.datacenter is False
    why = f"{name} is not one" if known else f"{name} may not be one"
    yield warn(
        PACKAGE,
        f"{what}, but is not used: it is for data center cards, and {why}",
        f"install driver {own} or newer if the image needs it",
    )


def _newer_runtime(
    wanted: Version, cuda: Version, image: Image, machine: Machine
) -> CompatibilityFinding:
    """Return the finding for a runtime that is newer than the driver."""
    least = MINOR_COMPATIBLE.get(wanted[0])
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
            return warn(MINOR, what, fix)
        rule = f"CUDA {wanted[0]}.x needs driver {driver_text(least)} or newer"
    return refuse(TOO_OLD, f"{what}, and {rule}: every call would fail", fix)


def _check_baseline(where: str, wanted: Version, cuda: Version) -> Iterator[CompatibilityFinding]:
    baseline = BASELINE_NEWEST
    if wanted <= baseline and cuda[0] <= baseline[0]:
        return
    newer = where if wanted > baseline else f"the driver's CUDA {cuda_text(cuda)}"
    yield warn(
        BASELINE,
        f"{newer} is newer than the interposer's {cuda_text(baseline)}: new calls bypass the "
        "interposer, and only the audit charges their memory, afterwards",
        "use a newer gpushare, or a whole card, which has no interposer",
    )


DROPPED = "card-dropped"
TOO_NEW = "card-too-new"
PRECISION = "precision"


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
            )
        elif len(runtime.version) > 1 and major_minor(runtime.version) < known.first:
            first = cuda_text(known.first)
            yield warn(
                TOO_NEW,
                f"{name}, which CUDA {first} was the first to build programs for: those of CUDA "
                f"{cuda} in {runtime.where} only run if they contain PTX, and start slowly",
                f"use an image with CUDA {first} or newer",
            )


def check_precisions(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield the precisions that the program is configured to use and that a card does not have."""
    for name, where in image.precisions:
        wanted = PRECISIONS[name]
        for capability, card, known in _distinct_cards(machine):
            if capability < wanted.capability:
                least, has = cuda_text(wanted.capability), cuda_text(capability)
                yield warn(
                    PRECISION,
                    f"{where} requests {name}, which needs compute capability {least}, and "
                    f"{_name(card, known)} has {has}",
                    f"use {wanted.instead}, or another card",
                )


def describe_precisions(image: Image) -> Iterator[str]:
    """Yield what the precisions that the program is configured to use need of any card."""
    for name, where in image.precisions:
        wanted = PRECISIONS[name]
        least = cuda_text(wanted.capability)
        yield (
            f"{where} requests {name}, which needs a card of compute capability {least} or newer; "
            f"on others, use {wanted.instead}"
        )


def _distinct_cards(
    machine: Machine,
) -> Iterator[tuple[Version, CardFacts, Architecture | None]]:
    """Yield each compute capability once, with a card that has it and its architecture."""
    distinct: dict[Version, CardFacts] = {}
    for card in machine.cards:
        if card.capability is not None:
            distinct.setdefault(card.capability, card)
    for capability, card in distinct.items():
        yield capability, card, ARCHITECTURES.get(capability)


def _name(card: CardFacts, known: Architecture | None) -> str:
    return card.name or (f"the card ({known.name})" if known else "the card")


# --- NVIDIA's tables of what fits what ---

# --- what goes with what: toolkits, drivers, cards. The figures of every rule, and nothing else ---
#
# docs/reference/compatibility.md is made of these tables. To add a release of CUDA: a row of
# TOOLKITS, and of ARCHITECTURES where it brought or dropped a card.
#
# Sources: NVIDIA, "CUDA Toolkit Release Notes", tables of drivers; "CUDA Compatibility", minor
# version compatibility; "CUDA Toolkit, Driver, and Architecture Matrix" of the data centre drivers.


#: The CUDA whose headers the interposer's table of calls is made of: the oldest and the newest.
#: libhook/table/headers.py has them, and a test holds that these are the same.
BASELINE_OLDEST: Final[Version] = (11, 8)
BASELINE_NEWEST: Final[Version] = (13, 5)

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
    """A family of cards: which toolkits make programs for it.

    `first` is the first toolkit, `last` the last major version of it; None: it goes on.
    """

    name: str
    first: Version
    last: int | None = None


#: By compute capability.
ARCHITECTURES: Final[Mapping[Version, Architecture]] = {
    (3,): Architecture("Kepler", (6,), 10),
    (3, 5): Architecture("Kepler", (6,), 11),
    (3, 7): Architecture("Kepler", (6, 5), 11),
    (5,): Architecture("Maxwell", (6, 5), 12),
    (5, 2): Architecture("Maxwell", (6, 5), 12),
    (5, 3): Architecture("Maxwell", (6, 5), 12),
    (6,): Architecture("Pascal", (8,), 12),
    (6, 1): Architecture("Pascal", (8,), 12),
    (7,): Architecture("Volta", (9,), 12),
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

# --- the facts that are evaluated, and the findings that result ---

#: (12, 4, 127), (550, 54, 15), (7, 5). Zeros at the end say nothing and are not kept, but of a
#: runtime: (12,) is one of which nothing finer is known, and (12, 0, 107) of 12.0.
Version: TypeAlias = "tuple[int, ...]"

_TEXT: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,5}", re.ASCII)


CompatibilityLevel: TypeAlias = Literal["ok", "warn", "refuse"]
Backend: TypeAlias = Literal["interposer", "exclusive"]
LEVELS: Final[tuple[CompatibilityLevel, ...]] = ("ok", "warn", "refuse")


@functools.lru_cache(maxsize=256)
def parse_version(text: str) -> Version | None:
    """Return the version that `text` is, None where it is none: `12.4.1`, `550.54.15`."""
    version = parse_exactly(text)
    return None if version is None else strip_zeros(version)


def parse_exactly(text: str) -> Version | None:
    """Return the same with the zeros at its end: of a runtime they say how much is known."""
    stripped = text.strip()
    if not _TEXT.fullmatch(stripped):
        return None
    return tuple(int(part) for part in stripped.split("."))


def strip_zeros(version: Version) -> Version:
    """Return `version` without zeros at its end, but for the first number: 12.0 is 12."""
    end = len(version)
    while end > 1 and version[end - 1] == 0:
        end -= 1
    return version[:end]


def major_minor(version: Version) -> Version:
    """Return major and minor alone, as a driver tells of itself: 12.4.127 is (12, 4)."""
    return strip_zeros(version[:2])


def cuda_text(version: Version) -> str:
    """Return a version of CUDA or of a card as it is written: 12.0, 12.4."""
    return ".".join(map(str, (*version, 0)[:2]))


def driver_text(version: Version) -> str:
    """Return all of a driver's version as NVIDIA writes it: 525.60.13, 580.65.06."""
    return ".".join(str(part) if place == 0 else f"{part:02}" for place, part in enumerate(version))


@dataclass(frozen=True)
class CardFacts:
    """A card that the container gets. What is not known is None, or empty.

    `brand` is as NVIDIA_REQUIRE_ variables name it: tesla, geforce, nvidia. `datacenter`:
    cuda-compat packages are made for it.
    """

    name: str = ""
    capability: Version | None = None
    brand: str = ""
    datacenter: bool | None = None


@dataclass(frozen=True)
class Machine:
    """The machine for an image. `driver` and `cuda` are the host's driver, empty: not known."""

    driver: Version = ()
    cuda: Version = ()
    cards: tuple[CardFacts, ...] = ()
    backend: Backend = "interposer"


@dataclass(frozen=True)
class Runtime:
    """A CUDA runtime of an image, and where it was found: a path, or a variable."""

    version: Version
    where: str


@dataclass(frozen=True)
class Image:
    """The facts of an image: declared by it, and contained in it.

    `runtimes` in the order in which a program finds them. `requires` are its NVIDIA_REQUIRE_
    variables with what they say; `disabled`: none is to be looked at. `compat` is the version of
    the libcuda that it brings. `precisions` are formats that it is told to compute with, and what
    says so.
    """

    runtimes: tuple[Runtime, ...] = ()
    requires: tuple[tuple[str, str], ...] = ()
    disabled: bool = False
    compat: Version = ()
    precisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CompatibilityFinding:
    """The result of one rule: `what` in a sentence, with its figures, and what to do."""

    level: CompatibilityLevel
    rule: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.what} ({self.rule})"
        return f"{text}; {self.fix}" if self.fix else text


def refuse(rule: str, what: str, fix: str = "") -> CompatibilityFinding:
    """Return a finding that refuses the image."""
    return CompatibilityFinding("refuse", rule, what, fix)


def warn(rule: str, what: str, fix: str = "") -> CompatibilityFinding:
    """Return a warning."""
    return CompatibilityFinding("warn", rule, what, fix)


def ok(rule: str, what: str) -> CompatibilityFinding:
    """Return that a rule holds."""
    return CompatibilityFinding("ok", rule, what)


def worst(findings: tuple[CompatibilityFinding, ...]) -> CompatibilityLevel:
    """Return the gravest level of `findings`, ok where there is none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
