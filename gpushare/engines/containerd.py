# SPDX-License-Identifier: Apache-2.0
"""The runtime in one of containerd's files, for CRI (Kubernetes, crictl).

The CRI plugin has a different name in each version of the file.
Source: containerd docs/cri/config.md.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from gpushare.engines import systemd_unit, toml_text
from gpushare.engines.config_files import (
    NAME,
    BadConfiguration,
    ConfigFile,
    ConfigLocation,
    EngineError,
    Syntax,
    UndoneBy,
    read_text,
    under_root,
)
from gpushare.engines.toml_text import TomlKey, TomlTable
from gpushare.quota.dialects import TABLES

ANNOTATIONS: Final = "gpushare.io/*"
MARK: Final = "# gpushare: `gpushare runtime unconfigure --runtime containerd` removes this"
DEFAULT: Final = "default_runtime_name"
_PLUGINS: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_RUNC: Final = "runc"
_RUNC_TYPE: Final = "io.containerd.runc.v2"
MERGES_SINCE: Final = 3  # file version that only containerd 2.x, which merges, can read


@dataclass(frozen=True)
class Configuration(Syntax):
    """A file of plain TOML.

    For a drop-in, `around` is the content of the other files; their default handler is copied.
    `version` is the version of a new file. `keeps_runc`: the handler `runc` need not be written.
    In a file of containerd 1.x, the first handler replaces containerd's built-in ones.
    """

    around: TomlTable | None = field(default=None, repr=False)
    version: int = 2
    keeps_runc: bool = False

    undone_by: ClassVar[UndoneBy] = "toml"

    def register(self, text: str, launcher: Path, *, default: bool) -> str:
        """Return `text` with the handler, as CRI's default if requested.

        The handler is a copy of the current default with gpushare's BinaryName and annotations, so
        that the administrator's settings (SystemdCgroup) apply to it too.
        """
        content = toml_text.parse(text)
        wanted = content or {"version": self.version}
        edited = text if content else toml_text.append(text, f"version = {self.version}")
        base = plugin_key(wanted)
        section = toml_text.table_at(wanted, base)
        runtimes = section.setdefault("runtimes", {})
        around = self._around() or section
        handler = make_handler(around, runtimes.get(NAME), launcher)
        if self._would_lose_runc(around, wanted):
            runtimes[_RUNC] = {"runtime_type": _RUNC_TYPE}
            edited = _with_table(edited, (*base, "runtimes", _RUNC), runtimes[_RUNC])
        if runtimes.get(NAME) != handler:
            name = (*base, "runtimes", NAME)
            runtimes[NAME] = handler
            edited = _with_table(toml_text.remove_table(edited, name, MARK), name, handler)
        if default and section.get(DEFAULT) != NAME:
            section[DEFAULT] = NAME
            edited = toml_text.set_string(edited, base, DEFAULT, NAME)
        return toml_text.verified(edited, wanted)

    def unregister(self, text: str, original: str) -> str:
        """Return `text` without the handler; the default as in `original`."""
        wanted = toml_text.parse(text)
        base = plugin_key(wanted)
        section = toml_text.table_at(wanted, base)
        runtimes = section.get("runtimes", {})
        edited = toml_text.remove_table(text, (*base, "runtimes", NAME), MARK)
        runtimes.pop(NAME, None)
        name = (*base, "runtimes", _RUNC)
        if runtimes.get(_RUNC) == {"runtime_type": _RUNC_TYPE} and toml_text.is_marked(
            text, name, MARK
        ):
            del runtimes[_RUNC]
            edited = toml_text.remove_table(edited, name, MARK)
        if section.get(DEFAULT) == NAME:
            before = cri_section(toml_text.parse(original)).get(DEFAULT)
            if before in {None, NAME}:
                del section[DEFAULT]
                before = None
            else:
                section[DEFAULT] = before
            edited = toml_text.set_string(edited, base, DEFAULT, before)
        return toml_text.verified(edited, wanted)

    def registered(self, text: str) -> Path | None:
        """Return the launcher in `text`, None if it has no handler for gpushare."""
        return registered_launcher(toml_text.parse(text))

    def is_default(self, text: str) -> bool:
        """Return whether pods get the handler without a RuntimeClass."""
        return bool(cri_section(toml_text.parse(text)).get(DEFAULT) == NAME)

    def remarks(self, text: str) -> list[str]:
        """Return warnings about this configuration."""
        disabled = set(toml_text.parse(text).get("disabled_plugins", []))
        disabled |= set((self.around or {}).get("disabled_plugins", []))
        if disabled & {"cri", *_PLUGINS.values()}:
            return [
                "the CRI plugin is disabled (disabled_plugins): Kubernetes cannot use containerd"
            ]
        return []

    def _around(self) -> TomlTable | None:
        return cri_section(self.around) if self.around is not None else None

    def _would_lose_runc(self, around: TomlTable, wanted: TomlTable) -> bool:
        """Whether adding the handler would remove CRI's built-in handler `runc`."""
        merges = self.keeps_runc or wanted.get("version", 1) >= MERGES_SINCE
        return not merges and not set(around.get("runtimes", {})) - {NAME}


def _with_table(text: str, name: TomlKey, content: TomlTable) -> str:
    return toml_text.append(text, f"\n{MARK}\n{toml_text.format_table(name, content)}")


def plugin_key(content: TomlTable) -> TomlKey:
    """Return the key of CRI's runtimes in a file of this version."""
    version = content.get("version", 1 if content else 2)
    if version not in _PLUGINS:
        raise BadConfiguration(
            f"version = {version} is not supported ({min(_PLUGINS)} to {max(_PLUGINS)} are)"
        )
    return ("plugins", _PLUGINS[version], "containerd")


def cri_section(content: TomlTable) -> TomlTable:
    """Return CRI's table of runtimes in `content`, empty if there is none."""
    return toml_text.table_at(copy.deepcopy(content), plugin_key(content))


def registered_launcher(content: TomlTable) -> Path | None:
    """Return the launcher of gpushare's handler in `content`, None if there is no handler."""
    handler = cri_section(content).get("runtimes", {}).get(NAME)
    return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None


def make_handler(section: TomlTable, ours: TomlTable | None, launcher: Path) -> TomlTable:
    """Return gpushare's handler: `ours` if it exists, otherwise a copy of `section`'s default."""
    runtimes = section.get("runtimes", {})
    handler: TomlTable = copy.deepcopy(ours or default_handler(section))
    if handler.get("runtime_type", _RUNC_TYPE) != _RUNC_TYPE:
        # Kata and gVisor have no BinaryName: gpushare's launcher is a runc-type runtime.
        handler = copy.deepcopy(runtimes.get(_RUNC) or {})
    handler["runtime_type"] = _RUNC_TYPE
    for key, globs in (
        ("pod_annotations", (ANNOTATIONS, *TABLES.annotation_globs())),
        ("container_annotations", (ANNOTATIONS,)),
    ):
        passed = handler.get(key) or []
        handler[key] = [*passed, *(glob for glob in globs if glob not in passed)]
    handler["options"] = {**handler.get("options", {}), "BinaryName": str(launcher)}
    return handler


def default_handler(section: TomlTable) -> TomlTable:
    """Return the handler of a pod without a RuntimeClass, other than gpushare's."""
    runtimes = section.get("runtimes", {})
    chosen = section.get(DEFAULT, _RUNC)
    # microk8s' template contains ${RUNTIME}, and gpushare may already be the default.
    handler: TomlTable = (
        (runtimes.get(chosen) if chosen != NAME else None) or runtimes.get(_RUNC) or {}
    )
    return handler


MAIN: Final = Path("/etc/containerd/config.toml")
SOCKET: Final = Path("/run/containerd/sock")
RESTART: Final = "systemctl restart containerd"
DROP_IN: Final = f"99-{NAME}.toml"


def locate(root: Path = Path("/"), main: Path | None = None) -> ConfigLocation:
    """Return the files for the handler of a containerd that is started with `main`."""
    main = main or under_root(root, MAIN)
    files = read_files(root, main)
    version = int(files[main].get("version", 1)) if files[main] else 2
    dropped = drop_in_path(root, main, files[main]) if version >= MERGES_SINCE else None
    around = merge_files(
        [found for path, found in files.items() if path != dropped],
        deep=version >= MERGES_SINCE,
    )
    syntax = Configuration(around, version)
    have = [path for path in files if registered_launcher(files[path]) is not None]
    if version >= MERGES_SINCE:
        path = next(iter([*have, *([dropped] if dropped else [])]), main)
    else:
        path = _last_with_cri(files)
    later = _later_default(files, path)
    return ConfigLocation(
        (ConfigFile(path, syntax),),
        RESTART,
        main=main,
        socket=SOCKET,
        default=runtime_path(default_handler(cri_section(around))),
        remarks=(later,) if later else (),
        left=tuple(ConfigFile(other, syntax) for other in have if other != path),
    )


def read_files(root: Path, main: Path) -> dict[Path, toml_text.TomlTable]:
    """Return the content of each file in the order in which containerd reads them, `main` first."""
    contents: dict[Path, toml_text.TomlTable] = {}
    pending = [main]
    while pending:
        path = pending.pop(0)
        if path in contents:
            continue
        contents[path] = toml_text.read(path)
        for pattern in _patterns(contents[path], root, path):
            pending += sorted(Path("/").glob(pattern.lstrip("/")))
    return contents


def drop_in_path(root: Path, main: Path, content: toml_text.TomlTable) -> Path | None:
    """Return gpushare's own file that `main` already imports, None if it imports no folder."""
    for pattern in _patterns(content, root, main):
        folder, name = os.path.split(pattern)
        if name == "*.toml" and "*" not in folder:
            return Path(folder) / DROP_IN
    return None


def merge_files(files: list[toml_text.TomlTable], *, deep: bool) -> toml_text.TomlTable:
    """Return the configuration that containerd builds from its files, in reading order."""
    result: toml_text.TomlTable = copy.deepcopy(files[0])
    for file in files[1:]:
        plugins = result.setdefault("plugins", {})
        for name, content in file.get("plugins", {}).items():
            plugins[name] = _deep(plugins.get(name), content) if deep else copy.deepcopy(content)
        disabled = file.get("disabled_plugins", [])
        result["disabled_plugins"] = [*result.get("disabled_plugins", []), *disabled]
    return result


def runtime_path(handler: toml_text.TomlTable) -> str | None:
    """Return the low-level runtime of a handler, None for containerd's choice."""
    return handler.get("options", {}).get("BinaryName") or None


def _deep(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _deep(old.get(key), value) for key, value in new.items()}}
    return copy.deepcopy(new)


def _patterns(content: toml_text.TomlTable, root: Path, parent: Path) -> list[str]:
    """Return the imports of a file as absolute patterns; relative ones start at its folder."""
    patterns: list[str] = []
    for name in content.get("imports", []):
        absolute = Path(name).is_absolute()
        patterns.append(str(under_root(root, Path(name)) if absolute else parent.parent / name))
    return patterns


def _last_with_cri(files: dict[Path, toml_text.TomlTable]) -> Path:
    """Return the last file that configures CRI, or the first file if none does."""
    paths = list(files)
    for path in reversed(paths):
        content = files[path]
        if cri_section(content) or plugin_key(content)[1] in content.get("plugins", {}):
            return path
    return paths[0]


def _later_default(files: dict[Path, toml_text.TomlTable], ours: Path) -> str:
    """Return a warning if a file that is read after `ours` sets another default."""
    order = sorted({*files, ours}, key=list(files).index) if ours in files else [*files, ours]
    if ours not in files:  # a folder's files are read by name
        order.sort(
            key=lambda path: (path.parent == ours.parent, path.name * (path.parent == ours.parent))
        )
    for path in order[order.index(ours) + 1 :]:
        chosen = cri_section(files[path]).get(DEFAULT)
        if chosen not in {None, NAME}:
            return f"{path} is read later and sets {DEFAULT} = {chosen}"
    return ""


# --- Kubernetes distributions that include their own containerd and generate its files ---
#
# Changes to the generated files are lost at the next start. Each distribution has a file for the
# user's settings. k3s and RKE2 have a template, Go's text/template and not TOML, of which only
# gpushare's own tables are read and changed.
# Source: docs.k3s.io/advanced ("Configuring containerd"), docs.rke2.io/advanced,
# docs.k0sproject.io/stable/runtime, microk8s.io/docs. The services of a node are those of its role:
# docs.k3s.io/installation/configuration, docs.rke2.io/install/quickstart and
# docs.k0sproject.io/stable/install.

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
_IMPORTS: Final = re.compile(r"^\s*imports\s*=.*$", re.MULTILINE)


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
        location = locate(root)
        if path == folder / GENERATED:
            raise EngineError(
                f"{location.owner} regenerates {path} at each start. Use --config {location.path}"
            )
        return replace(location, files=(ConfigFile(path, location.syntax),))
    return None


def _rancher(root: Path, services: tuple[str, str], folder: Path) -> ConfigLocation:
    """k3s and RKE2: config-v3.toml.tmpl takes precedence over config.toml.tmpl in any version.

    `services` are those of a server and of an agent. Only a server has the folder `server` beside
    `agent` (docs.k3s.io/reference/resource-profiling); RKE2 installs the units of both.
    """
    folder = under_root(root, folder)
    is_server = (folder.parents[2] / "server").is_dir()
    name = services[0] if is_server else services[1]
    generated = toml_text.read(folder / GENERATED)
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
        default=runtime_path(default_handler(cri_section(generated))),
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
        location = locate(root, main)
        return replace(location, apply=apply, owner="k0s", socket=socket, services=_K0S_SERVICES)
    # The file that k0s generates from its defaults and the drop-ins, imported by containerd.
    generated = under_root(root, Path("/run/k0s/containerd-cri.toml"))
    around = toml_text.read(generated) or toml_text.read(main)
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
        default=runtime_path(default_handler(cri_section(around))),
        services=_K0S_SERVICES,
    )


def _microk8s(root: Path) -> ConfigLocation:
    """microk8s: generates containerd.toml from a template by replacing strings."""
    path = under_root(root, MICROK8S / "containerd-template.toml")
    found = toml_text.read(path)
    return ConfigLocation(
        (ConfigFile(path, Configuration()),),
        "snap restart microk8s.daemon-containerd",
        main=path.with_name("containerd.toml"),
        owner="microk8s",
        socket=Path("/var/snap/microk8s/common/run/containerd.sock"),
        default=runtime_path(default_handler(cri_section(found))),
        services=("snap.microk8s.daemon-containerd",),
    )


CLUSTERS: Final[dict[str, tuple[Path, Callable[[Path], ConfigLocation]]]] = {
    "k3s": (K3S, lambda root: _rancher(root, ("k3s", "k3s-agent"), K3S)),
    "rke2": (RKE2, lambda root: _rancher(root, ("rke2-server", "rke2-agent"), RKE2)),
    "k0s": (K0S, _k0s),
    "microk8s": (MICROK8S, _microk8s),
}


@dataclass(frozen=True)
class Template(Syntax):
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
        section = cri_section(self.generated)
        present = toml_text.parse_table(edited, self._name) or None
        handler = make_handler(section, present, launcher)
        if present == handler:
            return text
        edited = toml_text.remove_table(edited, self._name, MARK)
        block = f"\n{MARK}\n{toml_text.format_table(self._name, handler)}"
        return toml_text.append(edited, block)

    def unregister(self, text: str, original: str) -> str:  # noqa: ARG002 - has no default
        """Return `text` without the handler."""
        return toml_text.remove_table(text, self._name, MARK)

    def registered(self, text: str) -> Path | None:
        """Return the launcher in `text`, None if it has no handler for gpushare."""
        handler = toml_text.parse_table(text, self._name)
        return Path(handler.get("options", {}).get("BinaryName", "")) if handler else None

    def remarks(self, text: str) -> list[str]:
        """Return warnings about this template, with the lines to write in place of its first ones.

        NVIDIA's toolkit writes `imports` and `version` alone where it finds no file. A newer base
        of k3s and RKE2 begins with both, and TOML takes a key once.
        """
        if not text or _INCLUDES.search(text):
            return []
        imports = _IMPORTS.search(text)
        fix = BASE.strip()
        if imports is not None:
            fix = (
                f"{imports[0].strip()}, then {fix}, in place of its lines imports and version; "
                "without imports where the base of this release has that line"
            )
        what = (
            "the template does not include the base: containerd starts with its default paths and "
            "socket, and the kubelet does not find it"
        )
        return [f"{what}. Begin the template with {fix}"]

    @property
    def _name(self) -> TomlKey:
        return (*plugin_key(self.generated), "runtimes", NAME)
