# SPDX-License-Identifier: Apache-2.0
"""The step of the demonstration that brings what was written for another system."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.verify import Tenant
from gpushare.verify.engine import environment
from gpushare.verify.stage import GIB, Stage

#: What HAMi's users write, and what its device plugin would hand to the container for that.
POD: Final = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  containers:
    - name: train
      image: gpushare-probe
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpumem: 4096   # MiB
          nvidia.com/gpucores: 30
"""
HANDED: Final = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"}
IMAGE: Final = "gpushare-probe"


@dataclass
class Brought(Stage):
    """A pod for HAMi: understood, rewritten, and a container that asks in HAMi's words.

    `folder` is where the manifest is written.
    """

    folder: Path = Path()

    def run(self) -> bool:
        """Return whether all that was claimed held."""
        self.report.title("Manifests of other systems: HAMi's")
        manifest = self.folder / "hami.yaml"
        manifest.write_text(POD, encoding="utf-8")
        self.report.command(["grep", "nvidia", manifest.name])
        self.report.output("\n".join(line for line in POD.splitlines() if "nvidia" in line))
        shown = self.cli_said("convert", str(manifest), "--to", "gpushare")
        self.report.command(["gpushare", "convert", manifest.name, "--to", "gpushare"])
        self.report.output(shown)
        self.report.check(
            "what it asks is said by annotations, and its limits are gone",
            "gpushare.io/memory: 4GiB" in shown and "limits" not in shown,
        )
        with ExitStack() as stack:
            tenant = stack.enter_context(self._asking())
            tenant.start()
            total = tenant.ask("info")["total"]
            self.show("ps")
            row = self.tenants()[self.full_name("train")]
        self.report.check(
            "a container that asks as HAMi's plugin does has its 4 GiB", total == 4 * GIB
        )
        self.report.check("and its 30 % of the card's compute", row["cards"][0]["cores"] == 30)
        return self.report.held

    def _asking(self) -> Tenant:
        name = self.full_name("train")
        argv = self.engine.run(name, {})
        variables = [word for key, value in HANDED.items() for word in ("-e", f"{key}={value}")]
        here = argv.index(IMAGE)
        argv[here:here] = variables
        self.report.command(argv)
        return Tenant(name, argv, environment(self.engine))
