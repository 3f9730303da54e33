# SPDX-License-Identifier: Apache-2.0
"""`gpushare doctor`: one line a finding, and what to do."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpushare import checks, config, install
from gpushare.checks import Check, check_machine, check_mps
from gpushare.checks.kubernetes import CHART_MARK
from gpushare.config import Config
from gpushare.engines import Engine, config_files, containerd, docker_config, find
from gpushare.engines.query import RuntimeReport
from gpushare.host import cgroups, driver, init_system
from gpushare.host.driver import DriverMissing, files
from gpushare.host.driver.device_nodes import CardNodes, DeviceNode
from gpushare.host.rooted_tree import RootedTree
from gpushare.remote_gpu import RemoteGpus, RemoteServer
from gpushare.settings import ConfigError, ConfigProblem
from gpushare.setup import InstallRecord, low_level_runtime

from .conftest import CARD, STATUS, Cli, tenant
from .fake_daemon import AnsweringDaemon, rows

RELOAD = f"; {init_system.advice('systemctl reload docker')}"


RESTART = init_system.advice("systemctl restart gpushared")


CGROUP2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


V1 = "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


class CheckedMachine:
    """What the checks look at, beneath a folder of the test's."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = monkeypatch
        self.installation = self._installed()
        self.answer = RuntimeReport(None)
        self.docker = replace(
            find("docker"),
            signs=(root,),
            locate=lambda _, __: docker_config.locate(root, root / "daemon.json"),
            query=lambda _: self.answer,
        )
        self.containerd = replace(
            find("containerd"),
            signs=(root,),
            locate=lambda _, __: containerd.locate(root, root / "config.toml"),
            query=lambda _: RuntimeReport(None),
        )
        self.register(self.installation.launcher)
        cdi = root / "cdi.json"
        cdi.write_text(json.dumps({"containerEdits": {"mounts": [{"hostPath": str(cdi)}]}}))
        self.libraries: list[Path] = []
        monkeypatch.setattr(files, "library_paths", lambda _: self.libraries)
        monkeypatch.setattr(config, "load", lambda _: Config(cdi=cdi))
        monkeypatch.setattr(install, "current", lambda: self.installation)
        monkeypatch.setattr(checks, "PATH", str(root))
        hook = root / checks.HOOK
        hook.touch(0o755)
        monkeypatch.setattr(low_level_runtime, "runtime_version", lambda _: "runc version 1.1.5")
        monkeypatch.setattr(cgroups, "mountinfo", lambda: CGROUP2)
        self.engines(self.docker)

    def register(self, launcher: Path) -> None:
        """Register `launcher` with docker."""
        place = self.docker.locate(self.root, None)
        for change in config_files.configure(place, launcher, default=False):
            change.apply()

    def engines(self, *present: Engine) -> None:
        """Let these engines be on the machine."""
        found = {engine.name: engine for engine in present}
        self._patch.setattr(checks, "ENGINES", found)
        self._patch.setattr("gpushare.cli.runtime.ENGINES", found)
        self._patch.setattr("gpushare.cli.runtime.find", found.__getitem__)

    def _installed(self) -> install.Installation:
        made = install.Installation(self.root / "0.1.0-0123456789ab")
        for path in (made.launcher, made.hook, made.libraries / "libcuda.so.1"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            path.chmod(0o755)
        conf = "runtime = /usr/bin/runc\nsocket = /s\n"
        (made.launcher.parent / install.CONFIGURATION).write_text(conf)
        return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckedMachine:
    """A machine where all is well, with simulated cards."""
    root = tmp_path / "machine"
    root.mkdir()
    return CheckedMachine(root, monkeypatch)


@pytest.fixture
def simulated(daemon: AnsweringDaemon) -> AnsweringDaemon:
    """The daemon of simulated cards: the host's own driver does not matter then."""
    daemon.answers["status"] = [{"ok": True, **STATUS, "simulated": True}]
    return daemon


@pytest.mark.usefixtures("simulated", "machine")
def test_without_problems_every_line_is_ok(cli: Cli) -> None:
    result = cli("doctor")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 11
    assert all(line.startswith("ok    ") for line in lines)


@pytest.mark.usefixtures("machine")
def test_a_daemon_that_is_down_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DriverMissing("the loader finds no libcuda.so.1: install it")

    monkeypatch.setattr(driver, "find", missing)
    result = cli("doctor")
    assert result.exit_code == 4
    lines = result.output.splitlines()
    assert lines[0].startswith("fail  daemon: gpushared is not running")
    assert lines[1] == "fail  driver: the loader finds no libcuda.so.1: install it"


REGISTERED = "docker: runtime gpushare registered"


@pytest.mark.parametrize(
    ("answer", "is_loaded", "told"),
    [
        (RuntimeReport(True, False), True, "ok: the running docker has loaded it"),
        (RuntimeReport(None, reason="docker does not run"), True, "it: docker does not run"),
        (RuntimeReport(False), False, "has not loaded it yet: reload it"),
        (RuntimeReport(True, False, Path("/old")), False, "has not loaded it yet: reload it"),
    ],
)
@pytest.mark.usefixtures("simulated")
def test_what_docker_has_loaded_is_compared_with_its_file(
    cli: Cli,
    machine: CheckedMachine,
    answer: RuntimeReport,
    is_loaded: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpushare.cli.runtime.InstallRecord.read", InstallRecord)
    machine.answer = answer
    status = cli("runtime", "status")
    words = ["docker", "registered" if is_loaded else "unread", f"{machine.root}/daemon.json"]
    assert (status.stdout.splitlines()[1].split()[:3], status.exit_code == 0) == (words, is_loaded)
    assert told in cli("runtime", "configure", "--runtime", "docker").output
    machine.engines(machine.docker, machine.containerd)
    output = cli("doctor").output
    assert "containerd" not in output
    found = next(text for text in output.splitlines() if "docker:" in text)
    assert found.startswith(f"ok    {REGISTERED}") == is_loaded
    assert (
        f"{REGISTERED}, but the running docker" in found and found.endswith(RELOAD)
    ) != is_loaded
    assert ("docker does not run" in output) == bool(answer.reason)


@pytest.mark.usefixtures("machine")
def test_a_container_without_a_request_gets_advice(cli: Cli, simulated: AnsweringDaemon) -> None:
    why = "add -e GPUSHARE_MEMORY=4GiB"
    simulated.answers["tenants"] = rows(tenant("web", 0, 0, state="none", reason=why, cards=[]))
    result = cli("doctor")
    assert result.output.splitlines()[-1] == f"warn  container web has no GPU; {why}"
    assert result.exit_code == 0


@pytest.mark.usefixtures("simulated")
def test_an_image_s_placeholder_is_named(cli: Cli, machine: CheckedMachine, tmp_path: Path) -> None:
    empty = tmp_path / "libcuda.so.1"
    empty.touch()
    machine.libraries.append(empty)
    result = cli("doctor")
    assert result.exit_code == 4
    assert f'fail  {empty} is empty ("file too short")' in result.output
    assert f"rm {empty}" in result.output


@pytest.mark.usefixtures("simulated")
def test_a_launcher_that_others_can_change_fails(cli: Cli, machine: CheckedMachine) -> None:
    machine.installation.launcher.chmod(0o777)
    result = cli("doctor")
    assert result.exit_code == 4
    assert "gpushare-runtime is writable by users other than root; chmod go-w" in result.output


def test_a_node_without_its_link_is_lost_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/null stands for a card: it is there, and its link is where the test says."""
    monkeypatch.setattr(checks, "CHAR", tmp_path)
    node = DeviceNode("/dev/null", 1, 3)
    found = driver.InstalledDriver(
        Path("/"), RootedTree(), "580.95.05", (), (CardNodes(0, "GPU-0", 0),), (node,)
    )
    [check] = checks._char_links(found)
    assert (check.level, check.fix) == ("warn", f"{RESTART}: gpushared creates it")
    (tmp_path / "1:3").symlink_to("/dev/null")
    assert list(checks._char_links(found)) == []


def broken_configuration(_file: Path | None) -> Config:
    raise ConfigError(Path("/g.yaml"), ConfigProblem(2, "max_tenant", "unknown key"))


def without_runtime(_runtime: Path) -> str:
    raise low_level_runtime.NoRuntime("/usr/bin/runc does not exist")


#: What is replaced in gpushare, or written beneath the machine's folder, and what doctor says then.
BROKEN: list[tuple[str, Any, str]] = [
    ("gpushare.checks.ENGINES", {}, "warn  no container engine (): only `gpushare run` works"),
    ("gpushare.install.current", lambda: None, "warn  gpushare is not installed in"),
    ("gpushare.__version__", "9.0", "is installed, this command is 9.0; gpushare setup"),
    ("gpushare.checks.low_level_runtime.runtime_version", without_runtime, "; install runc, then"),
    ("gpushare.config.load", broken_configuration, "fail  configuration: /g.yaml:2: max_tenant:"),
    ("gpushare.host.cgroups.mountinfo", lambda: V1, "ok    cgroup v1"),
    ("gpushare.host.cgroups.mountinfo", lambda: V1 + CGROUP2, "warn  cgroup: hybrid hierarchy"),
    ("gpushare.host.cgroups.mountinfo", lambda: "", "fail  cgroup: no hierarchy"),
    ("cdi.json", "[]", "cdi.json: not an object; gpushare setup"),
    (
        "cdi.json",
        '{"containerEdits": {"mounts": [{"hostPath": "/none"}]}}',
        "belongs to another driver: /none does not exist",
    ),
    ("0.1.0-0123456789ab/bin/gpushare-hook", None, "gpushare-hook is missing; gpushare setup"),
    (checks.HOOK, None, "docker run --gpus: refused by dockerd"),
    ("0.1.0-0123456789ab/bin/gpushare-runtime", None, "fail  docker: "),
]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(("place", "broken", "line"), BROKEN)
def test_what_is_broken_is_reported(
    cli: Cli,
    machine: CheckedMachine,
    place: str,
    broken: Any,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "run", no_program)
    assert line not in cli("doctor").output
    if place.startswith("gpushare."):
        monkeypatch.setattr(place, broken)
    elif broken is None:
        (machine.root / place).unlink()
    else:
        (machine.root / place).write_text(broken)
    assert line in cli("doctor").output


def no_program(*_: object, **__: object) -> None:
    raise FileNotFoundError


@pytest.mark.parametrize(
    ("version", "hook", "told"),
    [
        ("24.0.9", "no", "or -e GPUSHARE_COUNT=1 for a whole card"),
        ("27.0.1", "no", '"features": {"cdi": true}'),
        ("28.2.2", "no", "; or --device"),
        ("28.2.2", checks.CDI_HOOK, "; or --device"),
        ("28.3.0", checks.CDI_HOOK, "accepted, as a CDI device"),
    ],
)
def test_what_docker_takes_instead_of_gpus_depends_on_its_version(
    machine: CheckedMachine, version: str, hook: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / checks.HOOK).rename(machine.root / hook)
    done = subprocess.CompletedProcess((), 0, version)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    check = checks.check_docker_gpus()
    assert told in f"{check.text}; {check.fix}"


def test_a_scheduler_that_still_runs_is_reported(tmp_path: Path) -> None:
    listeners = tmp_path / "unix"
    assert list(checks.check_orphaned_scheduler(tmp_path, listeners)) == []
    listeners.write_text(f"0000: 00000002 00000000 00010000 0005 01 7 {tmp_path}/scheduler.sock\n")
    [check] = checks.check_orphaned_scheduler(tmp_path, listeners)
    assert check.text.startswith("scheduler: running without gpushared")


def test_the_driver_s_own_files_are_checked(
    cli: Cli, machine: CheckedMachine, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = driver.files.DriverFile("/usr/lib/libcuda.so.580.95.05", "/usr/lib/libcuda.so.1")
    found = driver.InstalledDriver(Path("/"), RootedTree(), "580.95.05", (file,), (), ())
    monkeypatch.setattr(driver, "find", lambda: found)
    monkeypatch.setattr(driver, "kernel_version", lambda: "570.1")
    monkeypatch.setattr(driver, "LINKS", machine.root)
    (machine.root / driver.CUDA).symlink_to("/usr/lib/libcuda.so.570.1")
    daemon.answers["status"] = [{"ok": True, **STATUS, "driver_version": ""}]
    output = cli("doctor").output
    assert "driver 580.95.05, 0 cards" not in output
    assert "fail  kernel module 570.1, libraries 580.95.05: versions must match; reboot" in output
    assert "fail  nvidia-uvm is not loaded" in output
    assert f"fail  {machine.root}/libcuda.so.1 does not belong to driver 580.95.05" in output
    daemon.answers["status"] = [{"ok": True, **STATUS, "cards": 0}]
    assert "CUDA 13.0, 0 cards; see nvidia-smi" in cli("doctor").output
    daemon.answers["status"] = [{"ok": True, **STATUS, "cards": 0, "unified_cards": [{}]}]
    assert "CUDA 13.0, 0 cards; with unified memory, which" in cli("doctor").output


@pytest.mark.usefixtures("machine")
def test_a_remote_server_beyond_loopback_gets_a_warning_and_no_driver_is_required(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {name: RemoteServer(f"{name}:14833", "e") for name in ("127.0.0.1", "[fd00::5]")}
    monkeypatch.setattr(config, "load", lambda _: Config(remote=RemoteGpus(servers=servers)))
    monkeypatch.setattr(driver, "find", Mock(side_effect=DriverMissing("there is none")))
    daemon.answers["status"] = [{"ok": True, **STATUS, "driver_version": ""}]
    output = cli("doctor").output
    assert "warn  remote server [fd00::5]: gpushare does not encrypt the connection" in output
    assert "remote server 127.0.0.1" not in output
    assert "ok    driver: there is none" in output


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, "fail  driver 470.256.02: the kernel module nvidia is not loaded; modprobe nvidia"),
        ("470.256.02", "fail  driver 470.256.02, 0 cards; see nvidia-smi"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_an_old_driver_without_cards(
    module: str | None, told: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = driver.InstalledDriver(Path("/"), RootedTree(), "470.256.02", (), (), ())
    monkeypatch.setattr(driver, "find", lambda: found)
    monkeypatch.setattr(driver, "kernel_version", lambda: module)
    output = cli("doctor").output
    assert told in output
    assert "ok    driver 470" not in output
    old = "warn  driver 470.256.02: look-ups tested, never with a card; supported from 520 on"
    assert f"{old}; without nvmlDeviceGetMemoryInfo_v2" in output


def test_a_node_of_kubernetes_without_credentials_is_checked_itself(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", no_program)
    daemon.answers["status"] = [{"ok": True, **STATUS, "kubernetes_mode": "dra"}]
    result = cli("doctor", "--k8s", "--kubeconfig", "/none")
    first, second, *_ = result.output.splitlines()
    assert first.startswith("warn  API server: not checked: kubeconfig /none: No such file")
    assert second.startswith("warn  kubelet: version not known")
    assert "plugins_registry" in result.output


def test_on_a_node_of_the_chart_it_names_the_pod_that_may_ask_the_cluster(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", no_program)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "gpushare.yaml"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    asks = "kubectl -n gpushare-system exec POD -c gpushare-node -- gpushare doctor --k8s"
    for mark, is_named in ((f"{CHART_MARK}\n", True), ("", False)):
        file.write_text(f"{mark}max_tenants: 3\n")
        said = cli("doctor", "--k8s", "--kubeconfig", "/none").output
        assert "warn  API server: not checked: " in said
        assert (asks in said) == is_named


def of(root: Path, *files: str, architecture: str = "x86_64") -> list[Check]:
    """Return what is found where these files are, each as PATH or PATH=CONTENT."""
    for file in files:
        path, _, content = file.partition("=")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return list(check_machine(root, architecture))


@pytest.mark.parametrize(
    ("files", "level", "text"),
    [
        (("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"), "warn", "WSL 2: all cards share one device"),
        (("etc/nv_tegra_release",), "warn", "Jetson: the GPU has no dedicated memory"),
        (
            ("proc/device-tree/compatible=nvidia,p3737\0nvidia,tegra234\0",),
            "warn",
            "Jetson: the GPU has no dedicated memory",
        ),
        (("etc/nvidia/gridd.conf",), "ok", "vGPU guest (GRID driver)"),
        (("sys/fs/selinux/enforce=1",), "warn", "SELinux is enforcing"),
    ],
)
def test_an_unusual_server_gets_advice(
    tmp_path: Path, files: tuple[str, ...], level: str, text: str
) -> None:
    (found,) = of(tmp_path, *files)
    assert found.level == level
    assert found.text.startswith(text)


def test_the_processor_is_known_or_refused(tmp_path: Path) -> None:
    (arm,) = of(tmp_path, architecture="aarch64")
    assert (arm.level, arm.text.partition(":")[0]) == ("ok", "aarch64")
    (other,) = of(tmp_path, architecture="riscv64")
    assert other.level == "fail"
    assert other.text == "gpushare does not run on riscv64: it knows aarch64, x86_64"


@pytest.mark.parametrize(("mode", "expected"), [("mps", ["warn"]), ("shared", [])])
def test_a_control_daemon_of_somebody_else_is_in_the_way_of_such_a_card(
    tmp_path: Path, mode: str, expected: list[str]
) -> None:
    (tmp_path / "control").touch()
    found = list(check_mps([{**CARD, "mode": mode}], [], [tmp_path]))
    assert [one.level for one in found if one.level != "ok"] == expected
