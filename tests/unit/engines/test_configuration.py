# SPDX-License-Identifier: Apache-2.0
"""Where each engine is configured: the change goes in, and every other setting stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomlkit

from gpushare.engines import config_files, find
from gpushare.engines.config_files import BadConfiguration, EngineError
from gpushare.engines.containerd import Configuration, cri_section
from gpushare.engines.docker_config import DaemonJson
from gpushare.engines.podman import HookFile
from gpushare.quota.dialects import TABLES
from tests.unit.setup.machine import write

from . import machine

LAUNCHER = Path("/usr/local/lib/gpushare/current/bin/gpushare-runtime")

DOCKER = DaemonJson()


CONTAINERD = Configuration()


@pytest.mark.parametrize(
    ("file", "text", "line", "what"),
    [
        (DOCKER, '{\n  "debug": true,\n}', 3, "property name"),
        (DOCKER, '{\n  "debug": true\n  "x": 1\n}', 3, "delimiter"),
        (DOCKER, '{\n  "debug": true\n}}', 3, "a second }"),
        (DOCKER, "[]", 1, "not a JSON object"),
        (DOCKER, '{"runtimes": []}', 0, "not an object"),
        (DOCKER, '{"a": 1, "a": 2}', 0, "duplicate key"),
        (CONTAINERD, "version = 2\n[plugins\n", 2, "line 2"),
        (CONTAINERD, "version = 5\n", 0, "version = 5 is not supported"),
        (CONTAINERD, 'version = 2\nplugins = "x"\n', 0, "plugins is not a table"),
        (
            CONTAINERD,
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {containerd = {}}}\n',
            0,
            "cannot be edited safely",
        ),
    ],
)
def test_a_broken_file_is_refused_with_its_line(
    file: DaemonJson | Configuration, text: str, line: int, what: str
) -> None:
    with pytest.raises(BadConfiguration, match=what) as caught:
        file.register(text, LAUNCHER, default=False)
    assert caught.value.line == line


def test_daemon_json_keeps_its_order_its_indentation_and_its_letters() -> None:
    before = '{\n\t"labels": ["é", 1e3],\n\t"default-runtime": "runc",\n\t"debug": true\n}'
    after = DOCKER.register(before, LAUNCHER, default=True)
    ours = f'\n\t"runtimes": {{\n\t\t"gpushare": {{\n\t\t\t"path": "{LAUNCHER}"\n\t\t}}\n\t}}\n}}'
    labels = '"labels": [\n\t\t"é",\n\t\t1000.0\n\t],'
    rest = f'{{\n\t{labels}\n\t"default-runtime": "gpushare",\n\t"debug": true'
    assert after == f"{rest},{ours}"
    edited = after.replace("true", "false")
    left = f"{rest}\n}}".replace("true", "false").replace('"gpushare"', '"runc"')
    assert DOCKER.unregister(edited, before) == left


MARK = "# gpushare: `gpushare runtime unconfigure --runtime containerd` removes this\n"

V2 = """\
# kept by hand
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.9" # pinned

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = 'runc' # for now
      snapshotter = "overlayfs"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        pod_annotations = ["io.example/*"]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true

# the end
[timeouts]
  "io.containerd.timeout.bolt.open" = "0s"
"""

OTHERS = ", ".join(f'"{glob}"' for glob in TABLES.annotation_globs())


def test_an_upgrade_moves_the_handler_keeps_its_options_and_completes_it() -> None:
    earlier = CONTAINERD.register(V2, LAUNCHER, default=False).replace(f", {OTHERS}", "")
    other = Path("/opt/other")
    after = CONTAINERD.register(f"{earlier}  Root = '/run/mine'\n", other, default=False)
    handler = cri_section(tomlkit.parse(after).unwrap())["runtimes"]["gpushare"]
    options = {"SystemdCgroup": True, "Root": "/run/mine", "BinaryName": str(other)}
    assert handler["options"] == options
    others = TABLES.annotation_globs()
    assert handler["pod_annotations"] == ["io.example/*", "gpushare.io/*", *others]
    assert after.count(MARK) == 1


K3S = "var/lib/rancher/k3s/agent/etc/containerd"


def path_of(engine: str, root: Path) -> str:
    return str(find(engine).locate(root, None).path.relative_to(root))


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("var/snap/docker/current", "docker is installed as a snap: it is confined"),
        ("opt/docker-desktop/bin", "docker is Docker Desktop: its dockerd runs in a virtual"),
        ("mnt/wsl/docker-desktop/x", "docker is Docker Desktop"),
    ],
)
def test_a_sealed_docker_is_refused_unless_another_is_there(
    tmp_path: Path, folder: str, reason: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert find("docker").is_present(tmp_path)
    with pytest.raises(EngineError, match=reason):
        find("docker").locate(tmp_path, None)
    write(tmp_path / "usr/bin/dockerd")
    assert path_of("docker", tmp_path) == "etc/docker/daemon.json"


@pytest.mark.parametrize(
    ("flags", "default", "reason"),
    [
        ("--add-runtime nvidia=/usr/bin/x", False, "dockerd is started with --add-runtime nvidia="),
        ("--default-runtime=nvidia", True, "dockerd is started with --default-runtime nvidia"),
        ("--default-runtime=nvidia", False, ""),
        ("--log-level=warn", True, ""),
    ],
)
def test_a_flag_that_dockerd_takes_instead_of_the_file_is_refused(
    tmp_path: Path, flags: str, default: bool, reason: str
) -> None:
    unit = tmp_path / "etc/systemd/system/docker.service.d/flags.conf"
    write(tmp_path / "lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    write(unit, f"[Service]\nExecStart=\nExecStart=-/usr/bin/dockerd \\\n  {flags}\n")
    write(tmp_path / "usr/bin/dockerd")
    place = find("docker").locate(tmp_path, None)
    if not reason:
        assert config_files.configure(place, machine.LAUNCHER, default=default)[0].needed
        return
    with pytest.raises(EngineError, match=reason) as caught:
        config_files.configure(place, machine.LAUNCHER, default=default)
    assert str(unit) in str(caught.value)
    assert not place.path.exists()


def test_a_drop_in_is_written_only_where_it_is_imported(tmp_path: Path) -> None:
    folder = tmp_path / "etc/containerd"
    (folder / "conf.d").mkdir(parents=True)
    main = write(folder / "config.toml", "version = 3\n")
    assert path_of("containerd", tmp_path) == "etc/containerd/config.toml"
    write(main, 'version = 3\nimports = ["/srv/*.toml", "conf.d/*.toml"]\n')
    assert path_of("containerd", tmp_path) == "srv/99-gpushare.toml"
    write(main, 'version = 3\nimports = ["conf.d/*.toml"]\n')
    assert path_of("containerd", tmp_path) == "etc/containerd/conf.d/99-gpushare.toml"
    # On containerd 1.x a drop-in with a handler would take all else that is said of CRI away.
    write(main, 'version = 2\nimports = ["conf.d/*.toml"]\n')
    assert path_of("containerd", tmp_path) == "etc/containerd/config.toml"


def test_a_file_that_is_read_later_and_sets_another_default_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "etc/containerd"
    write(folder / "config.toml", 'version = 3\nimports = ["conf.d/*.toml"]\n')
    runc = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "runc"\n'
    later = write(folder / "conf.d/99-z.toml", f"version = 3\n{runc}")
    place = find("containerd").locate(tmp_path, None)
    [change, *_] = config_files.configure(place, machine.LAUNCHER, default=True)
    assert change.remarks == (f"{later} is read later and sets default_runtime_name = runc",)


def test_k3s_is_configured_by_the_template_that_it_reads(tmp_path: Path) -> None:
    folder = tmp_path / K3S
    folder.mkdir(parents=True)
    with pytest.raises(EngineError, match="k3s-agent has not run yet"):
        find("containerd").locate(tmp_path, None)
    write(folder / "config.toml", "version = 2\n")
    assert path_of("containerd", tmp_path) == f"{K3S}/config.toml.tmpl"
    write(folder / "config.toml", "version = 3\n")
    assert path_of("containerd", tmp_path) == f"{K3S}/config-v3.toml.tmpl"
    # The older template is still taken where the newer is not there, whatever containerd runs.
    write(folder / "config.toml.tmpl", '{{ template "base" . }}\n')
    assert path_of("containerd", tmp_path) == f"{K3S}/config.toml.tmpl"


def test_a_template_without_the_base_is_named_with_the_lines_to_write(tmp_path: Path) -> None:
    folder = tmp_path / K3S
    write(folder / "config.toml", "version = 2\n")
    imports = 'imports = ["/etc/containerd/conf.d/*.toml"]'
    write(folder / "config.toml.tmpl", f"{imports}\nversion = 2\n")
    change, *_ = config_files.configure(
        find("containerd").locate(tmp_path, None), machine.LAUNCHER, default=False
    )
    (remark,) = change.remarks
    assert "containerd starts with its default paths and socket" in remark
    assert f'Begin the template with {imports}, then {{{{ template "base" . }}}}' in remark


def test_a_default_of_k3s_is_refused_with_the_way_to_go(tmp_path: Path) -> None:
    write(tmp_path / K3S / "config.toml", "version = 3\n")
    place = find("containerd").locate(tmp_path, None)
    with pytest.raises(EngineError, match="name the handler in a RuntimeClass"):
        config_files.configure(place, machine.LAUNCHER, default=True)


@pytest.mark.parametrize(
    ("name", "sign", "service"),
    [
        ("k3s-v3", "var/lib/rancher/k3s/server/token", "k3s"),
        ("k3s-v3", "", "k3s-agent"),
        ("rke2", "var/lib/rancher/rke2/server/token", "rke2-server"),
        ("rke2", "usr/lib/systemd/system/rke2-server.service", "rke2-agent"),
        ("k0s", "etc/systemd/system/k0scontroller.service", "k0scontroller"),
        ("k0s", "etc/systemd/system/k0sworker.service", "k0sworker"),
        ("k0s", "", "k0sworker"),
    ],
)
def test_the_service_of_the_node_s_role_is_restarted(
    tmp_path: Path, name: str, sign: str, service: str
) -> None:
    machine.make(name, tmp_path)
    if sign:
        write(tmp_path / sign)
    place = find("containerd").locate(tmp_path, None)
    assert place.apply == f"systemctl restart {service}"
    assert service in place.services
    assert not place.remarks


def test_a_podman_file_with_a_table_of_its_own_is_left(tmp_path: Path) -> None:
    file = write(tmp_path / "containers.conf", '[engine]\n# mine\nruntime = "crun"\n')
    place = find("podman").locate(tmp_path, file)
    with pytest.raises(EngineError, match="has its own table \\[engine\\]"):
        config_files.configure(place, machine.LAUNCHER, default=False)
    assert file.read_text() == '[engine]\n# mine\nruntime = "crun"\n'


def test_the_packages_hook_is_the_one_that_is_registered() -> None:
    packaged = Path(__file__).resolve().parents[3] / "hooks/hooks.d/gpushare.json"
    written = HookFile().register("", Path("/usr/bin/gpushare-runtime"), default=False)
    assert json.loads(packaged.read_text()) == json.loads(written)
