# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --root`: what it makes, twice, and that --undo leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from gpushare.cli import gpushare
from gpushare.engines import config_files, find
from gpushare.setup import low_level_runtime, plan

from .machine import UNITS, VERSION, write
from .test_install import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


def setup(root: Path, *more: str) -> Result:
    return CliRunner().invoke(gpushare, ["setup", "--root", str(root), *more])


def test_it_makes_everything_a_container_needs(machine: Path) -> None:
    result = setup(machine)
    assert result.exit_code == 0, result.output
    current = machine / "usr/local/lib/gpushare/current"
    assert (current / "bin/gpushare-runtime.conf").read_text().startswith("runtime = /usr/bin/runc")
    link = machine / "opt/gpushare/driver/libcuda.so.1"
    assert str(link.readlink()) == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    configuration = (machine / "etc/gpushare/gpushare.yaml").read_text()
    assert "cdi_spec: /var/lib/gpushare/driver.json" in configuration
    units = machine / "etc/systemd/system"
    assert {name: (units / name).read_text() for name in UNITS} == UNITS
    # The machine's own path: an image is set up elsewhere.
    service = units / "multi-user.target.wants/gpushared.service"
    assert service.readlink() == Path("/etc/systemd/system/gpushared.service")
    assert (units / "sockets.target.wants/gpushared.socket").is_symlink()
    registered = json.loads((machine / "etc/docker/daemon.json").read_text())
    assert registered["runtimes"]["gpushare"] == {
        "path": "/usr/local/lib/gpushare/current/bin/gpushare-runtime"
    }
    assert result.output.endswith(
        "next: gpushare doctor\n"
        "then: docker run --rm --runtime=gpushare -e GPUSHARE_MEMORY=1GiB IMAGE nvidia-smi\n"
    )


@pytest.mark.parametrize("engine", ["docker", "podman", None])
def test_on_simulated_cards_it_names_a_program_that_is_there(
    machine: Path, engine: str | None
) -> None:
    if engine is None:
        shutil.rmtree(machine / "etc/docker")
    said = setup(machine, "--simulate", "t4", *(["--runtime", engine] if engine else [])).output
    tried = said.splitlines()[-1].split()
    assert tried[:3] == ["then:", engine or "gpushare", "run"]
    (program,) = [word.partition(":")[0] for word in tried if word.startswith("/usr/")]
    assert (machine / program[1:]).is_file()


@pytest.mark.parametrize("options", [(), ("--simulate", "t4"), ("--kubernetes", "plugin")])
def test_a_dry_run_names_what_the_run_does_and_changes_nothing(
    machine: Path, options: tuple[str, ...]
) -> None:
    def steps(said: str) -> list[str]:
        return [line[6:] for line in said.splitlines() if line[:6] in {"would ", "do    "}]

    before = snapshot(machine)
    said = setup(machine, "--dry-run", *options).stdout
    assert snapshot(machine) == before
    assert '"gpushare": {"path"' in said
    assert said.endswith("nothing was changed; next: run it without --dry-run\n")
    planned = steps(said)
    assert planned == steps(setup(machine, *options).stdout)
    assert any(line.startswith("link /opt/gpushare/driver/libcuda.so.1 -> ") for line in planned)


def test_a_second_run_does_nothing_twice(machine: Path) -> None:
    setup(machine)
    before = snapshot(machine)
    result = setup(machine)
    assert snapshot(machine) == before
    assert {line.split()[0] for line in result.output.splitlines()} == {"ok", "next:", "then:"}


def test_undo_of_nothing_says_so(machine: Path) -> None:
    assert setup(machine, "--undo").output == "gpushare is not set up on this machine\n"


def test_an_upgrade_of_the_driver_is_followed(machine: Path) -> None:
    setup(machine)
    libraries = machine / "usr/lib/x86_64-linux-gnu"
    for path in sorted(libraries.glob(f"*.{VERSION}")):
        path.rename(path.with_name(path.name.replace(VERSION, "615.10")))
        link = libraries / path.name.replace(VERSION, "1")
        link.unlink()
        link.symlink_to(path.name.replace(VERSION, "615.10"))
    setup(machine)
    assert "libcuda.so.615.10" in (machine / "var/lib/gpushare/driver.json").read_text()
    link = machine / "opt/gpushare/driver/libcuda.so.1"
    assert link.readlink().name == "libcuda.so.615.10"


def test_a_current_spec_of_nvidia_s_is_used(machine: Path) -> None:
    libcuda = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    write(machine / "etc/cdi/nvidia.yaml", f"mounts: [{libcuda}]\n")
    setup(machine)
    assert "/etc/cdi/nvidia.yaml" in (machine / "etc/gpushare/gpushare.yaml").read_text()
    assert not (machine / "var/lib/gpushare/driver.json").exists()


def test_a_value_of_the_user_s_is_not_touched(machine: Path) -> None:
    theirs = "driver:\n  cdi_spec: /etc/cdi/mine.json\n"
    write(machine / "etc/gpushare/gpushare.yaml", theirs)
    result = setup(machine)
    assert result.exit_code == 1
    assert "Set it to /var/lib/gpushare/driver.json" in result.stderr
    assert (machine / "etc/gpushare/gpushare.yaml").read_text() == theirs


def runtime_of(machine: Path) -> str:
    """Return the low-level runtime of the installed launcher."""
    conf = machine / "usr/local/lib/gpushare/current/bin/gpushare-runtime.conf"
    return conf.read_text().splitlines()[0]


def test_crun_is_offered_where_it_is_installed_and_taken_where_it_is_chosen(machine: Path) -> None:
    assert "crun is installed" not in setup(machine, "--dry-run").stdout
    crun = machine / "usr/bin/crun"
    write(crun, "#!/bin/sh\n")
    crun.chmod(0o755)
    offer = f"ok    /usr/bin/crun is installed: {low_level_runtime.CRUN_GAIN}."
    assert offer in setup(machine).stdout
    assert runtime_of(machine) == "runtime = /usr/bin/runc"
    chosen = setup(machine, "--low-level", "crun")
    assert offer not in chosen.stdout
    assert runtime_of(machine) == "runtime = /usr/bin/crun"
    setup(machine)  # for another reason, later
    assert runtime_of(machine) == "runtime = /usr/bin/crun"
    setup(machine, "--low-level", "/usr/bin/runc")
    assert runtime_of(machine) == "runtime = /usr/bin/runc"
    refused = setup(machine, "--low-level", "youki")
    assert refused.exit_code != 0
    assert "--low-level youki: no low-level runtime in /usr/bin" in refused.stderr


def spoil_docker(machine: Path) -> None:
    (machine / "etc/docker/daemon.json").write_text("{debug}")


def spoil_configuration(machine: Path) -> None:
    write(machine / "etc/gpushare/gpushare.yaml", "driver: {cdi_spec: /other}\n")


def lose_nvml(machine: Path) -> None:
    for path in (machine / "usr/lib/x86_64-linux-gnu").glob("libnvidia-ml*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (spoil_docker, (), "daemon.json:1"),
        (spoil_configuration, (), "was edited and has another driver.cdi_spec"),
        (lose_nvml, (), "no libnvidia-ml.so.1"),
        (lambda machine: (machine / "usr/bin/runc").unlink(), (), "Install runc"),
        (None, ("--simulate", "h20"), 'profile "h20": unknown. Use one of'),
        (None, ("--simulate", "h20.json"), "h20.json"),
    ],
)
def test_an_obstacle_is_reported_before_any_change(
    machine: Path, spoil: Callable[[Path], None] | None, words: tuple[str, ...], said: str
) -> None:
    if spoil is not None:
        spoil(machine)
    before = snapshot(machine)
    result = setup(machine, *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert snapshot(machine) == before


def test_the_command_is_on_every_user_s_path(machine: Path) -> None:
    setup(machine)
    link = machine / "usr/local/bin/gpushare"
    assert link.readlink() == Path(sys.prefix) / "bin/gpushare"


def test_another_program_s_command_stays(machine: Path) -> None:
    write(machine / "usr/local/bin/gpushare", "theirs")
    result = setup(machine)
    assert result.exit_code == 0
    assert "next  /usr/local/bin/gpushare belongs to another program; use " in result.output
    assert (machine / "usr/local/bin/gpushare").read_text() == "theirs"


def test_the_units_start_this_installation_s_daemon() -> None:
    lines = plan.unit_files()["gpushared.service"].splitlines()
    program = f"{Path(sys.prefix)}/bin/gpushared"
    assert f"ExecStart={program}" in lines
    assert f"ExecStartPre=-+{program} --make-nodes" in lines


def test_the_unit_stops_the_daemon_and_not_the_scheduler_of_tenants_that_run() -> None:
    lines = plan.unit_files()["gpushared.service"].splitlines()
    assert "KillMode=process" in lines  # systemd.kill(5)
    assert "RuntimeDirectoryPreserve=yes" in lines
    # Without it there is no SCHED_FIFO for the scheduler either (systemd.exec(5)).
    assert not [line for line in lines if line.startswith("RestrictRealtime=")]
    kept = " ".join(line for line in lines if line.startswith("CapabilityBoundingSet="))
    assert "CAP_SYS_NICE" in kept


def test_a_drop_in_goes_with_the_registration(machine: Path) -> None:
    write(machine / "usr/lib/systemd/system/docker.service", "[Service]\nExecStart=dockerd\n")
    before = snapshot(machine)
    docker = find("docker")
    launcher = Path("/opt/with space/gpushare-runtime")
    for change in config_files.configure(docker.locate(machine, None), launcher, default=False):
        change.apply()
    place = docker.locate(machine, None)
    assert [config_files.registered_launcher(file) for file in place.files] == [launcher, launcher]
    assert not any(c.needed for c in config_files.configure(place, launcher, default=False))
    for change in config_files.unconfigure(place):
        change.apply()
    (machine / "etc/systemd/system").rmdir()
    (machine / "etc/systemd").rmdir()
    assert snapshot(machine) == before


def test_the_unit_hides_no_file_that_setup_keeps() -> None:
    """Doctor reads the CDI spec as any user, and systemd sets the folder's mode at each start."""
    unit = (Path(__file__).resolve().parents[3] / "packaging/systemd/gpushared.service").read_text()
    assert plan.CDI.is_relative_to("/var/lib/gpushare")
    assert "StateDirectory=gpushare\n" in unit
    assert "StateDirectoryMode=0755\n" in unit
