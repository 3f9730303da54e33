# SPDX-License-Identifier: Apache-2.0
"""The manifests of configs/kubernetes, rendered from the chart for clusters without helm.

`python -m packages.manifests`, in `packaging`, writes the folder again. It requires helm, which the
tests' set-up gets.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from . import chart
from .workspace import Workspace, run

FOLDER: Final = Path("configs/kubernetes")
NAMESPACE: Final = "gpushare-system"
#: The values of the chart, by the folder of the manifests.
VALUES: Final = {
    "annotations": {"mode": "annotations"},
    "plugin": {"mode": "plugin"},
    "dra": {"mode": "dra", "admission.templates": "true"},
    "remove": {"mode": "dra", "state": "absent"},
}
#: The oldest version that has every object of the chart in its final form.
KUBERNETES: Final = "1.36"
#: Lines of kustomization.yaml for what versions of Kubernetes that are in use do not have, and for
#: what goes with it.
RECENT: Final = {
    "mutatingadmissionpolicy.yaml": "  # - %s  # Kubernetes 1.36 or newer\n",
    **dict.fromkeys(
        ("severaladmissionpolicy.yaml", "claimadmissionpolicy.yaml", "claimtemplates.yaml"),
        "  # - %s  # with mutatingadmissionpolicy.yaml\n",
    ),
}
_LICENCE: Final = "# SPDX-License-Identifier: Apache-2.0\n"
_KUSTOMIZATION: Final = "kustomization.yaml"
_KIND: Final = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
#: helm begins each object with the name of its template.
_OBJECT: Final = re.compile(r"^---\n# Source: \S+/templates/(\S+)\n", re.MULTILINE)
# The install container is privileged and sees the node's processes.
_NAMESPACE: Final = f"""\
{_LICENCE}apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""
_TOP: Final = f"""\
{_LICENCE}# kubectl apply -k configs/kubernetes
{_KIND}resources:
  - plugin  # or: annotations, dra. To uninstall: remove
images:
  - name: localhost/gpushare
    newName: localhost/gpushare  # REGISTRY/gpushare, where you pushed the image
    newTag: "%s"
"""


def manifests(workspace: Workspace, helm: Path) -> dict[str, str]:
    """Return the text of each file of FOLDER by its path there."""
    texts = {_KUSTOMIZATION: _TOP % workspace.version}
    with tempfile.TemporaryDirectory(prefix="gpushare-chart-") as source:
        chart.unpack(workspace, Path(source))
        for folder, values in VALUES.items():
            files = {"namespace.yaml": _NAMESPACE} | _rendered(Path(source), helm, values)
            texts |= {f"{folder}/{name}": text for name, text in files.items()}
            listed = "".join(RECENT.get(name, "  - %s\n") % name for name in files)
            texts[f"{folder}/{_KUSTOMIZATION}"] = f"{_LICENCE}{_KIND}resources:\n{listed}"
    return texts


def _rendered(source: Path, helm: Path, values: dict[str, str]) -> dict[str, str]:
    """Return the text of each template that has objects with these values, by its name."""
    words = ["template", chart.NAME, str(source), f"--namespace={NAMESPACE}"]
    words += [f"--kube-version={KUBERNETES}", *(f"--set={key}={values[key]}" for key in values)]
    _, *parts = _OBJECT.split(run([helm, *words], cwd=source))
    objects: dict[str, list[str]] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        objects.setdefault(name, []).append(text.replace(_LICENCE, "").strip("\n") + "\n")
    return {name: _LICENCE + "---\n".join(texts) for name, texts in objects.items()}


def main() -> None:
    """Write FOLDER."""
    root = Path(__file__).resolve().parents[2]
    workspace = Workspace.of(root, root / "build")
    texts = manifests(workspace, root / "build/tools/usr/local/bin/helm")
    for path in (root / FOLDER).rglob("*.yaml"):
        path.unlink()
    for name, text in texts.items():
        path = root / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
