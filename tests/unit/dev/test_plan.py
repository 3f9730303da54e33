# SPDX-License-Identifier: Apache-2.0
"""What set-up does to a machine: it adds, and never removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plan
import pytest

from .recorded import CONTAINERD_IO

EVERYTHING = {need.program: f"/usr/bin/{need.program}" for need in plan.NEEDS}
KNOWN = frozenset(need.packages[-1] for need in plan.NEEDS)
#: What only `./dev test --all` or another command installs.
ON_DEMAND = {"qemu-user", "prometheus", "chromium", "debootstrap", "lintian", "rpm", "fish", "zsh"}

Simulate = Callable[[Sequence[str]], "plan.Simulation | None"]


def facts_without(*programs: str) -> plan.Facts:
    there: dict[str, str | None] = {**EVERYTHING, **dict.fromkeys(programs)}
    return plan.Facts(there, frozenset(plan.FILES), KNOWN)


def apt(recorded: Mapping[tuple[str, ...], str]) -> Simulate:
    return lambda packages: plan.parse_simulation(recorded[tuple(packages)])


def adds_only(packages: Sequence[str]) -> plan.Simulation:
    return plan.Simulation(tuple(packages), ())


@pytest.mark.parametrize("parts", [(), ("rpm",), ("all",)])
def test_a_bare_machine_gets_the_packages_of_the_parts_by_one_apt_call(
    parts: tuple[str, ...],
) -> None:
    bare = plan.Facts(dict.fromkeys(EVERYTHING), frozenset(), KNOWN)
    todo = plan.make(bare, adds_only, parts)
    wanted = {"all": ON_DEMAND, "rpm": {"debootstrap", "rpm"}}.get("".join(parts), set())
    assert ON_DEMAND & set(todo.install) == wanted
    assert {"runc", "libc6-dev"} <= set(todo.install)
    assert not todo.unpack + todo.impossible
    assert not plan.make(facts_without(), adds_only, parts)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        # Its own programs are used.
        (["crun"], plan.Plan(install=("crun",))),
        # Without its daemon on PATH, it is not replaced by docker.io.
        (["dockerd"], plan.Plan(unpack=("docker.io",))),
        (["crun", "dockerd", "docker"], plan.Plan(install=("crun",), unpack=("docker.io",))),
    ],
)
def test_beside_dockers_own_packages_nothing_is_removed(
    missing: list[str], expected: plan.Plan
) -> None:
    simulate = apt(CONTAINERD_IO)
    assert plan.make(facts_without(*missing), simulate) == expected
    done = simulate(expected.install) if expected.install else None
    assert not (done and done.removes)


def test_a_compiler_that_would_remove_something_is_left_to_the_user() -> None:
    todo = plan.make(facts_without("gcc"), lambda _: plan.Simulation(("gcc",), ("gcc-snapshot",)))
    message = "package gcc would remove gcc-snapshot: install it manually if that is acceptable"
    assert todo == plan.Plan(impossible=(message,))
