# SPDX-License-Identifier: Apache-2.0
"""Memory limits that NVML sets on cgroups, and which the driver itself holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import simulator

from .conftest import CLIENTS, SECONDS, ClientProcess, SimulatorMachine, wait_until

MIB = 1 << 20
GIB = 1 << 30
NONE = 0xFFFFFFFFFFFFFFFF
CONTEXT = simulator.load_profile("h200")["context_bytes"]

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, OPERATING_SYSTEM = (
    *(0, 2, 3, 4),
    *(6, 17),
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="limits need root, and so do cgroups")


def _hierarchies() -> list[Path]:
    """Return where a cgroup can be made: once for each version that this machine has."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    by_kind: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(maxsplit=2)
        usable = kind == "cgroup2" or "memory" in options.split(",")
        if kind.startswith("cgroup") and usable and fields.split()[3] == "/":
            by_kind[kind] = Path(fields.split()[4])
    return list(by_kind.values())


def _remove(group: Path) -> None:
    wait_until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@contextmanager
def made_in(hierarchy: Path, *names: str) -> Iterator[Path]:
    """Make a cgroup, and remove it and what is beneath it."""
    group = hierarchy / f"gpushare-test-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        for directory in [*(group / name for name in names), group]:
            if directory.exists():
                _remove(directory)


@pytest.fixture(params=_hierarchies(), ids=lambda path: path.name)
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a cgroup of each version in turn."""
    with made_in(request.param, "inner") as directory:
        yield directory


@pytest.fixture
def machine(simulate: Callable[..., SimulatorMachine]) -> SimulatorMachine:
    """Return a machine with one H200 under a driver that has limits."""
    return simulate(driver_version="615.10", cuda_version="13.5")


def _within(group: Path, *command: str) -> list[str]:
    """Return a command that runs another in a cgroup."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]


def _set(machine: SimulatorMachine, group: Path | str, hard: int, soft: int = 0) -> int:
    return int(machine.ask("limits.py", "set", str(group), str(soft), str(hard)))


def _get(machine: SimulatorMachine, group: Path | str) -> list[int]:
    """Return the status, the soft and hard limits and what is used."""
    answer: list[int] = machine.ask("limits.py", "get", str(group))
    return answer


def _enter(client: ClientProcess) -> None:
    assert client.ask("init") == 0
    assert client.ask("context") == 0


def test_a_process_in_the_cgroup_is_refused_above_the_limit(
    machine: SimulatorMachine, group: Path
) -> None:
    assert _set(machine, group, CONTEXT + 2 * GIB) == SUCCESS
    with machine.started("tenant.py", under=_within(group)) as tenant:
        _enter(tenant)
        result, pointer = tenant.ask(f"alloc {2 * GIB}")
        assert result == 0
        assert tenant.ask("alloc 1")[0] == 2
        assert _get(machine, group) == [SUCCESS, 0, CONTEXT + 2 * GIB, CONTEXT + 2 * GIB]
        assert tenant.ask(f"free {pointer}") == 0
        assert tenant.ask(f"alloc {2 * GIB + 1}")[0] == 2
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 0


def test_the_limit_is_for_all_processes_together_and_for_no_other(
    machine: SimulatorMachine, group: Path
) -> None:
    (group / "inner").mkdir()
    assert _set(machine, group, 2 * CONTEXT + 4 * GIB) == SUCCESS
    with (
        machine.started("tenant.py", under=_within(group)) as one,
        machine.started("tenant.py", under=_within(group / "inner")) as beneath,
        machine.started("tenant.py") as outside,
    ):
        for client in (one, beneath, outside):
            _enter(client)
        assert one.ask(f"alloc {3 * GIB}")[0] == 0
        assert beneath.ask(f"alloc {2 * GIB}")[0] == 2
        assert beneath.ask(f"alloc {GIB}")[0] == 0
        assert outside.ask(f"alloc {20 * GIB}")[0] == 0
        assert _get(machine, group)[3] == 2 * CONTEXT + 4 * GIB
        one.kill()
        assert beneath.ask(f"alloc {3 * GIB}")[0] == 0
        assert _get(machine, group)[3] == CONTEXT + 4 * GIB


def test_a_context_that_does_not_fit_is_refused(machine: SimulatorMachine, group: Path) -> None:
    assert _set(machine, group, CONTEXT - 1) == SUCCESS
    with machine.started("tenant.py", under=_within(group)) as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 2


def test_a_limit_set_later_counts_memory_in_use(machine: SimulatorMachine, group: Path) -> None:
    with (
        machine.started("tenant.py", under=_within(group)) as idle,
        machine.started("tenant.py", under=_within(group)) as tenant,
    ):
        _enter(idle)
        _enter(tenant)
        assert idle.ask(f"alloc {4 * GIB}")[0] == 0
        assert _get(machine, group)[0] == NOT_FOUND
        assert _set(machine, group, 2 * CONTEXT + 5 * GIB, soft=GIB) == SUCCESS
        assert _get(machine, group) == [
            *(SUCCESS, GIB, 2 * CONTEXT + 5 * GIB),
            2 * CONTEXT + 4 * GIB,
        ]
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 2
        assert tenant.ask(f"alloc {GIB}")[0] == 0


def test_a_limit_is_raised_lowered_and_cleared(machine: SimulatorMachine, group: Path) -> None:
    assert _set(machine, group, CONTEXT + GIB) == SUCCESS
    with machine.started("tenant.py", under=_within(group)) as tenant:
        _enter(tenant)
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 2
        assert _set(machine, group, CONTEXT + 2 * GIB) == SUCCESS
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 0
        assert _set(machine, group, CONTEXT) == SUCCESS  # below what is held: nothing is lost
        assert tenant.ask("alloc 1")[0] == 2
        assert _set(machine, group, NONE) == SUCCESS
        assert tenant.ask(f"alloc {8 * GIB}")[0] == 0
        assert _get(machine, group)[:3] == [SUCCESS, 0, NONE]


def test_a_process_that_moves_away_is_no_longer_under_the_limit(
    machine: SimulatorMachine, group: Path
) -> None:
    assert _set(machine, group, CONTEXT + GIB) == SUCCESS
    with machine.started("tenant.py", under=_within(group)) as tenant:
        _enter(tenant)
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 2
        (group.parent / "cgroup.procs").write_text(str(tenant.ask("pid")))
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 0
        assert _get(machine, group)[3] == 0


def test_with_the_cgroup_its_limit_goes(machine: SimulatorMachine, group: Path) -> None:
    assert _set(machine, group, CONTEXT) == SUCCESS
    group.rmdir()
    assert _get(machine, group)[0] == OPERATING_SYSTEM
    group.mkdir()
    assert _get(machine, group)[0] == NOT_FOUND
    with machine.started("tenant.py", under=_within(group)) as tenant:
        _enter(tenant)
        assert tenant.ask(f"alloc {GIB}")[0] == 0


def test_an_invalid_limit_is_reported(
    machine: SimulatorMachine, group: Path, tmp_path: Path
) -> None:
    total = simulator.load_profile("h200")["memory_bytes"]
    assert _set(machine, group, total) == SUCCESS
    assert _set(machine, group, total + 1) == INVALID_ARGUMENT
    assert _set(machine, group, GIB, soft=GIB + 1) == INVALID_ARGUMENT
    assert _set(machine, group, NONE, soft=total + 1) == INVALID_ARGUMENT
    assert _set(machine, "relative/path", GIB) == INVALID_ARGUMENT
    assert _set(machine, group / "missing", GIB) == OPERATING_SYSTEM
    assert _set(machine, tmp_path, GIB) == OPERATING_SYSTEM
    assert _get(machine, group)[:3] == [SUCCESS, 0, total]


def test_only_an_administrator_sets_a_limit_and_anybody_reads_it(
    machine: SimulatorMachine, group: Path
) -> None:
    assert _set(machine, group, GIB) == SUCCESS
    unprivileged = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"]

    def ask(*arguments: str) -> object:
        client = [sys.executable, str(CLIENTS / "limits.py"), *arguments]
        return json.loads(machine.run(*unprivileged, *client))

    assert ask("set", str(group), "0", str(2 * GIB)) == NO_PERMISSION
    assert ask("get", str(group)) == [SUCCESS, 0, GIB, 0]


@pytest.mark.parametrize("driver", ["580.65.06", "610.99"])
def test_an_older_driver_has_no_limits(
    simulate: Callable[..., SimulatorMachine], group: Path, driver: str
) -> None:
    machine = simulate(driver_version=driver, cuda_version="13.5")
    assert _set(machine, group, GIB) == NOT_SUPPORTED
    assert _get(machine, group)[0] == NOT_SUPPORTED


@contextmanager
def _container(
    machine: SimulatorMachine, folder: Path, group: str, **changes: bool
) -> Iterator[ClientProcess]:
    """Run the tenant in a runc container that shows the host's files, in the cgroup `group`."""
    if not shutil.which("runc"):
        pytest.fail("runc is not installed: run ./dev setup")
    bundle = folder / f"bundle-{'-'.join(changes) or 'plain'}"
    bundle.mkdir()
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    (bundle / "rootfs").mkdir()
    shown = [path for path in Path("/").iterdir() if path.name not in ("proc", "dev", "sys")]
    for path in shown:
        if path.is_symlink():
            (bundle / "rootfs" / path.name).symlink_to(path.readlink())
    binds = [
        {"destination": str(path), "source": str(path), "type": "bind", "options": ["rbind", "ro"]}
        for path in shown
        if path.is_dir() and not path.is_symlink()
    ]
    spec["process"] |= {
        "terminal": False,
        "args": [sys.executable, str(CLIENTS / "tenant.py")],
        "env": [f"{name}={value}" for name, value in machine.env.items() if "\n" not in value],
    }
    spec["linux"]["cgroupsPath"] = group
    spec["linux"].pop("resources", None)
    kept = {"pid", "ipc", "uts", "mount", "network"}
    kinds = kept | ({"cgroup"} if changes.get("own_namespace") else set())
    spec["linux"]["namespaces"] = [{"type": kind} for kind in sorted(kinds)]
    keeps = ("/proc", "/dev", "/sys", *(["/sys/fs/cgroup"] if changes.get("mounted") else []))
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] in keeps] + binds
    device = str(machine.simulator.device)
    spec["mounts"].append(
        {"destination": device, "source": device, "type": "bind", "options": ["bind", "rw"]}
    )
    (bundle / "config.json").write_text(json.dumps(spec))
    name = f"gpushare-test-{os.getpid()}"
    process = subprocess.Popen(
        ["runc", "run", "--bundle", str(bundle), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield ClientProcess(process)
    finally:
        subprocess.run(["runc", "kill", name, "KILL"], check=False, timeout=SECONDS)
        process.communicate(timeout=SECONDS)
        subprocess.run(["runc", "delete", "-f", name], check=False, timeout=SECONDS)


@pytest.mark.parametrize("own_namespace", [False, True], ids=["host's", "own"])
def test_a_container_is_under_its_cgroups_limit(
    machine: SimulatorMachine, group: Path, tmp_path: Path, own_namespace: bool
) -> None:
    """Whichever cgroup namespace it is in; with its own, it looks through its mount."""
    assert _set(machine, group, CONTEXT + GIB) == SUCCESS
    inside = {"own_namespace": own_namespace, "mounted": own_namespace}
    with _container(machine, tmp_path, f"/{group.name}", **inside) as tenant:
        _enter(tenant)
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 2
        assert tenant.ask(f"alloc {GIB}")[0] == 0
        assert _get(machine, group)[3] == CONTEXT + GIB


def test_a_container_that_sees_no_cgroup_is_found_by_its_kernel_or_by_nvml(
    machine: SimulatorMachine, group: Path, tmp_path: Path
) -> None:
    assert _set(machine, group, CONTEXT + GIB) == SUCCESS
    with _container(machine, tmp_path, f"/{group.name}", own_namespace=True) as tenant:
        _enter(tenant)
        machine.ask("nvml.py")
        assert tenant.ask(f"alloc {2 * GIB}")[0] == 2
        assert _get(machine, group)[3] == CONTEXT
