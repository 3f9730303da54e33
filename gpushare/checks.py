# SPDX-License-Identifier: Apache-2.0
"""The checks of `gpushare doctor`: each looks at one thing and says how to put it right.

A check never changes anything, needs no root, and says "not known" rather than guess.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

import gpushare
from gpushare import config, install, simulator
from gpushare.client import DaemonError, DaemonUnreachable, Refused
from gpushare.engines import docker, registration
from gpushare.engines.engine import ENGINES
from gpushare.engines.errors import EngineError
from gpushare.host import cgroups, driver, loader
from gpushare.setup import lowlevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.client import Client
    from gpushare.engines.engine import Engine
    from gpushare.protocol import Status

Level = Literal["ok", "warn", "fail"]
MEMORY_LIMITS_SINCE: Final = 615  # the driver that can hold a memory quota itself
SETUP: Final = "gpushare setup"


@dataclass(frozen=True)
class Check:
    """What was found; `fix` is a command or a sentence, empty when all is well."""

    level: Level
    text: str
    fix: str = ""


def run(client: Client) -> Iterator[Check]:
    """Yield every check's finding, the daemon first: it knows the driver best."""
    status: Status | None = None
    try:
        status = client.status()
    except (DaemonUnreachable, DaemonError, Refused) as error:
        yield Check("fail", f"daemon: {error}")
    else:
        yield from _daemon(status)
    file = Path(status["config"]) if status and status["config"] else None
    if status is None and _simulated(file):
        yield Check("ok", "simulated driver: as configured")
    else:
        yield from _driver(status)
    yield from _placeholders()
    yield from _configuration(file)
    yield from _installation(_installed(status))
    if status is not None and _private(status):
        yield Check(
            "ok",
            "docker, containerd: this machine's are not looked at, for gpushared is not its own",
        )
    else:
        yield from _engines([engine for engine in ENGINES.values() if engine.present()])
    yield _cgroups(cgroups.layout(cgroups.mountinfo()))
    if status is not None:
        yield from _without_gpu(client)


def _daemon(status: Status) -> Iterator[Check]:
    yield Check("ok", f"gpushared {status['version']}, pid {status['pid']}, {status['run_dir']}")
    if status["version"] != gpushare.__version__:
        yield Check(
            "warn",
            f"gpushared is {status['version']}, this command {gpushare.__version__}",
            "systemctl restart gpushared",
        )
    yield from (Check("warn", warning) for warning in status["warnings"])


def _driver(status: Status | None) -> Iterator[Check]:
    if status is not None and status["driver_version"]:
        kind = "simulated driver" if status["simulated"] else "driver"
        cards = f"{status['cards']} card{'' if status['cards'] == 1 else 's'}"
        text = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}, {cards}"
        if status["cards"]:
            yield Check("ok", text)
        else:
            yield Check("fail", text, "nvidia-smi says why; a virtual machine needs the GPU passed")
        yield from _limits(status["driver_version"])
        if status["simulated"]:
            return
    try:
        found = driver.find()
    except driver.DriverMissing as error:
        yield Check("fail", f"driver: {error}")
        return
    if status is None or not status["driver_version"]:
        yield Check("ok", f"driver {found.version}, {len(found.cards)} cards")
    yield from _loaded(found)
    yield from _links(found)


def _limits(version: str) -> Iterator[Check]:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MEMORY_LIMITS_SINCE:
        yield Check(
            "ok",
            f"driver < {MEMORY_LIMITS_SINCE}: no limits of its own; the interposer holds quotas",
        )


def _loaded(found: driver.Driver) -> Iterator[Check]:
    module = driver.kernel_version()
    if module is None and not Path("/proc/driver/nvidia/version").exists():
        yield Check("fail", "the kernel module nvidia is not loaded", "modprobe nvidia")
    elif module is not None and module != found.version:
        yield Check(
            "fail", f"kernel module {module}, libraries {found.version}", "reboot: they must agree"
        )
    if not any(node.path == "/dev/nvidia-uvm" for node in found.control):
        yield Check("fail", "nvidia-uvm is not loaded: CUDA cannot start", "nvidia-modprobe -u -c0")


def _links(found: driver.Driver) -> Iterator[Check]:
    for name in (driver.CUDA, driver.NVML):
        link = driver.LINKS / name
        if link.is_symlink() and link.resolve() != found.library(name):
            yield Check("fail", f"{link} is not of driver {found.version}", SETUP)


def _placeholders() -> Iterator[Check]:
    """An engine without a driver leaves empty files where it would have mounted the driver's."""
    for soname in (driver.CUDA, driver.NVML):
        for path in loader.paths(soname):
            if path.stat().st_size == 0:
                yield Check(
                    "fail",
                    f'{path} is empty ("file too short"): left in an image by another runtime',
                    f"rm {path}",
                )


def _configuration(file: Path | None) -> Iterator[Check]:
    try:
        said = config.load(file)
    except config.ConfigError as error:
        yield Check("fail", f"configuration: {error}")
        return
    yield Check("ok", f"configuration {said.file or 'not there: defaults'}")
    if said.cdi is None:
        return
    try:
        spec = _spec(said.cdi)
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield Check("fail", f"CDI spec {said.cdi}: {error}", SETUP)
        return
    missing = driver.stale(spec)
    if missing:
        yield Check("fail", f"CDI spec {said.cdi} is of another driver: no {missing[0]}", SETUP)
    else:
        yield Check("ok", f"CDI spec {said.cdi}")


def _simulated(file: Path | None) -> bool:
    """Whether the configuration names simulated cards: the host's own driver does not matter."""
    try:
        cdi = config.load(file).cdi
        mounts = _spec(cdi)["containerEdits"]["mounts"] if cdi is not None else []
        return any(mount.get("containerPath") == simulator.DEVICE_IN_CONTAINER for mount in mounts)
    except (config.ConfigError, OSError, ValueError, KeyError, yaml.YAMLError):
        return False  # _configuration says what is wrong with it


def _spec(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(spec, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of a file's content, not of a type
    return spec


def _installed(status: Status | None) -> install.Installation | None:
    """Return the installation that the daemon uses, or the active one."""
    if status is not None:
        used = install.Installation(Path(status["libraries"]).parent)
        if used.launcher.exists():
            return used
    return install.current()


def _installation(installation: install.Installation | None) -> Iterator[Check]:
    if installation is None:
        yield Check("warn", f"no programs in {install.PREFIX}", SETUP)
        return
    real = installation.root.resolve()
    if real.name.partition("-")[0] != gpushare.__version__:
        yield Check("warn", f"installed is {real.name}, this is {gpushare.__version__}", SETUP)
    for path in (installation.launcher, installation.hook, installation.libraries):
        yield from _writable_by_others(path)
    lines = (real / "bin" / install.CONFIGURATION).read_text(encoding="utf-8").splitlines()
    said = dict(line.split(" = ", 1) for line in lines if " = " in line)
    runtime = Path(said.get("runtime", ""))
    try:
        yield Check("ok", f"{real}, around {runtime} ({lowlevel.version(runtime)})")
    except lowlevel.NoRuntime as error:
        yield Check("fail", str(error), f"install runc, then {SETUP}")


def _writable_by_others(path: Path) -> Iterator[Check]:
    try:
        status = path.stat()
    except FileNotFoundError:
        yield Check("fail", f"{path} is missing", SETUP)
        return
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Check("fail", f"{path} can be changed by others than root", f"chmod go-w {path}")


def _private(status: Status) -> bool:
    """Whether another gpushared than the machine's answers (--socket, GPUSHARE_SOCKET).

    Its containers come from engines that were started for it; where they are configured, only who
    started them knows.
    """
    machines = status["config"] == str(config.DEFAULT_FILE)
    return not machines and status["run_dir"] != str(config.Config().run_dir)


def _engines(present: list[Engine]) -> Iterator[Check]:
    """Where one engine has the runtime, another that has not is as the user chose."""
    found = [check for engine in present for check in _engine(engine)]
    registered = any(": runtime gpushare registered" in check.text for check in found)
    for check in found:
        if not (registered and check.fix.startswith("gpushare runtime configure")):
            yield check
    if not present:
        yield Check("warn", "no docker, no containerd: only `gpushare run` works", "install docker")


def _engine(engine: Engine) -> Iterator[Check]:
    path = engine.configuration()
    configure = f"gpushare runtime configure --runtime {engine.name}"
    try:
        launcher = registration.registered(engine, path)
        remarks = engine.syntax.remarks(path.read_text(encoding="utf-8")) if launcher else []
    except (EngineError, PermissionError) as error:
        yield Check("warn", f"{engine.name}: {error}")
        return
    if launcher is None:
        yield Check("warn", f"{engine.name}: runtime gpushare not registered ({path})", configure)
    elif not os.access(launcher, os.X_OK):
        yield Check("fail", f"{engine.name}: {launcher} is not there", f"{SETUP}; {configure}")
    elif (known := engine.known()) and docker.NAME not in known:
        text = f"{engine.name}: runtime gpushare registered ({path}), but not read since"
        yield Check("fail", text, engine.apply)
    else:
        yield Check("ok", f"{engine.name}: runtime gpushare registered ({path})")
    yield from (Check("warn", f"{engine.name}: {remark}") for remark in remarks)


def _cgroups(layout: str) -> Check:
    if layout == "hybrid":
        return Check(
            "warn",
            "cgroup: v1 and v2 side by side; crun refuses that, runc does not",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if layout == "none":
        return Check("fail", "cgroup: no hierarchy is mounted", "mount cgroup2 at /sys/fs/cgroup")
    return Check("ok", f"cgroup {layout}")


def _without_gpu(client: Client) -> Iterator[Check]:
    for tenant in client.tenants(everything=True):
        if tenant["state"] == "none":
            name = tenant["name"] or tenant["id"][:12]
            yield Check("warn", f"container {name} has no GPU", tenant["why"])
