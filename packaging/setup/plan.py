# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks, and the gentlest way to get it.

Everything here is pure: facts in, a plan out. `machine.py` reads the facts, `apply.py` carries the
plan out. Only the standard library: this runs before there is a virtual environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A program that the demo, the tests or the checks run.

    Attributes:
        program: the name that is looked up on PATH.
        packages: names of the Debian package that has it, the first that apt knows is taken
            (Debian 13 split docker's client from its daemon, for instance).
        purpose: what is lost without it, for the message.
        relocatable: runs from any folder, so that it can be unpacked beside a package that
            conflicts with its own.
    """

    program: str
    packages: tuple[str, ...]
    purpose: str
    relocatable: bool = False


NEEDS = (
    Need("gcc", ("gcc",), "builds the C tests, with the sanitizers"),
    Need("objdump", ("binutils",), "checks which symbol versions the libraries need"),
    Need("busybox", ("busybox-static",), "is the content of the test images"),
    Need("setpriv", ("util-linux",), "runs tests as a user who is not root"),
    Need("runc", ("runc",), "runs the containers", relocatable=True),
    Need("crun", ("crun",), "runs the containers too", relocatable=True),
    Need("containerd", ("containerd",), "runs containers for ctr and docker", relocatable=True),
    Need("ctr", ("containerd",), "is containerd's own client", relocatable=True),
    Need("dockerd", ("docker.io",), "runs containers for docker", relocatable=True),
    Need("docker", ("docker-cli", "docker.io"), "is what users type", relocatable=True),
    Need("docker-compose", ("docker-compose",), "runs the services of a compose file"),
    Need("podman", ("podman",), "runs containers without a daemon", relocatable=True),
    Need("qemu-aarch64", ("qemu-user",), "runs what is built for aarch64"),
    Need("systemd-analyze", ("systemd",), "checks the units"),
    Need("prometheus", ("prometheus",), "reads what gpushare-exporter serves", relocatable=True),
    Need("promtool", ("prometheus",), "checks the alert rules", relocatable=True),
    Need("debootstrap", ("debootstrap",), "makes the Debian 13 whose engines are tested"),
)

# Files that no program on PATH stands for; Ubuntu has Debian's keys in a package of their own.
FILES = ("libc6-dev", "libc6-arm64-cross", "debian-archive-keyring")


@dataclass(frozen=True)
class Simulation:
    """What `apt-get --simulate install` says it would do."""

    installs: tuple[str, ...]
    removes: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What is known of a machine.

    Attributes:
        programs: every needed program's path, or None where the machine has none.
        installed: names of the packages that dpkg holds as installed.
        known: names of those packages of NEEDS that apt could fetch.
        apt: whether the machine has apt at all.
    """

    programs: Mapping[str, str | None]
    installed: frozenset[str]
    known: frozenset[str]
    apt: bool = True


@dataclass(frozen=True)
class Plan:
    """What to do, in this order; every part may be empty.

    Attributes:
        install: packages for `apt-get --no-remove install`.
        unpack: packages to unpack under build/tools/, which dpkg never hears of.
        impossible: one message per need that can be met in neither way.
    """

    install: tuple[str, ...] = ()
    unpack: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do or to say."""
        return bool(self.install or self.unpack or self.impossible)


def make(facts: Facts, simulate: Callable[[Sequence[str]], Simulation | None]) -> Plan:
    """Return how to meet every need of `facts` without removing a package.

    `simulate` answers what installing some packages would do, or None where apt refuses.
    A program that is there already is used, whoever put it there.
    """
    missing = [need for need in NEEDS if facts.programs.get(need.program) is None]
    if not facts.apt:
        return Plan(
            impossible=tuple(f"{need.program} is missing: it {need.purpose}" for need in missing)
        )
    needs_of: dict[str, list[Need]] = {}
    impossible = []
    for need in missing:
        package = next((name for name in need.packages if name in facts.known), None)
        if package is None:
            impossible.append(
                f"{need.program} is missing and apt knows no package "
                f"{' or '.join(need.packages)}: it {need.purpose}"
            )
        else:
            needs_of.setdefault(package, []).append(need)
    wanted = list(needs_of)
    wanted += [name for name in FILES if name not in facts.installed]
    if not wanted:
        return Plan(impossible=tuple(impossible))
    together = simulate(wanted)
    if together is not None and not together.removes:
        return Plan(install=tuple(wanted), impossible=tuple(impossible))

    install, unpack = [], []
    for package in wanted:
        alone = simulate([package])
        if alone is not None and not alone.removes:
            install.append(package)
        elif all(need.relocatable for need in needs_of.get(package, ())) and package in needs_of:
            unpack.append(package)
        else:
            why = f"would remove {', '.join(alone.removes)}" if alone else "cannot be installed"
            impossible.append(f"package {package} {why}: install it by hand if you want that")
    return Plan(tuple(install), tuple(unpack), tuple(impossible))


def unpacked_with(package: str, simulation: Simulation | None) -> tuple[str, ...]:
    """Return `package` and those of its dependencies that the machine lacks.

    They are what apt would install along with it. What apt would replace (a runc by another
    package's runc) is among them too; unpacked, it only adds a copy that nothing else uses.
    """
    dependencies = simulation.installs if simulation else ()
    return (package, *(name for name in dependencies if name != package))


def parse_simulation(output: str) -> Simulation:
    """Read the `Inst` and `Remv` lines of `apt-get --simulate`."""
    verbs: dict[str, list[str]] = {"Inst": [], "Remv": []}
    for line in output.splitlines():
        verb, _, rest = line.partition(" ")
        if verb in verbs and rest:
            verbs[verb].append(rest.split()[0])
    return Simulation(tuple(verbs["Inst"]), tuple(verbs["Remv"]))
