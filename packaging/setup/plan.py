# SPDX-License-Identifier: Apache-2.0
"""Plans how to install what a machine lacks, without removing anything.

All functions are pure: they turn facts into a plan. `machine.py` reads the facts, `apply.py`
performs the plan. Standard library only, because this runs before there is a virtual environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A program that the demo, the tests or the checks run.

    Attributes:
        program: the name to look up on PATH.
        packages: possible names of its Debian package; the first one that apt knows is used
            (Debian 13, for instance, has split docker's client from its daemon).
        purpose: what the program does, for the message.
        relocatable: whether it runs from any directory, so that it can be unpacked next to a
            package that conflicts with its own.
        part: the part of the set-up that installs it. Every set-up has `gate`, which is what
            `./dev test` needs; `all` has every part.
    """

    program: str
    packages: tuple[str, ...]
    purpose: str
    relocatable: bool = False
    part: str = "gate"


NEEDS = (
    Need("gcc", ("gcc",), "builds the C tests, with the sanitizers"),
    Need("objdump", ("binutils",), "checks which symbol versions the libraries need"),
    Need("busybox", ("busybox-static",), "is the content of the test images"),
    Need("setpriv", ("util-linux",), "runs tests as an unprivileged user"),
    Need("runc", ("runc",), "runs the containers", relocatable=True),
    Need("crun", ("crun",), "runs the containers too", relocatable=True),
    Need("containerd", ("containerd",), "runs containers for ctr and docker", relocatable=True),
    Need("ctr", ("containerd",), "is containerd's own client", relocatable=True),
    Need("dockerd", ("docker.io",), "runs containers for docker", relocatable=True),
    Need("docker", ("docker-cli", "docker.io"), "is the client that users run", relocatable=True),
    Need("docker-compose", ("docker-compose",), "runs the services of a compose file"),
    Need("podman", ("podman",), "runs containers without a daemon", relocatable=True),
    Need("qemu-aarch64", ("qemu-user",), "runs programs built for aarch64", part="aarch64"),
    Need("systemd-analyze", ("systemd",), "checks the units"),
    Need("openssl", ("openssl",), "makes the certificate of the stand-in API server"),
    Need("promtool", ("prometheus",), "checks the alert rules", True, part="all"),
    Need("chromium", ("chromium",), "opens the pages of the dashboard", part="browser"),
    Need("chromedriver", ("chromium-driver",), "controls chromium", part="browser"),
    Need("g++", ("g++",), "builds a remote engine", part="all"),
    Need("zsh", ("zsh",), "completes command lines in a test", part="all"),
    Need("fish", ("fish",), "completes command lines in a test", part="all"),
    Need("lintian", ("lintian",), "checks the Debian packages", part="all"),
    Need("rpmlint", ("rpmlint",), "checks the rpm", part="all"),
    Need("debootstrap", ("debootstrap",), "creates Debian roots", part="rpm"),
    Need("rpmbuild", ("rpm",), "builds the rpm", part="rpm"),
    Need("checkmodule", ("checkpolicy",), "compiles the SELinux policy module", part="rpm"),
    Need("semodule_package", ("semodule-utils",), "packs the SELinux policy module", part="rpm"),
)

#: Packages without a program on PATH, and their part. On Ubuntu, Debian's keys are in a package of
#: their own.
FILES = {
    "libc6-dev": "gate",
    "libc6-arm64-cross": "aarch64",
    "debian-archive-keyring": "rpm",
    "libnghttp2-dev": "all",
}


@dataclass(frozen=True)
class Simulation:
    """The result of `apt-get --simulate install`."""

    installs: tuple[str, ...]
    removes: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """The facts of a machine.

    Attributes:
        programs: the path of every needed program, or None if the machine lacks it.
        installed: names of the packages that dpkg lists as installed.
        known: names of the packages of NEEDS that apt can download.
        apt: whether the machine has apt.
    """

    programs: Mapping[str, str | None]
    installed: frozenset[str]
    known: frozenset[str]
    apt: bool = True


@dataclass(frozen=True)
class Plan:
    """The steps, in this order. Each can be empty.

    Attributes:
        install: packages for `apt-get --no-remove install`.
        unpack: packages to unpack under build/tools/, without involving dpkg.
        impossible: one message for each need that neither step can meet.
    """

    install: tuple[str, ...] = ()
    unpack: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether the plan has a step or a message."""
        return bool(self.install or self.unpack or self.impossible)


def needs(parts: Sequence[str]) -> list[Need]:
    """Return the needs of `gate` and of the other `parts`."""
    return [need for need in NEEDS if _is_wanted(need.part, parts)]


def _is_wanted(part: str, parts: Sequence[str]) -> bool:
    return part == "gate" or part in parts or "all" in parts


def make(
    facts: Facts,
    simulate: Callable[[Sequence[str]], Simulation | None],
    parts: Sequence[str] = ("all",),
) -> Plan:
    """Return how to meet every need of `parts` without removing a package.

    `simulate` returns what installing some packages would do, or None if apt refuses.
    An existing program is used, however it was installed.
    """
    missing = [need for need in needs(parts) if facts.programs.get(need.program) is None]
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
    files = [name for name, part in FILES.items() if _is_wanted(part, parts)]
    wanted += [name for name in files if name not in facts.installed]
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
            impossible.append(f"package {package} {why}: install it manually if that is acceptable")
    return Plan(tuple(install), tuple(unpack), tuple(impossible))


def unpacked_with(package: str, simulation: Simulation | None) -> tuple[str, ...]:
    """Return `package` and those of its dependencies that the machine lacks.

    These are the packages that apt would install with it, including those that replace another one
    (such as a runc from another package). Unpacking them only adds copies that nothing else uses.
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
