# SPDX-License-Identifier: Apache-2.0
"""gpushare-undo: it needs nothing of gpushare, restores every engine's file, and can be killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
from tomlkit.exceptions import ParseError

from gpushare.engines import find
from gpushare.engines.config_files import ConfigLocation
from gpushare.setup import UNDO, InstallRecord, plan
from gpushare.setup.plan import EXPORTER, NODE, OptionalUnit
from tests.unit.engines import machine as engines
from tests.unit.setup.machine import write
from tests.unit.setup.test_install import snapshot
from tests.unit.setup.test_setup import setup

pytestmark = pytest.mark.gate

TOOLS = ("rm", "mv", "rmdir")  # the programs with which it changes files


def run(root: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a copy of gpushare-undo, with no program of gpushare's in its PATH."""
    return subprocess.run(
        ["/bin/sh", str(root / UNDO.relative_to("/")), "--root", str(root), *words],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": path or "/usr/sbin:/usr/bin:/sbin:/bin"},
        timeout=60,
        start_new_session=True,
    )


def undo(root: Path) -> str:
    done = run(root)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def register(name: str, root: Path) -> tuple[InstallRecord, ConfigLocation]:
    """Register the runtime on a distribution's machine, as setup does."""
    made, engine = InstallRecord(root), engines.engine_of(name)
    location = find(engine).locate(root, None)
    for step in plan._registration(made, engine, location):
        if step.do is not None:
            step.do()
    return made, location


@pytest.mark.parametrize("name", engines.NAMES)
def test_each_distribution_s_files_are_restored(name: str, tmp_path: Path) -> None:
    before = snapshot(engines.make(name, tmp_path))
    register(name, tmp_path)
    assert snapshot(tmp_path) != before
    undo(tmp_path)
    assert snapshot(tmp_path) == before


def content(root: Path) -> dict[str, object]:
    """Return what the engines' files under `root` mean; an empty table means nothing."""
    return {
        name: parsed
        for name, text in engines.files(root).items()
        if (parsed := _parsed(Path(name), text))
    }


def _parsed(path: Path, text: str) -> object:
    if path.suffix == ".json":
        return json.loads(text or "{}")
    try:
        return _filled(tomlkit.parse(text).unwrap())
    except ParseError:
        return text


def _filled(found: object) -> object:
    if not isinstance(found, dict):
        return found
    kept = {name: _filled(value) for name, value in found.items()}
    return {name: value for name, value in kept.items() if value != {}}


def nvidia_ctk(text: str) -> str:
    """Return daemon.json as nvidia-ctk writes it: everything, with its runtime, in its order."""
    found = json.loads(text)
    found["runtimes"] = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}} | found.get(
        "runtimes", {}
    )
    return json.dumps(dict(sorted(found.items())), indent=4)


def on_one_line(text: str) -> str:
    found = json.loads(text) | {"labels": ["a}b", 'c"\\']}
    return json.dumps(found, separators=(",", ":"))


def without_others(text: str) -> str:
    return json.dumps({"runtimes": {"gpushare": json.loads(text)["runtimes"]["gpushare"]}})


def appended(text: str) -> str:
    more = '\n# mine\n[plugins."io.containerd.internal.v1.opt2"]\n  path = "/opt"\n'
    return text + more


def before_ours(text: str) -> str:
    return "# mine, at the top\n" + text.replace("[plugins]", "[plugins] # mine", 1)


def in_engine(text: str) -> str:
    return text.replace("[engine]\n", '[engine]\n  cgroup_manager = "cgroupfs"\n')


DOCKER = ("docker-ce", "docker-config-file", "docker-nvidia")
TOML = tuple(name for name in engines.NAMES if not name.startswith(("docker", "podman")))

EDITS: list[tuple[str, Callable[[str], str]]] = [
    *((name, edit) for name in DOCKER for edit in (nvidia_ctk, on_one_line, without_others)),
    *((name, edit) for name in TOML for edit in (appended, before_ours)),
    ("podman-debian", in_engine),
    ("podman-fedora", in_engine),
]


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(("name", "edit"), EDITS)
def test_an_edited_file_keeps_its_edits_as_unconfigure_leaves_them(
    name: str, edit: Callable[[str], str], default: bool, tmp_path: Path
) -> None:
    here, unconfigured = tmp_path / "here", tmp_path / "unconfigured"
    here.mkdir()
    engines.make(name, here)
    _, location = register(name, here)
    if default and engines.may_be_default(name):
        engines.configure(name, here, default=True)
    location.path.write_text(edit(location.path.read_text()))
    shutil.copytree(here, unconfigured, ignore=lambda *_: [UNDO.name])
    engines.unconfigure(name, unconfigured)
    said = undo(here)
    assert "which was edited since setup" in said or edit is without_others
    assert content(here) == content(unconfigured)
    assert "gpushare" not in "".join(engines.files(here).values())


def test_a_layout_that_cannot_be_edited_stops_it_before_programs_are_removed(
    machine: Path,
) -> None:
    setup(machine, "--runtime", "containerd")
    file = machine / "etc/containerd/config.toml"
    found = tomlkit.parse(file.read_text()).unwrap()
    inline = tomlkit.inline_table()
    inline.update(found["plugins"])
    file.write_text(f"version = 2\nplugins = {inline.as_string()}\n")
    before = snapshot(machine)
    done = run(machine)
    assert done.returncode == 1
    assert "/etc/containerd/config.toml was edited since setup, and its layout" in done.stderr
    assert snapshot(machine) == before
    file.write_text("version = 2\n")
    undo(machine)
    assert file.read_text() == "version = 2\n"
    assert not (machine / "usr/local/lib/gpushare").exists()


def test_the_hook_is_never_left_without_its_program(tmp_path: Path) -> None:
    """podman starts no container if a hook's program is missing."""
    engines.make("podman-debian", tmp_path)
    _, location = register("podman-debian", tmp_path)
    hook = location.files[1].path
    hook.write_text(hook.read_text().replace("60", "90"))
    assert "was edited since setup: move it to" in undo(tmp_path)
    assert not hook.exists()
    assert "90" in hook.with_name(hook.name + ".edited").read_text()


def test_a_link_to_a_configuration_stays_a_link(machine: Path) -> None:
    file, real = machine / "etc/docker/daemon.json", machine / "etc/real.json"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to(real)
    before = snapshot(machine)
    setup(machine)
    undo(machine)
    assert snapshot(machine) == before


def test_it_needs_busybox_and_nothing_of_gpushare(machine: Path) -> None:
    """It is one file, and the record of what setup created is a part of it."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    before = snapshot(machine)
    setup(machine)
    file = machine / "etc/docker/daemon.json"
    file.write_text(nvidia_ctk(file.read_text()))
    for name in ("usr/local/lib/gpushare", "var/lib/gpushare", "opt/gpushare"):
        shutil.rmtree(machine / name)
    (machine / "usr/local/bin/gpushare").unlink()
    programs = machine.parent / "busybox"
    programs.mkdir()
    for applet in subprocess.check_output([busybox, "--list"], text=True).split():
        (programs / applet).symlink_to(busybox)
    done = run(machine, path=str(programs))
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["runtimes"].keys() == {"nvidia"}
    file.write_text('{"debug": true}\n')
    assert snapshot(machine) == before


SHIM = """#!/bin/sh
number=$(($(/bin/cat {count}) + 1))
echo $number >{count}
if [ $number = {last} ]; then
    {before}
    kill -KILL 0
fi
exec /bin/{name} "$@"
"""


@pytest.mark.thorough
def test_killed_at_each_step_it_finishes_when_it_is_run_again(
    machine: Path,
    tmp_path: Path,
) -> None:
    """The shell is killed after each program that it runs to change a file, or before it."""
    write(machine / "usr/lib/systemd/system/docker.service", "[Service]\nExecStart=dockerd\n")
    (machine / "usr/local/sbin").mkdir(parents=True)
    before = snapshot(machine)
    setup(machine, "--runtime", "docker", "--runtime", "podman")
    file = machine / "etc/docker/daemon.json"
    edited = nvidia_ctk(file.read_text())
    complete = tmp_path / "complete"
    file.write_text(edited)
    machine.rename(complete)
    shims, count, last = tmp_path / "shims", tmp_path / "count", 0
    shims.mkdir()
    while True:
        last += 1
        assert last < 200
        shutil.copytree(complete, machine, symlinks=True)
        for name in TOOLS:
            act = f'/bin/{name} "$@"' if last % 2 else ":"
            shim = SHIM.format(count=count, last=last, name=name, before=act)
            (shims / name).write_text(shim)
            (shims / name).chmod(0o755)
        count.write_text("0\n")
        done = run(machine, path=f"{shims}:/usr/sbin:/usr/bin:/sbin:/bin")
        if done.returncode == 0:
            break
        if (machine / UNDO.relative_to("/")).exists():
            undo(machine)
        assert json.loads(file.read_text())["runtimes"].keys() == {"nvidia"}
        file.write_text('{"debug": true}\n')
        assert snapshot(machine) == before, last
        shutil.rmtree(machine)
    assert last > 20


def test_a_dry_run_writes_nothing(machine: Path) -> None:
    setup(machine)
    before = snapshot(machine)
    done = run(machine, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would restore /etc/docker/daemon.json" in done.stdout
    assert '-    "gpushare"' in done.stdout or '-{"debug": true, "runtimes"' in done.stdout
    assert snapshot(machine) == before


def test_the_program_of_an_image_is_not_executed(machine: Path) -> None:
    before = snapshot(machine)
    setup(machine)
    program = machine / UNDO.relative_to("/")
    theirs = program.read_text().replace('main "$@"\n', f"touch {machine}/executed\n")
    program.write_text(theirs)
    assert setup(machine, "--undo").exit_code == 0
    assert snapshot(machine) == before


@pytest.mark.parametrize(("unit", "exposure"), [(EXPORTER, 20), (NODE, 30)])
def test_systemd_takes_the_unit_and_finds_it_hardened(
    tmp_path: Path, unit: OptionalUnit, exposure: int
) -> None:
    text = unit.text()
    program = tmp_path / unit.program
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / unit.name
    file.write_text(text.replace(str(Path(sys.prefix) / "bin" / unit.program), str(program)))
    done = analyze("verify", str(file))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # Of 10, which is a service that may do everything; below 2 systemd calls it OK.
    done = analyze("security", "--offline=true", f"--threshold={exposure}", str(file))
    assert done.returncode == 0, done.stdout


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


SPEC = "/var/lib/gpushare/driver.json"
MARKED = f"cdi_spec: {SPEC}  # added by gpushare setup"
SECTION = f"driver: {{cdi_spec: {SPEC}}}  # added by gpushare setup\n"

COMPLETED = {
    "reserve: 1GiB # mine\n": f"reserve: 1GiB # mine\n{SECTION}",
    "": SECTION,
    "reserve: 1GiB": f"reserve: 1GiB\n{SECTION}",
    "driver:\n    # mine\n    libraries: /opt/x\naudit: {}\n": (
        f"driver:\n    # mine\n    {MARKED}\n    libraries: /opt/x\naudit: {{}}\n"
    ),
    "driver: # later\nreserve: 1GiB\n": f"driver: # later\n  {MARKED}\nreserve: 1GiB\n",
    "driver: {libraries: /opt/x}\n": f"driver: {{cdi_spec: {SPEC}, libraries: /opt/x}}\n",
}


@pytest.mark.parametrize("theirs", COMPLETED)
def test_a_missing_key_is_added_and_taken_back(machine: Path, theirs: str) -> None:
    file = machine / "etc/gpushare/gpushare.yaml"
    write(file, theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 0, result.output
    assert "complete /etc/gpushare/gpushare.yaml with driver.cdi_spec" in result.stdout
    assert file.read_text() == COMPLETED[theirs]
    assert "(edited by you)" in setup(machine).stdout
    assert setup(machine, "--undo").exit_code == 0
    assert snapshot(machine) == before


@pytest.mark.parametrize("theirs", ["{reserve: 1GiB}\n", "- a\n", "a: [\n", "reserve: 1GiB\n...\n"])
def test_a_file_without_a_place_for_it_is_refused(machine: Path, theirs: str) -> None:
    write(machine / "etc/gpushare/gpushare.yaml", theirs)
    before = snapshot(machine)
    result = setup(machine)
    assert result.exit_code == 1
    assert "/etc/gpushare/gpushare.yaml" in result.stderr
    assert snapshot(machine) == before
