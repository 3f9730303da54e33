# SPDX-License-Identifier: Apache-2.0
"""Whether an image runs on a machine: every rule there is, over facts that others have found.

Pure, and standard library only: a container's start waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpushare.compat import backend, cards, driver, require
from gpushare.compat.facts import Card, Finding, Image, Machine
from gpushare.compat.version import Version, shown, whole
from gpushare.quota.errors import printable, quoted

REQUIRE: Final = "require"
UNDECIDED: Final = "require-undecided"
DISABLED: Final = "require-disabled"
NO_RUNTIME: Final = "no-runtime"
OTHER: Final = "other-runtime"

_SHOWN: Final = 60

#: The rules by their ids, as docs/reference/compatibility.md has them.
RULES: Final = {
    driver.TOO_OLD: "The driver is of an older CUDA than the image's runtime, and the image has "
    "no cuda-compat that is used.",
    driver.MINOR: "The runtime is newer, but of the driver's major version: it runs with less.",
    driver.MAJORS: "The runtime is more than one major version behind the driver.",
    driver.BASELINE: "The runtime, or the driver's major version, is newer than the headers that "
    "the interposer was made of.",
    driver.PACKAGE: "The image's cuda-compat is newer than the driver: used on cards of data "
    "centres, and a warning on others.",
    driver.FITS: "The driver runs this runtime.",
    REQUIRE: "An NVIDIA_REQUIRE_ variable of the image does not hold.",
    UNDECIDED: "An NVIDIA_REQUIRE_ variable is not understood, or hangs on what is not known here.",
    DISABLED: "NVIDIA_DISABLE_REQUIRE: what the image requires is not looked at.",
    cards.DROPPED: "The runtime's toolkit makes no programs for the card any more.",
    cards.TOO_NEW: "The card is newer than the runtime's toolkit: programs need PTX.",
    cards.DRIVER: "The driver does not know the card any more.",
    cards.PRECISION: "The program is told to compute with what the card has not.",
    backend.MPS_ON_MIG: "MPS is asked for on a card under MIG.",
    backend.MPS_CARD: "MPS is asked for on a card before Volta.",
    backend.MPS_DRIVER: "MPS is asked for, and the driver is too old for it.",
    backend.MPS_MEMORY: "MPS is asked for, and the driver's has no limit of memory yet.",
    backend.MIG_CARD: "MIG is asked for on a card that cannot be partitioned.",
    backend.MIG_DRIVER: "MIG is asked for, and the driver is too old for it on this card.",
    OTHER: "The image has another runtime, which a program that brings its own paths finds first.",
    NO_RUNTIME: "No CUDA runtime was found: one that is linked into a program is not seen.",
}


@functools.lru_cache(maxsize=256)  # the same few images are started over and over
def judge(image: Image, machine: Machine) -> tuple[Finding, ...]:
    """Return what every rule says, the gravest first; one that is content says so with ok."""
    found = list(_said(image, machine))
    order = {"block": 0, "warn": 1, "ok": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.level]))


def _said(image: Image, machine: Machine) -> Iterator[Finding]:
    yield from _runtimes(image, machine)
    yield from driver.package(image, machine)
    yield from _requires(image, machine)
    yield from cards.of_driver(machine)
    yield from cards.precision(image, machine)
    yield from backend.judge(machine)


def _runtimes(image: Image, machine: Machine) -> Iterator[Finding]:
    """Yield what there is to say of the runtime that is found first, and less of the others."""
    if not image.runtimes:
        what = "no CUDA runtime was found in the image; one that is linked into a program is not"
        yield Finding("ok", NO_RUNTIME, f"{what} seen")
        return
    first = image.runtimes[0]
    yield from driver.judge(first, image, machine)
    yield from cards.judge(first, machine)
    seen = {first.version[:2]}
    for other in image.runtimes[1:]:
        if other.version[:2] in seen:
            continue
        seen.add(other.version[:2])
        ill = [
            finding
            for finding in (*driver.judge(other, image, machine), *cards.judge(other, machine))
            if finding.level != "ok"
        ]
        for finding in ill:
            # Whether any program uses it is not known: it refuses nobody.
            yield replace(finding, level="warn", what=f"beside the first runtime: {finding.what}")
        if not ill:
            yield Finding(
                "ok",
                OTHER,
                f"{other.where} is CUDA {shown(other.version)} too; {first.where} is found first",
                {"runtime": shown(other.version), "first": shown(first.version)},
            )


def _requires(image: Image, machine: Machine) -> Iterator[Finding]:
    if image.disabled:
        yield Finding("ok", DISABLED, f"{require.DISABLE} is set: no requirement was looked at")
        return
    cuda = driver.effective_cuda(image, machine)
    for variable, text in image.requires:
        name = printable(variable, _SHOWN)
        expression = require.parse_expression(text)
        for card in _kinds(machine):
            finding = _required(name, expression, _facts(machine, cuda, card), card)
            if finding is not None:
                yield finding
                break
        else:
            yield Finding("ok", REQUIRE, f"{name} holds: {quoted(text, _SHOWN)}")


def _required(
    name: str,
    expression: require.Expression,
    facts: dict[str, Version | str | None],
    card: Card,
) -> Finding | None:
    """Return what is wrong with one variable on one card, None where it holds."""
    held = require.holds(expression, facts)
    if held:
        return None
    told = printable(",".join(factor.text for factor in expression[0]))
    more = f" (or {len(expression) - 1} alternatives)" if len(expression) > 1 else ""
    here = ", ".join(f"{key} {_text(key, value)}" for key, value in facts.items() if value)
    numbers = {key: _text(key, value) for key, value in facts.items() if value}
    if held is None:
        ill = [factor for word in expression for factor in word if factor.problem]
        problems = [f"{quoted(one.text, _SHOWN)}: {printable(one.problem)}" for one in ill]
        unknown = [key for key, value in facts.items() if not value]
        why = "; ".join(problems[:2]) or f"{', '.join(unknown)} is not known here"
        return Finding(
            "warn", UNDECIDED, f"{name} cannot be judged: {why}", numbers, f"see {name} yourself"
        )
    where = f" on {card.name}" if card.name else ""
    return Finding(
        "block",
        REQUIRE,
        f"{name} asks for {told}{more}, which does not hold{where}: here is {here}",
        numbers,
        "update the driver, take an older tag of the image, or set NVIDIA_DISABLE_REQUIRE=1 where "
        "you know better",
    )


def _kinds(machine: Machine) -> tuple[Card, ...]:
    """Return the cards that differ in what can be required; one of which nothing is known else."""
    found = {(card.brand, card.capability): card for card in reversed(machine.cards)}
    return tuple(found.values()) or (Card(),)


def _facts(machine: Machine, cuda: Version, card: Card) -> dict[str, Version | str | None]:
    return {
        "cuda": cuda or None,
        "driver": machine.driver or None,
        "brand": card.brand or None,
        "arch": card.capability,
    }


def _text(key: str, value: Version | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return whole(value) if key == "driver" else shown(value)
