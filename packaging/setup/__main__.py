# SPDX-License-Identifier: Apache-2.0
"""Get what demo, tests and checks need: `python3 packaging/setup BUILD [--plan | --debian]`.

BUILD is the folder for everything that is built. With --plan nothing is done, only said; --debian
makes the Debian 13 whose engines are tested, for which the rest must be there.
Exit status: 0 all there, 1 something cannot be had, 3 it would take root.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import apply
import debian
import machine
import plan


def main(argv: list[str]) -> int:
    """Plan, and unless told otherwise do it."""
    build = Path(argv[0]).resolve()
    tools, log = build / "tools", build / "log" / "setup.log"
    if "--debian" in argv[1:]:
        return _make_debian(build)
    facts = machine.read(tools)
    todo = plan.make(facts, machine.simulate)
    if "--plan" in argv[1:]:
        _show(todo)
        return 0
    if todo and facts.apt and os.geteuid() != 0:
        return 3
    if todo.impossible and facts.apt:
        # A machine that never ran `apt-get update` knows no package at all.
        apply.say("apt-get update")
        apply.update(log)
        todo = plan.make(machine.read(tools), machine.simulate)
    if todo.install:
        apply.say(f"apt-get --no-remove install {' '.join(todo.install)} (no service is started)")
        try:
            apply.install(todo.install, log)
        except apply.SetupError:
            # Old lists name versions that the archive no longer has.
            apply.say("apt-get update, and once more")
            apply.update(log)
            apply.install(todo.install, log)
    if todo.unpack:
        apply.say(f"unpacking {' '.join(todo.unpack)} under {tools}: installed, it would conflict")
        apply.unpack(todo.unpack, tools, log)
    for message in todo.impossible:
        apply.say(message)
    missing = apply.missing_after(tools)
    if missing:
        apply.say(f"still missing: {' '.join(missing)}; install them and run this again")
    return 1 if missing else 0


def _make_debian(build: Path) -> int:
    if not debian.is_made(build):
        if os.geteuid() != 0:
            return 3
        debian.make(build, build / "log" / "debian.log")
    return 0


def _show(todo: plan.Plan) -> None:
    print("install:", " ".join(todo.install) or "nothing")
    print("unpack under build/tools:", " ".join(todo.unpack) or "nothing")
    print("remove: nothing, ever")
    for message in todo.impossible:
        print("impossible:", message)


if __name__ == "__main__":
    # A polite end must still restore policy-rc.d: turn the signal into an exception.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        sys.exit(main(sys.argv[1:]))
    except apply.SetupError as error:
        apply.say(str(error))
        sys.exit(1)
