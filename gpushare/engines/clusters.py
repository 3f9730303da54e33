# SPDX-License-Identifier: Apache-2.0
"""The distributions of Kubernetes that bring a containerd of their own, and write its files.

What they generate is lost at their next start; each has a file of the user's that is kept.
Source: docs.k3s.io/advanced, docs.rke2.io/advanced, docs.k0sproject.io/stable/runtime,
microk8s.io/docs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare.engines import imports, toml_text
from gpushare.engines.containerd import Configuration, default_handler, section_of
from gpushare.engines.errors import BadConfiguration, EngineError
from gpushare.engines.place import NAME, File, Place, beneath, text_of
from gpushare.engines.template import Template

GENERATED: Final = "config.toml"
TEMPLATES: Final = {3: "config-v3.toml.tmpl", 2: "config.toml.tmpl"}  # in the order they are tried

K3S: Final = Path("/var/lib/rancher/k3s/agent/etc/containerd")
RKE2: Final = Path("/var/lib/rancher/rke2/agent/etc/containerd")
K0S: Final = Path("/etc/k0s")
MICROK8S: Final = Path("/var/snap/microk8s/current/args")
_K0S_SERVICES: Final = ("k0sworker", "k0scontroller")
_MANAGED: Final = "# k0s_managed=true"


def find(root: Path = Path("/")) -> Place | None:
    """Return where the distribution that is here is told, None where there is none.

    EngineError where there are several (the user chooses by --config), or it never ran.
    """
    here = [name for name, (sign, _) in CLUSTERS.items() if beneath(root, sign).is_dir()]
    if len(here) > 1:
        raise EngineError(
            f"{' and '.join(here)} are both here; choose by --config FILE, one of: "
            + ", ".join(str(CLUSTERS[name][1](root).path) for name in here)
        )
    return CLUSTERS[here[0]][1](root) if here else None


def of_file(path: Path, root: Path = Path("/")) -> Place | None:
    """Return the place of a distribution whose folder `path` is in; None where it is of none."""
    for sign, place in CLUSTERS.values():
        folder = beneath(root, sign)
        if folder not in path.parents or not folder.is_dir():
            continue
        found = place(root)
        if path == folder / GENERATED:
            raise EngineError(
                f"{path} is written anew at each start of {found.owner}; use --config {found.path}"
            )
        return replace(found, files=(File(path, found.syntax),))
    return None


def _rancher(root: Path, name: str, folder: Path) -> Place:
    """k3s and RKE2: config-v3.toml.tmpl is taken before config.toml.tmpl, whatever containerd."""
    folder = beneath(root, folder)
    generated = parsed(folder / GENERATED)
    there = [folder / file for file in TEMPLATES.values() if (folder / file).exists()]
    if not generated:
        raise EngineError(
            f"{folder / GENERATED} is not there: {name} has not run yet, and which template it "
            f"reads depends on its containerd; start {name} once"
        )
    version = 3 if int(generated.get("version", 2)) >= 3 else 2
    path = there[0] if there else folder / TEMPLATES[version]
    syntax = Template(generated)
    return Place(
        (File(path, syntax),),
        f"systemctl restart {name}",
        main=folder / GENERATED,
        owner=name,
        socket=Path("/run/k3s/containerd/containerd.sock"),  # of RKE2 too
        default=imports.program_of(default_handler(section_of(generated))),
        remarks=(f"on an agent the service is {name.partition('-')[0]}-agent",),
        left=tuple(File(other, syntax) for other in there[1:]),
        services=(name, f"{name.partition('-')[0]}-agent"),
    )


def _k0s(root: Path) -> Place:
    """k0s: a drop-in is merged into its configuration while that bears k0s' mark."""
    main = beneath(root, K0S / "containerd.toml")
    text = text_of(main)
    apply = "systemctl restart k0sworker"
    socket = Path("/run/k0s/containerd.sock")
    if text and _MANAGED not in text:
        place = imports.place(root, main)
        return replace(place, apply=apply, owner="k0s", socket=socket, services=_K0S_SERVICES)
    # What k0s made of its defaults and the drop-ins, for containerd to import.
    around = parsed(beneath(root, Path("/run/k0s/containerd-cri.toml"))) or parsed(main)
    version = int(around.get("version", 2))
    path = beneath(root, K0S / "containerd.d" / f"{NAME}.toml")
    return Place(
        (File(path, Configuration(around or {"version": version}, version, keeps_runc=True)),),
        apply,
        main=main,
        owner="k0s",
        socket=socket,
        default=imports.program_of(default_handler(section_of(around))),
        remarks=("on a controller that runs pods the service is k0scontroller",),
        services=_K0S_SERVICES,
    )


def _microk8s(root: Path) -> Place:
    """microk8s: containerd.toml is made from a template in which only strings are replaced."""
    path = beneath(root, MICROK8S / "containerd-template.toml")
    found = parsed(path)
    return Place(
        (File(path, Configuration()),),
        "snap restart microk8s.daemon-containerd",
        main=path.with_name("containerd.toml"),
        owner="microk8s",
        socket=Path("/var/snap/microk8s/common/run/containerd.sock"),
        default=imports.program_of(default_handler(section_of(found))),
        services=("snap.microk8s.daemon-containerd",),
    )


def parsed(path: Path) -> toml_text.Tree:
    """Return what the file at `path` says; EngineError with its line where it is no TOML."""
    try:
        return toml_text.parse(text_of(path))
    except BadConfiguration as error:
        line = f":{error.line}" if error.line else ""
        raise EngineError(f"{path}{line}: {error}; nothing was changed") from error


CLUSTERS: Final[dict[str, tuple[Path, Callable[[Path], Place]]]] = {
    "k3s": (K3S, lambda root: _rancher(root, "k3s", K3S)),
    "rke2": (RKE2, lambda root: _rancher(root, "rke2-server", RKE2)),
    "k0s": (K0S, _k0s),
    "microk8s": (MICROK8S, _microk8s),
}
