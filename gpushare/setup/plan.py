# SPDX-License-Identifier: Apache-2.0
"""The steps of `gpushare setup`, each with what it would do before it is done.

Nothing here runs before its step: a plan only looks. The order is that of need: an engine is told
of the launcher once everything that the launcher asks is there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

import gpushare
from gpushare import config, install, simulator
from gpushare.engines import dockerd, registration
from gpushare.engines.place import beneath
from gpushare.errors import UserError
from gpushare.host import driver
from gpushare.setup import lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from gpushare.engines.engine import Engine
    from gpushare.engines.place import Place
    from gpushare.engines.registration import Change
    from gpushare.setup.made import Made

CDI: Final = Path("/var/lib/gpushare/driver.json")
SIMULATOR: Final = Path("/var/lib/gpushare/simulator")
UNITS: Final = Path("/etc/systemd/system")
SERVICE: Final = "gpushared.service"
SOCKET: Final = "gpushared.socket"
COMMAND: Final = Path("/usr/local/bin/gpushare")
SYSTEMD: Final = Path("/run/systemd/system")  # sd_booted(3)
NVIDIA_CDI: Final = (
    Path("/etc/cdi/nvidia.yaml"),
    Path("/etc/cdi/nvidia.json"),
    Path("/var/run/cdi/nvidia.yaml"),
)
_NOTE: Final = "# Written by `gpushare setup`; yours to edit. Every key: gpushare config show."


class SetupError(UserError):
    """Setup cannot go on; says what is in the way."""


@dataclass(frozen=True)
class Step:
    """One thing to do: `text` says what; `do` is None where it is done already."""

    text: str
    do: Callable[[], object] | None = None
    detail: str = ""  # a diff
    yours: bool = False  # setup cannot; the user has to


@dataclass(frozen=True)
class Wanted:
    """What the user asked for. `simulate` is a profile of simulated cards, None the real driver."""

    engines: tuple[Engine, ...] = ()
    simulate: str | None = None
    source: install.Source | None = None  # None: this Python package's own C parts


def plan(made: Made, wanted: Wanted) -> Iterator[Step]:
    """Yield the steps for the machine beneath `made.root`; each must be done before the next.

    Gone through without doing any, it raises what is in the way before anything is half done.
    """
    root, units = made.root, unit_texts()
    places = {engine.name: engine.place(root, None) for engine in wanted.engines}
    defaults = [place.default for place in places.values() if place.default]
    runtime = lowlevel.find(root, next(iter(defaults), None))
    shown = lowlevel.version(runtime) if root == Path("/") else "not run: another root"
    yield Step(f"low-level runtime {runtime} ({shown})")
    yield from _programs(made, runtime, wanted)
    if wanted.simulate is not None:
        yield from _simulated(made, wanted.simulate)
        cdi, links = SIMULATOR / "cdi.json", _simulated_libraries(made)
    else:
        found = driver.find(root)
        cdi = yield from _cdi(made, found)
        links = {name: _real(root, found.library(name)) for name in (driver.CUDA, driver.NVML)}
    yield from _links(made, links)
    yield from _command(made)
    yield from _configuration(made, cdi)
    yield from _units(made, units)
    for name, place in places.items():
        yield from _registration(made, name, place)


def undo(made: Made, engines: dict[str, Engine]) -> Iterator[Step]:
    """Yield the steps that take away what was made."""
    for name, file in made.engines.items():
        place = _recorded(engines[name], made.root, beneath(made.root, Path(file)))
        changes = registration.unconfigure(place)
        diff = "".join(change.diff() for change in changes)
        forgets = dockerd.reload_forgets(place, changes)  # asked before the files are changed
        yield Step(f"{name}: take the runtime out of {file}", _each(changes), diff)
        if forgets or made.root != Path("/"):
            yield from _reread(made, name, place)
        else:
            yield Step(f"let {name} forget it: {place.restart}", yours=True)
    unit = str(UNITS / SERVICE) in made.files
    booted = made.root == Path("/") and SYSTEMD.is_dir()
    if unit and booted:
        yield Step("stop gpushared", _stop)
    elif unit and made.root == Path("/"):
        yield Step("stop the gpushared that you started (no systemd here)", yours=True)
    edited = made.edited()
    things = [*(name for name in made.files if name not in edited), *made.links, *made.trees]
    if not made.empty:
        left: list[str] = []
        yield from (Step(f"{name} was edited since; it stays") for name in edited)
        yield Step("remove " + ", ".join(things), lambda: left.extend(made.remove()))
        yield from (Step(line) for line in left)
    if booted and (unit or made.engines):
        yield Step("systemctl daemon-reload", lambda: systemctl("daemon-reload"))


def _recorded(engine: Engine, root: Path, file: Path) -> Place:
    """Return where setup registered, which may no longer be where it would today."""
    try:
        place = engine.place(root, None)
    except UserError:
        return engine.place(root, file)
    return place if place.path == file else engine.place(root, file)


def _each(changes: list[Change]) -> Callable[[], None]:
    def apply() -> None:
        for change in changes:
            change.apply()

    return apply


def _programs(made: Made, runtime: Path, wanted: Wanted) -> Iterator[Step]:
    socket = config.Config().socket
    prefix = beneath(made.root, install.PREFIX)
    source = wanted.source
    target = install.planned(prefix, runtime=runtime, socket=socket, source=source)
    where = install.PREFIX / target.root.name
    active = prefix / install.CURRENT
    if active.is_symlink() and str(active.readlink()) == target.root.name:
        yield Step(f"programs and libraries in {where}")
        return

    def copy() -> None:
        made.tree(install.PREFIX)
        install.activate(install.install(prefix, runtime=runtime, socket=socket, source=source))

    yield Step(f"copy programs and libraries to {where}", copy)


def _simulated(made: Made, profile: str) -> Iterator[Step]:
    folder = beneath(made.root, SIMULATOR)
    if (folder / "cdi.json").exists():
        yield Step(f"simulated cards in {SIMULATOR}, as made before (for others: --undo first)")
        return
    try:
        simulator.load_profile(profile)  # names those there are
    except (simulator.ProfileError, FileNotFoundError) as error:
        raise SetupError(f"--simulate: {error}") from error

    def create() -> None:
        made.tree(SIMULATOR)
        _create_cards(made.root, folder, profile)

    yield Step(f"make the simulated cards of profile {profile} in {SIMULATOR}", create)


def _create_cards(root: Path, folder: Path, profile: str) -> None:
    """Make the cards, their driver the installed one, by its path on the machine."""
    installed = install.Installation(beneath(root, install.PREFIX) / install.CURRENT)
    try:
        if not profile.endswith(".json"):
            profile = str(simulator.libraries() / "profiles" / f"{profile}.json")
        cdi = simulator.create(folder, profile, folder=installed.simulator.resolve()).cdi
    except (simulator.ProfileError, FileNotFoundError) as error:
        raise SetupError(f"--simulate: {error}") from error
    cdi.write_text(cdi.read_text(encoding="utf-8").replace(f'"{root}/'.replace("//", "/"), '"/'))


def _simulated_libraries(made: Made) -> dict[str, Path]:
    """Return the simulated driver's libraries, by SONAME."""
    cdi = beneath(made.root, SIMULATOR) / "cdi.json"
    if not cdi.exists():  # a dry run
        return {name: SIMULATOR / name for name in (driver.CUDA, driver.NVML)}
    spec = json.loads(cdi.read_text(encoding="utf-8"))
    mounts = spec["containerEdits"]["mounts"]
    files = [Path(mount["hostPath"]) for mount in mounts]
    return {file.name: file for file in files if file.name in {driver.CUDA, driver.NVML}}


def _cdi(made: Made, found: driver.Driver) -> Generator[Step, None, Path]:
    """Yield the step that writes a CDI spec; its value is the path of the one to use."""
    text = json.dumps(found.cdi(), indent=2) + "\n"
    libcuda = _real(made.root, found.library(driver.CUDA))
    for path in NVIDIA_CDI:
        # One of nvidia-ctk's is as good while it is of this driver.
        if str(libcuda) in _text(beneath(made.root, path)):
            yield Step(f"driver {found.version}, CDI spec {path}")
            return path
    if _text(beneath(made.root, CDI)) == text:
        yield Step(f"driver {found.version}, CDI spec {CDI}")
    else:
        yield Step(
            f"driver {found.version}: write its CDI spec to {CDI}", lambda: made.write(CDI, text)
        )
    return CDI


def _links(made: Made, libraries: dict[str, Path]) -> Iterator[Step]:
    for name, target in libraries.items():
        link = driver.LINKS / name
        place = beneath(made.root, link)
        if place.is_symlink() and place.readlink() == target:
            yield Step(f"{link} -> {target}")
        elif place.exists() and not place.is_symlink():
            raise SetupError(f"{link} is there and not a link of ours; move it away")
        else:
            yield Step(f"link {link} -> {target}", _later(made.link, link, target))


def _command(made: Made) -> Iterator[Step]:
    """Yield the step that puts `gpushare` on everybody's PATH, where it is in an environment."""
    program = Path(sys.prefix) / "bin/gpushare"
    place = beneath(made.root, COMMAND)
    if program.parent in {Path("/usr/bin"), COMMAND.parent}:
        return
    if place.is_symlink() and place.readlink() == program:
        yield Step(f"{COMMAND} -> {program}")
    elif (place.exists() or place.is_symlink()) and str(COMMAND) not in made.links:
        yield Step(f"{COMMAND} is another's; call {program}", yours=True)
    else:
        yield Step(f"link {COMMAND} -> {program}", lambda: made.link(COMMAND, program))


def _configuration(made: Made, cdi: Path) -> Iterator[Step]:
    path = config.DEFAULT_FILE
    place = beneath(made.root, path)
    text = f"{_NOTE}\ndriver:\n  cdi: {cdi}\n"
    if not place.exists() or made.owns(path):
        if _text(place) == text:
            yield Step(f"configuration {path}")
        else:
            yield Step(f"write {path} (driver.cdi: {cdi})", lambda: made.write(path, text))
        return
    said = yaml.safe_load(_text(place)) or {}
    if (said.get("driver") or {}).get("cdi") != str(cdi):
        raise SetupError(f"{path} is yours and has another driver.cdi; set it to {cdi}")
    yield Step(f"configuration {path} (yours)")


def _units(made: Made, texts: dict[str, str]) -> Iterator[Step]:
    for name, text in texts.items():
        path = UNITS / name
        if _text(beneath(made.root, path)) == text:
            yield Step(f"unit {path}")
        else:
            yield Step(f"write {path}", _later(made.write, path, text))
    if made.root != Path("/"):
        yield from (wanted_at_boot(made, name, texts[name]) for name in texts)
    elif SYSTEMD.is_dir():
        yield Step("start gpushared, now and at boot", _start)
    else:
        program = Path(sys.prefix) / "bin/gpushared"
        yield Step(f"start the daemon: {program} (no systemd here)", yours=True)


def wanted_at_boot(made: Made, name: str, text: str) -> Step:
    """Return the step that enables a unit of an image, whose systemd does not run."""
    found = re.search(r"(?m)^WantedBy=(\S+)$", text)
    target = found[1] if found else "multi-user.target"
    link = UNITS / f"{target}.wants" / name
    place = beneath(made.root, link)
    if place.is_symlink() and place.readlink() == UNITS / name:
        return Step(f"{name} is started at boot")
    return Step(f"start {name} at boot", lambda: made.link(link, UNITS / name))


def _start() -> None:
    """Start the units; the socket of systemd's takes the place of one that a daemon made itself."""
    systemctl("daemon-reload")
    systemctl("enable", SERVICE, SOCKET)
    systemctl("stop", SERVICE)
    systemctl("start", SOCKET, SERVICE)


def _stop() -> None:
    systemctl("disable", "--now", SOCKET, SERVICE)


def _registration(made: Made, name: str, place: Place) -> Iterator[Step]:
    launcher = install.Installation(install.PREFIX / install.CURRENT).launcher
    changes = registration.configure(place, launcher, default=False)
    shown = Path("/") / place.path.relative_to(made.root)
    if not any(change.needed for change in changes):
        yield Step(f"{name}: runtime gpushare registered ({shown})")
        return

    def apply() -> None:
        for change in changes:
            made.folder(Path("/") / change.path.parent.relative_to(made.root))
        made.engine(name, shown)
        for change in changes:
            change.apply()

    diff = "".join(change.diff() for change in changes)
    yield Step(f"{name}: register the runtime in {shown}", apply, diff)
    yield from (Step(f"{name}: {remark}") for change in changes for remark in change.remarks)
    if made.root == Path("/") and SYSTEMD.is_dir():
        yield Step("systemctl daemon-reload", lambda: systemctl("daemon-reload"))
    yield from _reread(made, name, place)


def _reread(made: Made, name: str, place: Place) -> Iterator[Step]:
    """Yield the step by which an engine reads its configuration again, where one is needed."""
    if not place.apply:
        return
    if made.root != Path("/"):
        yield Step(f"{name} reads it when it starts")
    elif not SYSTEMD.is_dir():
        how = "kill -HUP $(pidof dockerd)" if place.reloads else f"restart {name}"
        yield Step(f"let {name} read it: {how}", yours=True)
    elif place.reloads:
        # Of an engine that is not running it is no more than a success.
        yield Step(place.apply, lambda: systemctl("try-reload-or-restart", name))
    else:
        yield Step(f"let {name} read it: {place.apply}", yours=True)


def unit_texts() -> dict[str, str]:
    """Return the systemd units by name, with this installation's gpushared in them."""
    folders = [Path(folder) for folder in gpushare.__path__]
    folders += [folder.parent / "packaging/systemd" for folder in folders]
    for folder in folders:
        if (folder / SERVICE).is_file():
            program = Path(sys.prefix) / "bin/gpushared"
            texts = {
                name: (folder / name).read_text(encoding="utf-8") for name in (SOCKET, SERVICE)
            }
            started = re.compile(r"(?m)^(Exec\w+=[-+@:!]*)/\S*/gpushared\b")
            return {name: started.sub(rf"\g<1>{program}", text) for name, text in texts.items()}
    raise SetupError(f"{SERVICE} is not in {folders[0]}; install the package again")


def systemctl(*words: str) -> None:
    """Run systemctl; SetupError with its words where it fails."""
    program = shutil.which("systemctl") or "systemctl"
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"systemctl {' '.join(words)}: {done.stderr.strip()}")


def _real(root: Path, path: Path) -> Path:
    """Return `path` as the machine beneath `root` calls it."""
    return Path("/") / path.relative_to(root.resolve())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _later(function: Callable[..., object], *arguments: Any) -> Callable[[], object]:
    return lambda: function(*arguments)
