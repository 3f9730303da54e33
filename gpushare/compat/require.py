# SPDX-License-Identifier: Apache-2.0
"""What an image requires of driver and card: the expressions of its NVIDIA_REQUIRE_ variables.

`cuda>=12.4 brand=tesla,driver>=535,driver<536`: words are alternatives, the parts of a word hold
together. cuda, driver and arch are versions, brand is a name. All variables have to hold.
NVIDIA_REQUIRE_JETPACK is of boards that are not judged here.
Source: what NVIDIA's container toolkit and its libnvidia-container take.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gpushare.compat.version import Version, exact, parse

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


@dataclass(frozen=True)
class Factor:
    """One comparison; `problem` says why it cannot be made."""

    text: str
    name: str = ""
    operator: str = ""
    value: Version | str = ""
    problem: str = ""

    def holds(self, facts: Facts) -> bool | None:
        """Whether it holds; None where that cannot be told."""
        fact = None if self.problem else facts.get(self.name)
        if fact is None:
            return None
        return _OPERATORS[self.operator](fact, self.value)


#: Alternatives, each of factors that hold together.
Expression: TypeAlias = "tuple[tuple[Factor, ...], ...]"


def of_env(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the requirements among `variables`, sorted, and no more of them than is read.

    Verdicts are kept for the next start: what is in them must be small.
    """
    found = (
        (name[:MOST_CHARACTERS], text[: MOST_CHARACTERS + 1])
        for name, text in variables.items()
        if name.startswith(PREFIX) and not name.startswith(JETPACK) and text.strip()
    )
    return tuple(sorted(itertools.islice(found, MOST_REQUIREMENTS)))


def is_disabled(variables: Mapping[str, str]) -> bool:
    """Whether the image, or who starts it, wants none of them looked at."""
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
            return Factor(text, name, problem=f"{name} is a name: only = and != compare it")
        return Factor(text, name, compared, value.lower())
    if name not in _VERSIONS:
        return Factor(text, name, problem=f"there is no property {name}")
    version = parse(value.removeprefix("v"))
    if version is None:
        return Factor(text, name, problem=f"{value} is no version")
    return Factor(text, name, compared, exact(version))


def _all(found: Iterable[bool | None]) -> bool | None:
    known: bool | None = True
    for one in found:
        if one is False:
            return False
        known = known and one
    return known


def _any(found: Iterable[bool | None]) -> bool | None:
    known: bool | None = False
    for one in found:
        if one:
            return True
        known = None if one is None else known
    return known
