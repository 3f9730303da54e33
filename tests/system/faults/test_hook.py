# SPDX-License-Identifier: Apache-2.0
"""A hook that fails: the container does not start, and nothing stays reserved."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.system.hostile.container import RuntimeContainer, RuntimeNamespace

from .conftest import events
from .neighbour import working

_HOOKS = {
    "is missing": None,
    "fails": "#!/bin/sh\nexit 1\n",
    "hangs": "#!/bin/sh\nexec sleep 1000\n",  # the runtime ends it when its time is over
}


def hurry(container: RuntimeContainer) -> None:
    """Have the runtime give its hooks a second, where we would give them a minute."""
    folder = Path(container.through.program[-1]).parent
    file = folder / "gpushare-runtime.conf"
    settings = dict(line.split(" = ") for line in file.read_text().splitlines())
    hurried = folder / "hurried"
    spec = shlex.quote(str(container.path / "config.json"))
    edit = f'sed -i \'s/"timeout": *[0-9]*/"timeout": 1/g\' {spec}'
    hurried.write_text(f'#!/bin/sh\n{edit}\nexec {settings["runtime"]} "$@"\n')
    hurried.chmod(0o755)
    file.write_text(f"runtime = {hurried}\nsocket = {settings['socket']}\n")


@pytest.mark.parametrize("binds", ["hook"])
@pytest.mark.parametrize("what", _HOOKS)
def test_a_hook_that_cannot_bind_costs_nothing(place: RuntimeNamespace, what: str) -> None:
    container = RuntimeContainer(place, "runc", quota={"memory": "80GiB"})
    hurry(container)
    folder = place.stack.installation.libraries.resolve().parent / "bin"
    hook, script = folder / "gpushare-hook", _HOOKS[what]
    with working(place) as neighbour:
        whole = hook.rename(folder / "gpushare-hook.whole")
        if script is not None:
            hook.write_text(script)
            hook.chmod(0o755)
        assert container.create() != 0
        whole.rename(hook)
        container.remove()
        assert container.create() == 0, "the next one waits for nothing of it"
        container.remove()
        neighbour.assert_undisturbed()
    place.assert_empty()
    released = [line["reason"] for line in events(place, "tenant-released")]
    assert released[0] == "its runtime has ended"
