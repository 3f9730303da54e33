# SPDX-License-Identifier: Apache-2.0
"""Kubernetes distributions that include their own containerd and generate its files.

Changes to the generated files are lost at the next start. Each distribution has a file for the
user's settings. k3s and RKE2 have a template, Go's text/template and not TOML, of which only
gpushare's own tables are read and changed.
Source: docs.k3s.io/advanced ("Configuring containerd"), docs.rke2.io/advanced,
docs.k0sproject.io/stable/runtime, microk8s.io/docs. The services of a node are those of its role:
docs.k3s.io/installation/configuration, docs.rke2.io/install/quickstart and
docs.k0sproject.io/stable/install.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from gpushare.engines import containerd, systemd_unit, toml_text
from gpushare.engines.config_files import (
    NAME,
    BadConfiguration,
    ConfigFile,
    ConfigLocation,
    EngineError,
    UndoneBy,
    read_text,
    under_root,
)
from gpushare.engines.containerd import Configuration, cri_section, default_handler
from gpushare.engines.toml_text import TomlKey, TomlTable

GENERATED: Final = "config.toml"
TEMPLATES: Final = {3: "config-v3.toml.tmpl", 2: "config.toml.tmpl"}  # in order of precedence

K3S: Final = Path("/var/lib/rancher/k3s/agent/etc/containerd")
RKE2: Final = Path("/var/lib/rancher/rke2/agent/etc/containerd")
K0S: Final = Path("/etc/k0s")
MICROK8S: Final = Path("/var/snap/microk8s/current/args")
_K0S_SERVICES: Final = ("k0sworker", "k0scontroller")
_MANAGED: Final = "# k0s_managed=true"
BASE: Final = '{{ template "base" . }}\n'
_INCLUDES: Final = re.compile(r"\{\{-?\s*template\s+\"base\"\s+\.\s*-?\}\}")


def find_distribution(root: Path = Path("/")) -> ConfigLocation | None:
    """Return the files of the installed distribution, None if there is none.

    EngineError if there are several (--config selects one), or if it has never run.
    """
    installed = [name for name, (sign, _) in CLUSTERS.items() if under_root(root, sign).is_dir()]
    if len(installed) > 1:
        raise EngineError(
            f"{' and '.join(installed)} are both installed. Select one with --config FILE: "
            + ", ".join(str(CLUSTERS[name][1](root).path) for name in installed)
        )
    return CLUSTERS[installed[0]][1](root) if installed else None


def locate_file(path: Path, root: Path = Path("/")) -> ConfigLocation | None:
    """Return the files of the distribution that `path` belongs to, None if there is none."""
    for sign, locate in CLUSTERS.values():
        folder = under_root(root, sign)
        if folder not in path.parents or not folder.is_dir():
            continue
        found = locate(root)
        if path == folder / GENERATED:
            raise EngineError(
                f"{found.owner} regenerates {path} at each start. Use --config {found.path}"
            )
        return replace(found, files=(ConfigFile(path, found.syntax),))
    return None


def _rancher(root: Path, services: tuple[str, str], folder: Path) -> ConfigLocation:
    """k3s and RKE2: config-v3.toml.tmpl takes precedence over config.toml.tmpl in any version.

    `services` are those of a server and of an agent. Only a server has the folder `server` beside
    `agent` (docs.k3s.io/reference/resource-profiling); RKE2 installs the units of both.
    """
    folder = under_root(root, folder)
    is_server = (folder.parents[2] / "server").is_dir()
    name = services[0] if is_server else services[1]
    generated = parse_file(folder / GENERATED)
    there = [folder / file for file in TEMPLATES.values() if (folder / file).exists()]
    if not generated:
        raise EngineError(
            f"{folder / GENERATED} does not exist: {name} has not run yet, and its template "
            f"depends on its containerd. Start {name} once"
        )
    version = 3 if int(generated.get("version", 2)) >= 3 else 2
    path = there[0] if there else folder / TEMPLATES[version]
    syntax = Template(generated)
    return ConfigLocation(
        (ConfigFile(path, syntax),),
        f"systemctl restart {name}",
        main=folder / GENERATED,
        owner=name,
        socket=Path("/run/k3s/containerd/containerd.sock"),  # of RKE2 too
        default=containerd.runtime_path(default_handler(cri_section(generated))),
        left=tuple(ConfigFile(other, syntax) for other in there[1:]),
        services=services,
    )


def _k0s(root: Path) -> ConfigLocation:
    """k0s: merges a drop-in into its configuration if that contains k0s' mark."""
    main = under_root(root, K0S / "containerd.toml")
    text = read_text(main)
    # A controller that runs pods has no k0sworker (`k0s install controller --enable-worker`).
    service = next((one for one in _K0S_SERVICES if systemd_unit.has_unit(one, root)), "k0sworker")
    apply = f"systemctl restart {service}"
    socket = Path("/run/k0s/containerd.sock")
    if text and _MANAGED not in text:
        location = containerd.locate(root, main)
        return replace(location, apply=apply, owner="k0s", socket=socket, services=_K0S_SERVICES)
    # The file that k0s generates from its defaults and the drop-ins, imported by containerd.
    around = parse_file(under_root(root, Path("/run/k0s/containerd-cri.toml"))) or parse_file(main)
    version = int(around.get("version", 2))
    path = under_root(root, K0S / "containerd.d" / f"{NAME}.toml")
    return ConfigLocation(
        (
            ConfigFile(
                path, Configuration(around or {"version": version}, version, keeps_runc=True)
            ),
        ),
        apply,
        main=main,
        owner="k0s",
        socket=socket,
        default=containerd.runtime_path(default_handler(cri_section(around))),
        services=_K0S_SERVICES,
    )


def _microk8s(root: Path) -> ConfigLocation:
    """microk8s: generates containerd.toml from a template by replacing strings."""
    path = under_root(root, MICROK8S / "containerd-template.toml")
    found = parse_file(path)
    return ConfigLocation(
        (ConfigFile(path, Configuration()),),
        "snap restart microk8s.daemon-containerd",
        main=path.with_name("containerd.toml"),
        owner="microk8s",
        socket=Path("/var/snap/microk8s/common/run/containerd.sock"),
        default=containerd.runtime_path(default_handler(cri_section(found))),
        services=("snap.microk8s.daemon-containerd",),
    )


def parse_file(path: Path) -> toml_text.TomlTable:
    """Return the content of the file at `path`; EngineError with the line if it is not TOML."""
    try:
        return toml_text.parse(read_text(path))
    except BadConfiguration as error:
        line = f":{error.line}" if error.line else ""
        raise EngineError(f"{path}{line}: {error}. Nothing was changed") from error


CLUSTERS: Final[dict[str, tuple[Path, Callable[[Path], ConfigLocation]]]] = {
    "k3s": (K3S, lambda root: _rancher(root, ("k3s", "k3s-agent"), K3S)),
    "rke2": (RKE2, lambda root: _rancher(root, ("rke2-server", "rke2-agent"), RKE2)),
    "k0s": (K0S, _k0s),
    "microk8s": (MICROK8S, _microk8s),
}


@dataclass(frozen=True)
class Template:
    """A template; `generated` is the file generated at the last start, from it or from the base."""

    generated: TomlTable = field(repr=False)

    undone_by: ClassVar[UndoneBy] = "toml"

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler appended; if `text` is empty, the base and the handler."""
        if default:
            raise BadConfiguration(
                "k3s and RKE2 accept only their own runtimes as the default. Omit "
                "--set-as-default and name the handler in a RuntimeClass"
            )
        edited = text or BASE
        section = containerd.cri_section(self.generated)
        present = toml_text.parse_table(edited, self._name) or None
        handler = containerd.make_handler(section, present, launcher)
        if present == handler:
            return text
        edited = toml_text.remove_table(edited, self._name, containerd.MARK)
        block = f"\n{containerd.MARK}\n{toml_text.format_table(self._name, handler)}"
        return toml_text.append(edited, block)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002 - has no default
        """Return `text` without the handler."""
        return toml_text.remove_table(text, self._name, containerd.MARK)

    def registered(self, text: str) -> Path | None:
        """Return the launcher in `text`, None if it has no handler for gpushare."""
        handler = toml_text.parse_table(text, self._name)
        return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None

    def is_default(self, text: str) -> bool:  # noqa: ARG002 - `register` refuses it
        """Return False: a template cannot set the default."""
        return False

    def remarks(self, text: str) -> list[str]:
        """Return warnings about this template."""
        if text and not _INCLUDES.search(text):
            return ['the template does not include the base ({{ template "base" . }})']
        return []

    @property
    def _name(self) -> TomlKey:
        return (*containerd.plugin_key(self.generated), "runtimes", NAME)
