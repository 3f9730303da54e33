# SPDX-License-Identifier: Apache-2.0
"""Which low-level runtime the launcher is set up around: never a wrapper, never itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.setup import low_level_runtime


def program(root: Path, path: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    file.chmod(0o755)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("/usr/bin/runc", "/usr/bin/crun", "/usr/bin/nvidia-container-runtime"):
        program(tmp_path, path)
    return tmp_path


def nvidia(root: Path, runtimes: str) -> None:
    config = root / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[nvidia-container-runtime]\nruntimes = {runtimes}\n")


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
