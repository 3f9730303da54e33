# SPDX-License-Identifier: Apache-2.0
"""Install what the demo, tests and checks need.

Usage: `python3 packaging/setup BUILD [--plan] [PART...]`
       `python3 packaging/setup BUILD --debian [ROOT...]`
       `python3 packaging/setup BUILD --helm`
       `python3 packaging/setup BUILD --admission`
       `python3 packaging/setup BUILD --remote-engine`
       `python3 packaging/setup BUILD --real-driver [RELEASE...]`

BUILD is the directory for everything that is built. The first form installs the programs that
`./dev test` needs, and those of PARTs (plan.py), for example `all`; --plan only prints the steps.
--debian creates the Debian roots of these names (debian.py), or all; it requires that everything
else is installed. --helm downloads helm and kubectl with the pip of the Python that runs this.
--admission builds Kubernetes' admission plugins (admission.py), unless they are there.
--remote-engine builds the engine of the tests of remote GPUs (remote_engine.py), likewise.
--real-driver downloads NVIDIA's user-space driver (nvidia_packages.py), all releases or those that
are named, and prints where they are.
Exit status: 0 everything is installed, 1 something cannot be installed, 3 root is required.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import admission
import apply
import debian
import helm
import machine
import nvidia_packages
import plan
import remote_engine


def main(argv: list[str]) -> int:
    """Plan the steps, and perform them unless only the plan is requested."""
    build = Path(argv[0]).resolve()
    tools, log = build / "tools", build / "log" / "setup.log"
    if "--debian" in argv[1:]:
        return _make_debian(build, argv[argv.index("--debian") + 1 :])
    if {"--helm", "--admission", "--remote-engine"} & {*argv[1:]}:
        return _make_program(build, argv[1])
    if "--real-driver" in argv[1:]:
        return _get_driver(build, argv[argv.index("--real-driver") + 1 :])
    parts = argv[1:]
    facts = machine.read(tools, parts)
    todo = plan.make(facts, machine.simulate, parts)
    if "--plan" in parts:
        _show(todo)
        return 0
    if todo and facts.apt and os.geteuid() != 0:
        return 3
    if todo.impossible and facts.apt:
        # A machine that never ran `apt-get update` has no package lists.
        apply.say("apt-get update")
        apply.update(log)
        todo = plan.make(machine.read(tools, parts), machine.simulate, parts)
    if todo.install:
        apply.say(f"apt-get --no-remove install {' '.join(todo.install)} (starts no service)")
        try:
            apply.install(todo.install, log)
        except apply.StepError:
            # Outdated lists name versions that the archive no longer has.
            apply.say("apt-get update, then retry")
            apply.update(log)
            apply.install(todo.install, log)
    if todo.unpack:
        apply.say(f"unpacking {' '.join(todo.unpack)} under {tools}: conflicts if installed")
        apply.unpack(todo.unpack, tools, log)
    for message in todo.impossible:
        apply.say(message)
    missing = apply.missing_after(tools, parts)
    if missing:
        apply.say(f"still missing: {' '.join(missing)}. Install them and run this again.")
    return 1 if missing else 0


def _make_debian(build: Path, names: list[str]) -> int:
    wanted = [recipe for recipe in debian.ROOTS if not names or recipe.name in names]
    missing = [recipe for recipe in wanted if not debian.is_made(build, recipe)]
    if missing and os.geteuid() != 0:
        return 3
    for recipe in missing:
        debian.make(build, recipe, build / "log" / "debian.log")
    return 0


def _make_program(build: Path, option: str) -> int:
    if option == "--helm" and not helm.is_made(build):
        helm.make(build, build / "log" / "helm.log", [sys.executable, "-m", "pip"])
    if option == "--admission" and not admission.is_made(build):
        admission.make(build, build / "log" / "admission.log")
    if option == "--remote-engine":
        remote_engine.make(build, build / "log" / "remote-engine.log")
    return 0


def _get_driver(build: Path, releases: list[str]) -> int:
    for release in releases or nvidia_packages.releases():
        folder = nvidia_packages.place(build, release)
        if not folder.exists():
            apply.say(f"NVIDIA's user-space driver {release}, from {nvidia_packages.POOL}")
            nvidia_packages.make(build, release)
        print(folder)
    return 0


def _show(todo: plan.Plan) -> None:
    print("install:", " ".join(todo.install) or "nothing")
    print("unpack under build/tools:", " ".join(todo.unpack) or "nothing")
    print("remove: nothing")
    for message in todo.impossible:
        print("impossible:", message)


if __name__ == "__main__":
    # A signal must not keep policy-rc.d from being restored: turn it into an exception.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        sys.exit(main(sys.argv[1:]))
    except apply.StepError as error:
        apply.say(str(error))
        sys.exit(1)
