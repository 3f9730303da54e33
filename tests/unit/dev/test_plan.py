# SPDX-License-Identifier: Apache-2.0
"""What set-up does to a machine: it adds, and never removes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plan
import pytest

from .recorded import CONTAINERD_IO, DOCKER_CE

EVERYTHING = {need.program: f"/usr/bin/{need.program}" for need in plan.NEEDS}
KNOWN = frozenset(
    {
        *("gcc", "binutils", "busybox-static", "runc", "crun", "containerd", "docker.io"),
        *("docker-compose", "podman", "prometheus", "qemu-user", "debootstrap", "systemd"),
        *("checkpolicy", "lintian", "rpm", "rpmlint", "semodule-utils"),
        *("chromium", "chromium-driver", "fish", "openssl", "zsh"),
    }
)

Simulate = Callable[[Sequence[str]], "plan.Simulation | None"]


def facts_without(*programs: str, known: frozenset[str] = KNOWN) -> plan.Facts:
    there: dict[str, str | None] = {**EVERYTHING, **dict.fromkeys(programs)}
    return plan.Facts(there, frozenset(plan.FILES), known)


def apt(recorded: Mapping[tuple[str, ...], str]) -> Simulate:
    return lambda packages: plan.parse_simulation(recorded[tuple(packages)])


def adds_only(packages: Sequence[str]) -> plan.Simulation:
    return plan.Simulation(tuple(packages), ())


def removed_by(todo: plan.Plan, simulate: Simulate) -> set[str]:
    done = simulate(todo.install) if todo.install else None
    return set(done.removes) if done else set()


def test_a_machine_with_everything_is_left_alone() -> None:
    assert not plan.make(facts_without(), adds_only)


def test_a_bare_machine_gets_all_packages_by_one_apt_call() -> None:
    bare = plan.Facts(dict.fromkeys(EVERYTHING), frozenset(), KNOWN)
    todo = plan.make(bare, adds_only)
    assert set(todo.install) == {*KNOWN, *plan.FILES}
    assert not todo.unpack
    [message] = todo.impossible
    assert message.startswith("setpriv is missing and apt knows no package util-linux: ")


def test_beside_docker_ce_nothing_is_removed_and_its_programs_are_used() -> None:
    simulate = apt(DOCKER_CE)
    todo = plan.make(facts_without("crun"), simulate)
    assert todo == plan.Plan(install=("crun",))
    assert removed_by(todo, simulate) == set()


def test_a_docker_ce_without_its_daemon_on_path_is_not_replaced_by_docker_io() -> None:
    simulate = apt(DOCKER_CE)
    todo = plan.make(facts_without("dockerd"), simulate)
    assert todo == plan.Plan(unpack=("docker.io",))
    assert removed_by(todo, simulate) == set()


def test_beside_containerd_io_docker_is_unpacked_and_the_others_are_installed() -> None:
    simulate = apt(CONTAINERD_IO)
    todo = plan.make(facts_without("crun", "dockerd", "docker"), simulate)
    assert todo == plan.Plan(install=("crun",), unpack=("docker.io",))
    assert removed_by(todo, simulate) == set()


def test_an_unpacked_docker_installs_the_missing_dependencies() -> None:
    simulation = apt(CONTAINERD_IO)(["docker.io"])
    assert plan.unpacked_with("docker.io", simulation) == (
        "docker.io",
        "runc",
        "containerd",
        "tini",
    )


def test_a_compiler_that_would_remove_something_is_left_to_the_user() -> None:
    todo = plan.make(facts_without("gcc"), lambda _: plan.Simulation(("gcc",), ("gcc-snapshot",)))
    assert not todo.install
    assert not todo.unpack
    assert todo.impossible == (
        "package gcc would remove gcc-snapshot: install it manually if that is acceptable",
    )


def test_a_split_client_package_is_preferred_where_apt_knows_it() -> None:
    todo = plan.make(facts_without("docker", known=KNOWN | {"docker-cli"}), adds_only)
    assert todo.install == ("docker-cli",)


@pytest.mark.parametrize("program", sorted(EVERYTHING))
def test_without_apt_the_missing_program_and_its_purpose_are_named(program: str) -> None:
    there: dict[str, str | None] = {**EVERYTHING, program: None}
    todo = plan.make(plan.Facts(there, frozenset(), frozenset(), apt=False), adds_only)
    [message] = todo.impossible
    assert message.startswith(f"{program} is missing: it ")
    assert not todo.install
