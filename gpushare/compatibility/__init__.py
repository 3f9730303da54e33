# SPDX-License-Identifier: Apache-2.0
"""Whether the CUDA of an image runs on a machine: its driver, its cards and its backend.

The rules are here and in `rules`, and are pure. `image` finds the facts of an image, `matrix` has
the figures. Standard library and gpushare.oci only, because a container's start waits for it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from gpushare.compatibility import rules
from gpushare.compatibility.rules import (
    CardFacts,
    CompatibilityFinding,
    Image,
    Machine,
    Version,
    cuda_text,
    driver_text,
    ok,
    parse_version,
    strip_zeros,
)
from gpushare.quota.errors import printable, quoted

REQUIRE: Final = "require"
UNDECIDED: Final = "require-undecided"
DISABLED: Final = "require-disabled"
NO_RUNTIME: Final = "no-runtime"
OTHER: Final = "other-runtime"

_SHOWN: Final = 60

#: The rules by their ids, as docs/reference/compatibility.md has them.
RULES: Final = {
    rules.TOO_OLD: "The CUDA of the driver is older than the image's runtime, and no "
    "cuda-compat of the image makes up for it.",
    rules.MINOR: "The runtime is newer than the driver, with the same major version: some "
    "features are missing.",
    rules.MAJORS: "The runtime is more than one major version behind the driver.",
    rules.BASELINE: "The runtime, or the driver's major version, is newer than the headers "
    "that the interposer was built from.",
    rules.PACKAGE: "The image's cuda-compat is newer than the driver: it is used on data "
    "center cards, and a warning on others.",
    rules.FITS: "The driver supports this runtime.",
    REQUIRE: "The machine does not meet an NVIDIA_REQUIRE_ variable of the image.",
    UNDECIDED: "An NVIDIA_REQUIRE_ variable is not understood, or depends on unknown facts.",
    DISABLED: "NVIDIA_DISABLE_REQUIRE is set: the requirements of the image are ignored.",
    rules.DROPPED: "The runtime's toolkit no longer builds programs for the card.",
    rules.TOO_NEW: "The card is newer than the runtime's toolkit: programs need PTX.",
    rules.PRECISION: "The program is configured to use a precision that the card does not have.",
    OTHER: "The image has another runtime, which programs with their own paths find first.",
    NO_RUNTIME: "No CUDA runtime was found: a statically linked one cannot be detected.",
}


@functools.lru_cache(maxsize=256)  # the same few images are started over and over
def evaluate_image(image: Image, machine: Machine) -> tuple[CompatibilityFinding, ...]:
    """Return the findings of every rule, the gravest first; a rule that is met yields ok."""
    findings = list(_findings(image, machine))
    order = {"refuse": 0, "warn": 1, "ok": 2}
    return tuple(sorted(findings, key=lambda finding: order[finding.level]))


def _findings(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    yield from _check_runtimes(image, machine)
    yield from rules.check_cuda_compat(image, machine)
    yield from _check_requirements(image, machine)
    yield from rules.check_precisions(image, machine)


def _check_runtimes(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    """Yield the findings for the first runtime, and weaker ones for the others."""
    if not image.runtimes:
        what = "no CUDA runtime in the image; a statically linked one is not detected"
        yield ok(NO_RUNTIME, what)
        return
    first = image.runtimes[0]
    yield from rules.check_runtime(first, image, machine)
    yield from rules.check_toolkit(first, machine)
    versions = {first.version[:2]}
    for other in image.runtimes[1:]:
        if other.version[:2] in versions:
            continue
        versions.add(other.version[:2])
        ill = [
            finding
            for finding in (
                *rules.check_runtime(other, image, machine),
                *rules.check_toolkit(other, machine),
            )
            if finding.level != "ok"
        ]
        for finding in ill:
            # It is unknown whether a program uses it, so it only warns.
            what = f"in addition to the first runtime: {finding.what}"
            yield replace(finding, level="warn", what=what)
        if not ill:
            version = cuda_text(other.version)
            what = f"{other.where} also is CUDA {version}; {first.where} is found first"
            yield ok(OTHER, what)


def _check_requirements(image: Image, machine: Machine) -> Iterator[CompatibilityFinding]:
    if image.disabled:
        yield ok(DISABLED, f"{DISABLE} is set: requirements are ignored")
        return
    cuda = rules.effective_cuda(image, machine)
    for variable, text in image.requires:
        name = printable(variable, _SHOWN)
        expression = parse_expression(text)
        for card in _distinct_cards(machine):
            finding = _check_requirement(name, expression, _facts(machine, cuda, card), card)
            if finding is not None:
                yield finding
                break
        else:
            yield ok(REQUIRE, f"{name} is met: {quoted(text, _SHOWN)}")


def _check_requirement(
    name: str,
    expression: Expression,
    facts: dict[str, Version | str | None],
    card: CardFacts,
) -> CompatibilityFinding | None:
    """Return the finding for one variable on one card, None if it is met."""
    is_met = holds(expression, facts)
    if is_met:
        return None
    text = printable(",".join(factor.text for factor in expression[0]))
    more = f" (or {len(expression) - 1} alternatives)" if len(expression) > 1 else ""
    here = ", ".join(f"{key} {_text(key, value)}" for key, value in facts.items() if value)
    if is_met is None:
        ill = [factor for word in expression for factor in word if factor.problem]
        problems = [f"{quoted(failed.text, _SHOWN)}: {printable(failed.problem)}" for failed in ill]
        unknown = [key for key, value in facts.items() if not value]
        why = "; ".join(problems[:2]) or f"{', '.join(unknown)} is unknown on this machine"
        what = f"{name} cannot be evaluated: {why}"
        return CompatibilityFinding("warn", UNDECIDED, what, f"check {name} yourself")
    where = f" on {card.name}" if card.name else ""
    return CompatibilityFinding(
        "refuse",
        REQUIRE,
        f"{name} requires {text}{more}, which is not met{where}: this machine has {here}",
        "update the driver, use an older tag of the image, or set NVIDIA_DISABLE_REQUIRE=1 to "
        "ignore it",
    )


def _distinct_cards(machine: Machine) -> tuple[CardFacts, ...]:
    """Return the cards that differ in what can be required; without any, one unknown card."""
    distinct = {(card.brand, card.capability): card for card in reversed(machine.cards)}
    return tuple(distinct.values()) or (CardFacts(),)


def _facts(machine: Machine, cuda: Version, card: CardFacts) -> dict[str, Version | str | None]:
    return {
        "cuda": cuda or None,
        "driver": machine.driver or None,
        "brand": card.brand or None,
        "arch": card.capability,
    }


def _text(key: str, value: Version | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return driver_text(value) if key == "driver" else cuda_text(value)


PREFIX: Final = "NVIDIA_REQUIRE_"
JETPACK: Final = "NVIDIA_REQUIRE_JETPACK"
DISABLE: Final = "NVIDIA_DISABLE_REQUIRE"
#: A longer one is no requirement, and would be read at every start of a container.
MOST_CHARACTERS: Final = 8192
MOST_REQUIREMENTS: Final = 16

#: Of each property what there is; None: not known.
Facts: TypeAlias = "Mapping[str, Version | str | None]"

_VERSIONS: Final = frozenset({"cuda", "driver", "arch"})
_NAMES: Final = frozenset({"brand"})
_FACTOR: Final = re.compile(r"([^<>=!]+)(>=|<=|!=|=|<|>)([^<>=!]+)")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
# strconv.ParseBool of Go, by which the toolkit reads the variable.
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


#: Alternatives, each of factors that hold together.
Expression: TypeAlias = "tuple[tuple[Factor, ...], ...]"


@dataclass(frozen=True)
class Factor:
    """One comparison; `problem` says why it cannot be made."""

    text: str
    name: str = ""
    operator: str = ""
    value: Version | str = ""
    problem: str = ""

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; None if that is unknown."""
        fact = None if self.problem else facts.get(self.name)
        if fact is None:
            return None
        return _OPERATORS[self.operator](fact, self.value)


def find_requirements(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the requirements among `variables`, sorted, and no more of them than is read.

    Verdicts are kept for the next start: what is in them must be small.
    """
    shortened = (
        (name[:MOST_CHARACTERS], text[: MOST_CHARACTERS + 1])
        for name, text in variables.items()
        if name.startswith(PREFIX) and not name.startswith(JETPACK) and text.strip()
    )
    return tuple(sorted(itertools.islice(shortened, MOST_REQUIREMENTS)))


def is_disabled(variables: Mapping[str, str]) -> bool:
    """Whether the image or its user disables the requirements."""
    return variables.get(DISABLE, "") in _TRUE


@functools.lru_cache(maxsize=64)  # the same few images are started over and over
def parse_expression(text: str) -> Expression:
    """Return what `text` says; what is not understood is a factor with a problem."""
    if len(text) > MOST_CHARACTERS:
        return ((Factor(text[:40], problem=f"is over {MOST_CHARACTERS} characters"),),)
    return tuple(
        tuple(_factor(factor) for factor in word.split(",") if factor)
        for word in text.split()
        if word.strip(",")
    )


def holds(expression: Expression, facts: Facts) -> bool | None:
    """Whether `expression` does, None where it hangs on what is not known or not understood."""
    if not expression:
        return True
    return _any(_all(factor.holds(facts) for factor in word) for word in expression)


def _factor(text: str) -> Factor:
    match = _FACTOR.fullmatch(text)
    if match is None:
        return Factor(text, problem="is not PROPERTY, an operator and a value")
    name, compared, value = match[1].strip().lower(), match[2], match[3].strip()
    if name in _NAMES:
        if compared not in {"=", "!="}:
            return Factor(text, name, problem=f"{name} is a name; use = or !=")
        return Factor(text, name, compared, value.lower())
    if name not in _VERSIONS:
        return Factor(text, name, problem=f"unknown property {name}")
    version = parse_version(value.removeprefix("v"))
    if version is None:
        return Factor(text, name, problem=f"{value} is not a version")
    return Factor(text, name, compared, strip_zeros(version))


def _all(answers: Iterable[bool | None]) -> bool | None:
    known: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        known = known and answer
    return known


def _any(answers: Iterable[bool | None]) -> bool | None:
    known: bool | None = False
    for answer in answers:
        if answer:
            return True
        known = None if answer is None else known
    return known
