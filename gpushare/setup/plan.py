# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup`, each with a description.

A plan only reads; changes happen when a step is performed. Every step comes after the steps that it
depends on: the runtime is registered last, when everything that the launcher needs is in place.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

import gpushare
from gpushare import config, install, kubernetes, simulator
from gpushare.engines import config_files
from gpushare.engines.config_files import FileChange, read_text, under_root
from gpushare.errors import ErrorCode, UserError
from gpushare.host import driver, init_system
from gpushare.kubernetes.api.credentials import DEFAULT_KUBECONFIG
from gpushare.setup import EngineCommands, SetupError, SetupStep, low_level_runtime
from gpushare.simulator import device_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from gpushare.engines import Engine
    from gpushare.engines.config_files import ConfigLocation, FileChange
    from gpushare.protocol.kubernetes import NodeMode
    from gpushare.setup import InstallRecord


CDI: Final = Path("/var/lib/gpushare/driver.json")
SIMULATOR: Final = Path("/var/lib/gpushare/simulator")
UNITS: Final = Path("/etc/systemd/system")
SERVICE: Final = "gpushared.service"
SOCKET: Final = "gpushared.socket"
COMMAND: Final = Path("/usr/local/bin/gpushare")
PACKAGED_COMMAND: Final = Path("/usr/bin/gpushare")  # a link into the package's own environment
NVIDIA_CDI: Final = (
    Path("/etc/cdi/nvidia.yaml"),
    Path("/etc/cdi/nvidia.json"),
    Path("/var/run/cdi/nvidia.yaml"),
)


@dataclass(frozen=True)
class SetupOptions:
    """The user's options.

    `simulate` is a profile of simulated cards, `cards` their number, None for the real driver.
    """

    engines: tuple[Engine, ...] = ()
    simulate: str | None = None
    low_level: str = ""  # the low-level runtime, a name or path; "": as before, or as found
    mode: NodeMode | None = None  # how pods request shares; None: as before
    source: install.InstallSource | None = None  # None: the C programs of this Python package
    cards: int = 1
    driver_later: bool = False  # do without a driver, which gpushared loads when it is there


def plan_setup(record: InstallRecord, wanted: SetupOptions) -> Iterator[SetupStep]:
    """Yield the steps for the machine under `made.root`; each must be performed before the next.

    Iterating without performing any step raises every error before anything is changed.
    """
    root, units = record.root, unit_files()
    locations = {engine.name: engine.locate(root, None) for engine in wanted.engines}
    defaults = [location.default for location in locations.values() if location.default]
    named = wanted.low_level or record.low_level
    if named:
        runtime = low_level_runtime.chosen_runtime(named, root)
    else:
        runtime = low_level_runtime.find_runtime(root, next(iter(defaults), None))
    shown = (
        low_level_runtime.runtime_version(runtime) if root == Path("/") else "not run: another root"
    )
    yield SetupStep(f"low-level runtime {runtime} ({shown})")
    if offer := low_level_runtime.faster_runtime(runtime, root):
        yield SetupStep(offer)
    programs = yield from _programs(record, runtime, wanted)
    if wanted.simulate is not None:
        yield from _simulated(record, wanted.simulate, wanted.cards)
        cdi, links = SIMULATOR / "cdi.json", _simulated_libraries(record, programs)
    else:
        cdi, links = yield from _driver(record, is_optional=wanted.driver_later)
    yield from _links(record, links)
    yield from _command(record)
    yield from plan_configuration(record, cdi, wanted.mode)
    yield from _units(record, units)
    for name, location in locations.items():
        yield from _registration(record, name, location)


def _driver(
    record: InstallRecord, *, is_optional: bool
) -> Generator[SetupStep, None, tuple[Path, dict[str, Path]]]:
    """Yield the steps for the machine's driver; return its CDI spec and its libraries."""
    root = record.root
    try:
        installed = driver.find(root)
    except driver.DriverMissing as error:
        if not is_optional:
            raise
        yield SetupStep(f"gpushared loads the driver when it is there: {error}")
        return CDI, {}
    cdi = yield from _cdi(record, installed)
    return cdi, {name: _real(root, installed.library(name)) for name in (driver.CUDA, driver.NVML)}


def _programs(
    record: InstallRecord, runtime: Path, wanted: SetupOptions
) -> Generator[SetupStep, None, install.Installation]:
    """Yield the step that copies the programs; return their place on the machine."""
    socket = config.Config().socket
    prefix = under_root(record.root, install.PREFIX)
    source = wanted.source
    target = install.planned(prefix, runtime=runtime, socket=socket, source=source)
    where = install.PREFIX / target.root.name
    active = prefix / install.CURRENT
    if active.is_symlink() and str(active.readlink()) == target.root.name:
        yield SetupStep(f"programs and libraries in {where}")
        return install.Installation(where)

    def copy() -> None:
        record.low_level = wanted.low_level or record.low_level
        record.tree(install.PREFIX)
        install.activate(install.install(prefix, runtime=runtime, socket=socket, source=source))

    yield SetupStep(f"copy programs and libraries to {where}", copy)
    return install.Installation(where)


def _simulated(record: InstallRecord, profile: str, cards: int) -> Iterator[SetupStep]:
    folder = under_root(record.root, SIMULATOR)
    if (folder / "cdi.json").exists():
        yield SetupStep(f"simulated cards in {SIMULATOR} exist (for other cards, run --undo first)")
        return
    try:
        device_file.load_profile(profile)  # its error lists the known profiles
    except (device_file.ProfileError, FileNotFoundError) as error:
        is_value = isinstance(error, device_file.ProfileError)
        code = ErrorCode.USAGE if is_value else ErrorCode.NOT_FOUND
        raise SetupError(f"--simulate: {error}", code=code) from error

    def create() -> None:
        record.tree(SIMULATOR)
        _create_cards(record.root, folder, profile, cards)

    many = f"{cards} simulated card{'s' * (cards > 1)}"
    yield SetupStep(f"create {many} of profile {profile} in {SIMULATOR}", create)


def _create_cards(root: Path, folder: Path, profile: str, cards: int) -> None:
    """Create the cards with the installed simulated driver, by its path on the machine."""
    installed = install.Installation(under_root(root, install.PREFIX) / install.CURRENT)
    try:
        if not profile.endswith(".json"):
            profile = str(device_file.libraries() / "profiles" / f"{profile}.json")
        libraries = installed.simulator.resolve()
        cdi = simulator.create(folder, profile, cards=cards, folder=libraries).cdi
    except (device_file.ProfileError, FileNotFoundError) as error:
        raise SetupError(f"--simulate: {error}") from error
    cdi.write_text(cdi.read_text(encoding="utf-8").replace(f'"{root}/'.replace("//", "/"), '"/'))


def _simulated_libraries(record: InstallRecord, programs: install.Installation) -> dict[str, Path]:
    """Return the simulated driver's libraries, by SONAME."""
    cdi = under_root(record.root, SIMULATOR) / "cdi.json"
    if not cdi.exists():  # a dry run: as `_create_cards` is going to choose them
        return {name: programs.simulator / name for name in (driver.CUDA, driver.NVML)}
    spec = json.loads(cdi.read_text(encoding="utf-8"))
    mounts = spec["containerEdits"]["mounts"]
    files = [Path(mount["hostPath"]) for mount in mounts]
    return {file.name: file for file in files if file.name in {driver.CUDA, driver.NVML}}


def _cdi(
    record: InstallRecord, installed: driver.InstalledDriver
) -> Generator[SetupStep, None, Path]:
    """Yield the step that writes a CDI spec; return the path of the spec to use."""
    text = json.dumps(installed.cdi(), indent=2) + "\n"
    libcuda = _real(record.root, installed.library(driver.CUDA))
    for path in NVIDIA_CDI:
        # A spec of nvidia-ctk can be used if it belongs to this driver.
        if str(libcuda) in read_text(under_root(record.root, path)):
            yield SetupStep(f"driver {installed.version}, CDI spec {path}")
            return path
    if read_text(under_root(record.root, CDI)) == text:
        yield SetupStep(f"driver {installed.version}, CDI spec {CDI}")
    else:
        yield SetupStep(
            f"driver {installed.version}: write its CDI spec to {CDI}",
            lambda: record.write(CDI, text),
        )
    return CDI


def _links(record: InstallRecord, libraries: dict[str, Path]) -> Iterator[SetupStep]:
    for name, target in libraries.items():
        link = driver.LINKS / name
        place = under_root(record.root, link)
        if place.is_symlink() and place.readlink() == target:
            yield SetupStep(f"{link} -> {target}")
        elif place.exists() and not place.is_symlink():
            raise SetupError(f"{link} exists and is not a link created by gpushare. Move it away")
        else:
            yield SetupStep(f"link {link} -> {target}", partial(record.link, link, target))


def _command(record: InstallRecord) -> Iterator[SetupStep]:
    """Yield the step that links `gpushare` into the PATH if it is in a virtual environment."""
    program = Path(sys.prefix) / "bin/gpushare"
    place = under_root(record.root, COMMAND)
    packaged = PACKAGED_COMMAND.resolve() == program
    if packaged or program.parent in {PACKAGED_COMMAND.parent, COMMAND.parent}:
        return
    if place.is_symlink() and place.readlink() == program:
        yield SetupStep(f"{COMMAND} -> {program}")
    elif (place.exists() or place.is_symlink()) and str(COMMAND) not in record.links:
        yield SetupStep(f"{COMMAND} belongs to another program; use {program}", yours=True)
    else:
        yield SetupStep(f"link {COMMAND} -> {program}", lambda: record.link(COMMAND, program))


def _units(record: InstallRecord, texts: dict[str, str]) -> Iterator[SetupStep]:
    for name, text in texts.items():
        path = UNITS / name
        yield _unit(record, path, text, partial(record.write, path, text))
    if record.root != Path("/"):
        yield from (wanted_at_boot(record, name, texts[name]) for name in texts)
    elif init_system.has_systemd():
        yield SetupStep("start gpushared now and at boot", _start)
    else:
        program = Path(sys.prefix) / "bin/gpushared"
        yield SetupStep(f"start the daemon: {program} (systemd is not running)", yours=True)


def _unit(record: InstallRecord, path: Path, text: str, write: Callable[[], object]) -> SetupStep:
    """Return the step that calls `write` if the unit at `path` is not `text`."""
    if read_text(under_root(record.root, path)) == text:
        return SetupStep(f"unit {path}")
    return SetupStep(f"write {path}", write)


def wanted_at_boot(record: InstallRecord, name: str, text: str) -> SetupStep:
    """Return the step that enables a unit in an image, where systemd is not running."""
    match = re.search(r"(?m)^WantedBy=(\S+)$", text)
    target = match[1] if match else "multi-user.target"
    link = UNITS / f"{target}.wants" / name
    place = under_root(record.root, link)
    if place.is_symlink() and place.readlink() == UNITS / name:
        return SetupStep(f"{name} is started at boot")
    return SetupStep(f"start {name} at boot", lambda: record.link(link, UNITS / name))


def _start() -> None:
    """Start the units; systemd's socket replaces one that a daemon created itself."""
    systemctl("daemon-reload")
    systemctl("enable", SERVICE, SOCKET)
    systemctl("stop", SERVICE)
    systemctl("start", SOCKET, SERVICE)


def _registration(
    install_record: InstallRecord, name: str, location: ConfigLocation
) -> Iterator[SetupStep]:
    launcher = install.Installation(install.PREFIX / install.CURRENT).launcher
    changes = config_files.configure(location, launcher, default=False)
    shown = Path("/") / location.path.relative_to(install_record.root)

    def record() -> None:
        record_registration(install_record, name, location, launcher, changes)

    def apply() -> None:
        record()
        for change in changes:
            change.apply()

    if not any(change.needed for change in changes):
        registered = f"{name}: runtime gpushare registered ({shown})"
        yield SetupStep(registered, None if name in install_record.engines else record)
        return
    diff = "".join(change.diff() for change in changes)
    yield SetupStep(f"{name}: register the runtime in {shown}", apply, diff)
    yield from (SetupStep(f"{name}: {remark}") for change in changes for remark in change.remarks)
    if install_record.root == Path("/") and init_system.has_systemd():
        yield SetupStep("systemctl daemon-reload", lambda: systemctl("daemon-reload"))
    yield from _reread(install_record, name, location)


def record_registration(
    record: InstallRecord,
    engine: str,
    location: ConfigLocation,
    launcher: Path,
    changes: list[FileChange],
) -> None:
    """Record what gpushare-undo has to restore, before the changes are made."""
    undone_by = (file.syntax.undone_by for file in location.files)
    record.register(
        engine, _commands(location), launcher, list(zip(undone_by, changes, strict=True))
    )


def _commands(location: ConfigLocation) -> EngineCommands:
    """Return what gpushare-undo does, or advises, after it has changed the engine's files."""
    if not location.apply:  # it reads them at each container start
        return EngineCommands("-", "-")
    reload = location.apply.replace(" reload ", " try-reload-or-restart ")
    restart = init_system.advice(location.restart or location.apply)
    return EngineCommands(reload if location.reloads else "-", restart)


def _reread(record: InstallRecord, name: str, location: ConfigLocation) -> Iterator[SetupStep]:
    """Yield the step that makes an engine read its configuration again, if one is needed."""
    if not location.apply:
        return
    if record.root != Path("/"):
        yield SetupStep(f"{name} reads it at its next start")
    elif location.reloads and init_system.has_systemd():
        # If the engine is not running, the command succeeds and does nothing.
        yield SetupStep(location.apply, lambda: systemctl("try-reload-or-restart", name))
    else:
        how = init_system.advice(location.apply)
        yield SetupStep(f"make {name} read it: {how}", yours=True)


def unit_files() -> dict[str, str]:
    """Return the systemd units by name, with the path of this installation's gpushared."""
    return {name: packaged_unit(name, "gpushared") for name in (SOCKET, SERVICE)}


def packaged_unit(name: str, program: str) -> str:
    """Return the unit `name` of this package with the path of this installation's `program`."""
    folders = [Path(folder) for folder in gpushare.__path__]
    folders += [folder.parent / "packaging/systemd" for folder in folders]
    file = next(folder / name for folder in folders if (folder / name).is_file())
    started = re.compile(rf"(?m)^((?:#   )?Exec\w+=[-+@:!]*)/\S*/{program}\b")
    text = file.read_text(encoding="utf-8")
    return started.sub(rf"\g<1>{Path(sys.prefix) / 'bin' / program}", text)


def systemctl(*words: str) -> None:
    """Run systemctl; SetupError with its message if it fails."""
    program = shutil.which("systemctl") or "systemctl"
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"systemctl {' '.join(words)}: {done.stderr.strip()}")


def _real(root: Path, path: Path) -> Path:
    """Return `path` as a path of the machine under `root`."""
    return Path("/") / path.relative_to(root.resolve())


# --- the step of setup that writes /etc/gpushare/gpushare.yaml, or completes the user's own ---
#
# A key that the user's file does not have is added, on a line with a mark that gpushare-undo
# (`script/undo.sh`) removes again. Nothing else of the file changes. A key with another value is
# the user's decision: setup stops with what to change.

MARK: Final = "  # added by gpushare setup"
_NOTE: Final = "# Written by `gpushare setup`. You can edit it. All keys: gpushare config show."
# A line that setup added; script/undo.sh has the same pattern.
_ADDED: Final = re.compile(rf"(?m)^ *(\w+: \{{)?(cdi_spec|mode): \S+?\}}?{re.escape(MARK)}\n")


def plan_configuration(
    record: InstallRecord, cdi: Path, wanted: NodeMode | None
) -> Iterator[SetupStep]:
    """Yield the step that sets driver.cdi_spec, and kubernetes.mode if it is `wanted`."""
    path = config.DEFAULT_FILE
    place = under_root(record.root, path)
    text = read_text(place)
    keys = {("driver", "cdi_spec"): str(cdi)}
    if mode := wanted or (_loaded(text, path).get("kubernetes") or {}).get("mode"):
        keys["kubernetes", "mode"] = mode
    if not place.exists() or record.owns(path):
        after = f"{_NOTE}\n" + "".join(
            f"{section}:\n  {key}: {value}\n" for (section, key), value in keys.items()
        )
        what = f"write {path} (driver.cdi_spec: {cdi})"
        done = None if text == after else lambda: record.write(path, after)
        yield SetupStep(what if done else f"configuration {path}", done)
        return
    loaded = _loaded(text, path)
    if all((loaded.get(section) or {}).get(key) == value for (section, key), value in keys.items()):
        yield SetupStep(f"configuration {path} (edited by you)")
        return
    original = _ADDED.sub("", text)
    after = original
    for (section, key), value in keys.items():
        after = _completed(after, section, key, value, path)
    change = FileChange(place, text, after, original)

    def complete() -> None:
        record.edit("gpushare", [("yaml", change)])
        change.apply()

    added = ", ".join(f"{section}.{key}" for section, key in keys)
    yield SetupStep(f"complete {path} with {added}", complete, change.diff())


def _completed(text: str, section: str, key: str, value: str, path: Path) -> str:
    """Return `text` with the key; SetupError if it has another value, or no place for it."""
    loaded = _loaded(text, path)
    present = (loaded.get(section) or {}).get(key)
    if present == value:
        return text
    if present is not None:
        raise SetupError(
            f"{path} was edited and has another {section}.{key}. Set it to {value}, or remove it"
        )
    wanted: dict[str, Any] = copy.deepcopy(loaded)
    wanted[section] = {**(wanted.get(section) or {}), key: value}
    edited = _with_key(text, section, key, value)
    try:
        is_right = yaml.safe_load(edited) == wanted
    except yaml.YAMLError:
        is_right = False
    if not is_right:
        raise SetupError(f"{path} cannot be completed safely. Set {section}.{key} in it to {value}")
    return edited


def _loaded(text: str, path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        text = f"{path}: {error}. Nothing was changed"
        raise SetupError(text, code=ErrorCode.INVALID) from error
    if not isinstance(loaded, dict):
        text = f"{path} is not a mapping of keys. Nothing was changed"
        raise SetupError(text, code=ErrorCode.INVALID)
    return loaded


def _with_key(text: str, section: str, key: str, value: str) -> str:
    """Return `text` with a new line for the key, in the section's layout if there is one."""
    root = yaml.compose(text)
    entries = root.value if isinstance(root, yaml.MappingNode) else []
    nodes = {name.value: (name, node) for name, node in entries}
    lines = text.splitlines(keepends=True)
    if section not in nodes:
        end = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{end}{section}: {{{key}: {value}}}{MARK}\n"
    name, node = nodes[section]
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        at, more = node.start_mark.index + 1, ", " if node.value else ""
        return f"{text[:at]}{key}: {value}{more}{text[at:]}"
    if isinstance(node, yaml.MappingNode):
        first = node.value[0][0].start_mark
        lines.insert(first.line, f"{' ' * first.column}{key}: {value}{MARK}\n")
    else:  # an empty section
        lines.insert(name.start_mark.line + 1, f"  {key}: {value}{MARK}\n")
    return "".join(lines)


# --- the steps of `gpushare setup --metrics` and `--kubernetes`: programs beside gpushared ---

HOMES: Final = ("/home", "/root", "/run/user")  # ProtectHome= of systemd.exec(5)


@dataclass(frozen=True)
class OptionalUnit:
    """A program with a systemd unit of its name, which an option of setup installs."""

    program: str
    option: str
    has_own_user: bool  # systemd makes a user for it, without access to home folders
    check_libraries: Callable[[], None] = lambda: None  # UserError if one is missing
    credentials: Path | None = None  # with them, gpushare-undo runs the program with --remove

    @property
    def name(self) -> str:
        """The name of the unit."""
        return f"{self.program}.service"

    @property
    def path(self) -> Path:
        """Where setup writes the unit."""
        return UNITS / self.name

    def is_in(self, record: InstallRecord) -> bool:
        """Whether setup has installed it."""
        return str(self.path) in record.files

    def plan(self, record: InstallRecord) -> Iterator[SetupStep]:
        """Yield the steps that install and start it; SetupError if it could not run."""
        try:
            self.check_libraries()
        except UserError as error:
            raise SetupError(f"{self.option}: {error}") from error
        self._refuse_home(record.root)
        text = self.text()
        yield _unit(record, self.path, text, partial(self._write, record, text))
        if record.root != Path("/"):
            yield wanted_at_boot(record, self.name, text)
        elif init_system.has_systemd():
            yield SetupStep(f"start {self.program}, now and at boot", self._start)
        else:
            start = f"start {self.program}: {self._executable()} (systemd is not running)"
            yield SetupStep(start, yours=True)

    def text(self) -> str:
        """Return the unit with the path of this installation's program."""
        return packaged_unit(self.name, self.program)

    def _refuse_home(self, root: Path) -> None:
        """Raise SetupError if the unit's dynamic user could not read the program."""
        prefix = Path(sys.prefix)
        is_in_home = root == Path("/") and any(prefix.is_relative_to(home) for home in HOMES)
        if self.has_own_user and is_in_home:
            raise SetupError(
                f"{self.option}: gpushare is installed in {prefix}, and the user of {self.program} "
                "has no access to home folders. Install gpushare elsewhere, for example "
                "python3 -m venv /opt/gpushare"
            )

    def _executable(self) -> Path:
        return Path(sys.prefix) / "bin" / self.program

    def _write(self, record: InstallRecord, text: str) -> None:
        if self.credentials is not None:
            record.node = str(self._executable()), str(self.credentials)
        record.write(self.path, text)

    def _start(self) -> None:
        systemctl("daemon-reload")
        systemctl("enable", self.name)
        systemctl("restart", self.name)


EXPORTER: Final = OptionalUnit("gpushare-exporter", "--metrics", has_own_user=True)
NODE: Final = OptionalUnit(
    "gpushare-node",
    "--kubernetes",
    has_own_user=False,
    check_libraries=kubernetes.check_libraries,
    credentials=DEFAULT_KUBECONFIG,
)
