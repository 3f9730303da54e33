# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup`: what it makes, twice, again, and that --undo leaves nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpushare.cli import gpushare
from gpushare.errors import ExitStatus
from gpushare.setup import InstallRecord, SetupError, low_level_runtime, plan
from gpushare.setup.plan import EXPORTER, NODE

from .machine import UNITS, VERSION, write
from .test_install import snapshot


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


def test_a_machine_gets_so_many_simulated_cards(machine: Path) -> None:
    said = setup(machine, "--simulate", "t4", "--cards", "3").stdout
    assert "create 3 simulated cards of profile t4 in" in said
    [document] = [json.loads(path.read_text()) for path in machine.rglob("cdi.json")]
    names = {device["name"] for device in document["devices"]}
    assert {"0", "1", "2"} <= names
    assert "3" not in names


def test_a_machine_without_a_driver_is_set_up_if_it_comes_later(machine: Path) -> None:
    libraries = machine / "usr/lib/x86_64-linux-gnu"
    away = libraries.rename(machine / "away")
    refused = setup(machine)
    assert refused.exit_code == 1
    assert not (machine / "etc/gpushare/gpushare.yaml").exists()
    assert "ok    gpushared loads the driver when it is there: " in (
        setup(machine, "--driver-later").output
    )
    spec = machine / "var/lib/gpushare/driver.json"
    assert not spec.exists()
    assert "cdi_spec: /var/lib/gpushare/driver.json" in (
        (machine / "etc/gpushare/gpushare.yaml").read_text()
    )
    away.rename(libraries)
    setup(machine, "--driver-later")
    assert spec.exists()


def test_a_second_run_does_nothing_twice(machine: Path) -> None:
    setup(machine)
    before = snapshot(machine)
    result = setup(machine)
    assert snapshot(machine) == before
    assert {line.split()[0] for line in result.output.splitlines()} == {"ok", "next:", "then:"}


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


def runtime_of(machine: Path) -> str:
    """Return the low-level runtime of the installed launcher."""
    conf = machine / "usr/local/lib/gpushare/current/bin/gpushare-runtime.conf"
    return conf.read_text().splitlines()[0]


def test_crun_is_offered_where_it_is_installed_and_taken_where_it_is_chosen(machine: Path) -> None:
    assert "crun is installed" not in setup(machine, "--dry-run").stdout
    program(machine, "usr/bin/crun")
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


@pytest.mark.parametrize("text", ["driver: [\n", "- driver\n"])
def test_a_configuration_with_an_error_is_an_invalid_file(machine: Path, text: str) -> None:
    write(machine / "etc/gpushare/gpushare.yaml", text)
    refused = setup(machine, "--json")
    error = json.loads(refused.stderr)["error"]
    assert (refused.exit_code, error["code"]) == (1, "invalid")
    assert error["message"].startswith("/etc/gpushare/gpushare.yaml")


def lose_nvml(machine: Path) -> None:
    for path in (machine / "usr/lib/x86_64-linux-gnu").glob("libnvidia-ml*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "words", "said"),
    [
        (spoil_docker, (), "daemon.json:1"),
        (
            spoil_configuration,
            (),
            "cdi_spec. Set it to /var/lib/gpushare/driver.json",
        ),
        (lose_nvml, (), "no libnvidia-ml.so.1"),
        (lambda machine: (machine / "usr/bin/runc").unlink(), (), "Install runc"),
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--simulate", "h20"), 'profile "h20": unknown. Use one of'),
        (("--cards", "2"), "--cards is for simulated cards. Add --simulate h200"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_a_usage_error(
    machine: Path, words: tuple[str, ...], said: str
) -> None:
    result = setup(machine, *words)
    assert result.exit_code == ExitStatus.USAGE  # as that of `gpushare simulator create`
    assert said in result.stderr


def test_another_program_s_command_stays(machine: Path) -> None:
    write(machine / "usr/local/bin/gpushare", "theirs")
    result = setup(machine)
    assert result.exit_code == 0
    assert "next  /usr/local/bin/gpushare belongs to another program; use " in result.output
    assert (machine / "usr/local/bin/gpushare").read_text() == "theirs"


def test_the_engines_and_units_of_earlier_setups_get_the_new_version(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert setup(machine, "--runtime", "podman", "--kubernetes", "plugin").exit_code == 0
    node = machine / "etc/systemd/system/gpushare-node.service"
    node.unlink()
    docker = (machine / "etc/docker/daemon.json").read_text()
    monkeypatch.setattr("gpushare.__version__", "9.9.9")
    monkeypatch.setattr(plan, "unit_files", lambda: {"gpushared.service": "[Service]\n"})
    result = setup(machine, "--again")
    assert result.exit_code == 0, result.output
    assert "podman: runtime gpushare registered" in result.output
    current = machine / "usr/local/lib/gpushare/current"
    assert current.readlink().name.startswith("9.9.9-")
    unit = machine / "etc/systemd/system/gpushared.service"
    assert unit.read_text() == "[Service]\n"
    assert node.is_file()
    assert (machine / "etc/docker/daemon.json").read_text() == docker


OPTIONS = {EXPORTER: ("--metrics",), NODE: ("--kubernetes", "plugin")}


def mode_of(machine: Path) -> str | None:
    loaded = yaml.safe_load((machine / "etc/gpushare/gpushare.yaml").read_text())
    found: str | None = loaded.get("kubernetes", {}).get("mode")
    return found


def test_the_mode_is_configured_and_stays(machine: Path) -> None:
    assert setup(machine).exit_code == 0
    assert mode_of(machine) is None
    assert setup(machine, "--kubernetes", "plugin").exit_code == 0
    assert setup(machine).exit_code == 0
    assert mode_of(machine) == "plugin"
    assert setup(machine, "--kubernetes", "dra").exit_code == 0
    assert mode_of(machine) == "dra"


def test_a_mode_is_not_written_into_a_file_that_was_edited(machine: Path) -> None:
    setup(machine, "--kubernetes", "plugin")
    with (machine / "etc/gpushare/gpushare.yaml").open("a") as mine:
        mine.write("max_tenants: 4\n")
    assert setup(machine, "--kubernetes", "plugin").exit_code == 0
    refused = setup(machine, "--kubernetes", "dra")
    assert refused.exit_code == 1
    assert "another kubernetes.mode. Set it to dra" in " ".join(refused.output.split())
    assert mode_of(machine) == "plugin"


def test_without_the_library_nothing_is_begun(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = setup(machine, *OPTIONS[NODE])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"{sys.executable} -m pip install grpcio protobuf" in said
    assert not (machine / "etc/gpushare").exists()


@pytest.mark.parametrize("prefix", ["/root/venv", "/home/me/venv"])
def test_an_exporter_that_its_user_cannot_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    with pytest.raises(SetupError, match="/opt/gpushare"):
        list(EXPORTER.plan(InstallRecord(Path("/"))))


def program(root: Path, path: str) -> Path:
    file = write(root / path.lstrip("/"))
    file.chmod(0o755)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("/usr/bin/runc", "/usr/bin/crun", "/usr/bin/nvidia-container-runtime"):
        program(tmp_path, path)
    return tmp_path


def nvidia(root: Path, runtimes: str) -> None:
    config = root / "etc/nvidia-container-runtime/config.toml"
    write(config, f"[nvidia-container-runtime]\nruntimes = {runtimes}\n")


@pytest.mark.parametrize(
    ("default", "found"),
    [
        (None, "/usr/bin/runc"),
        ("crun", "/usr/bin/crun"),
        ("/usr/bin/crun", "/usr/bin/crun"),
        ("/opt/gone", "/usr/bin/runc"),
        ("nvidia-container-runtime", "/usr/bin/runc"),
        ("/usr/bin/nvidia-container-runtime.cdi", "/usr/bin/runc"),
    ],
)
def test_the_low_level_runtime_is_the_engines_current_one(
    root: Path, default: str | None, found: str
) -> None:
    assert str(low_level_runtime.find_runtime(root, default)) == found


def test_a_runtime_with_a_kernel_of_its_own_is_refused_by_name(root: Path) -> None:
    program(root, "/usr/bin/runsc")
    with pytest.raises(
        low_level_runtime.NoRuntime, match="default runtime: runsc runs programs on a kernel of its"
    ):
        low_level_runtime.find_runtime(root, "/usr/bin/runsc")
    with pytest.raises(
        low_level_runtime.NoRuntime,
        match="--low-level runsc: runsc runs programs on a kernel of its",
    ):
        low_level_runtime.chosen_runtime("runsc", root)
    assert str(low_level_runtime.chosen_runtime("runc", root)) == "/usr/bin/runc"


def test_beneath_nvidia_s_runtime_it_is_the_one_that_nvidia_s_runs(root: Path) -> None:
    nvidia(root, '["docker-runc", "/usr/bin/crun", "runc"]')
    assert str(low_level_runtime.find_runtime(root, "nvidia-container-runtime")) == "/usr/bin/crun"


def test_beneath_our_launcher_it_is_the_launchers_configured_one(root: Path) -> None:
    conf = root / "usr/local/lib/gpushare/current/bin/gpushare-runtime.conf"
    program(root, "/usr/local/lib/gpushare/current/bin/gpushare-runtime")
    conf.write_text("runtime = /usr/bin/crun\nsocket = /s\n")
    assert (
        str(low_level_runtime.find_runtime(root, "/anywhere/gpushare-runtime")) == "/usr/bin/crun"
    )


@pytest.mark.parametrize("wrapper", ["nvidia-container-runtime", "gpushare-runtime"])
def test_a_runc_that_is_a_link_to_a_wrapper_is_passed_over(root: Path, wrapper: str) -> None:
    program(root, f"/usr/bin/{wrapper}")
    (root / "usr/bin/runc").unlink()
    (root / "usr/bin/runc").symlink_to(wrapper)
    assert str(low_level_runtime.find_runtime(root)) == "/usr/bin/crun"


@pytest.mark.parametrize(
    "path", ["/var/lib/rancher/k3s/data/current/bin/runc", "/var/lib/k0s/bin/runc"]
)
def test_a_distribution_s_own_is_found(tmp_path: Path, path: str) -> None:
    program(tmp_path, path)
    assert str(low_level_runtime.find_runtime(tmp_path)) == path


def test_another_runtime_than_the_default_is_reported(tmp_path: Path) -> None:
    launcher = program(tmp_path, "/bin/gpushare-runtime")
    crun, runc = program(tmp_path, "/crun"), program(tmp_path, "/runc")
    launcher.with_name("gpushare-runtime.conf").write_text(f"runtime = {runc}\nsocket = /s\n")
    assert low_level_runtime.runtime_mismatch(launcher, str(runc)) == []
    assert low_level_runtime.runtime_mismatch(launcher, None) == []
    (said,) = low_level_runtime.runtime_mismatch(launcher, str(crun))
    assert (
        said == f"the default runtime runs {crun}, gpushare-runtime runs {runc}: `gpushare setup`"
    )
