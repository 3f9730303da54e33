# SPDX-License-Identifier: Apache-2.0
"""The step of the demonstration that brings what was written for another system."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.verify import GIB, ScenarioSteps
from gpushare.verify.runners import ProbeTenant, environment

#: A request as HAMi's users write it, and the variables that its device plugin sets for it.
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
class Brought(ScenarioSteps):
    """A pod for HAMi is converted, and a container with HAMi's variables gets its quota.

    The manifest is written to `folder`.
    """

    folder: Path = Path()

    def run(self) -> bool:
        """Run the scenario; return whether all checks passed."""
        self.report.title("Manifests of other systems: HAMi's")
        manifest = self.folder / "hami.yaml"
        manifest.write_text(POD, encoding="utf-8")
        self.report.command(["grep", "nvidia", manifest.name])
        self.report.output("\n".join(line for line in POD.splitlines() if "nvidia" in line))
        shown = self.cli_output("convert", str(manifest), "--to", "gpushare")
        self.report.command(["gpushare", "convert", manifest.name, "--to", "gpushare"])
        self.report.output(shown)
        self.report.check(
            "its request is now in annotations, and its limits are gone",
            "gpushare.io/memory: 4GiB" in shown and "limits" not in shown,
        )
        with ExitStack() as stack:
            tenant = stack.enter_context(self._asking())
            tenant.start()
            total = tenant.ask("info")["total"]
            self.show("ps")
            row = self.tenants()[self.full_name("train")]
        self.report.check(
            "a container with the variables of HAMi's plugin gets its 4 GiB", total == 4 * GIB
        )
        self.report.check("and its 30 % of the card's compute", row["cards"][0]["cores"] == 30)
        return self.report.passed

    def _asking(self) -> ProbeTenant:
        name = self.full_name("train")
        argv = self.engine.run(name, {})
        variables = [word for key, value in HANDED.items() for word in ("-e", f"{key}={value}")]
        here = argv.index(IMAGE)
        argv[here:here] = variables
        self.report.command(argv)
        return ProbeTenant(name, argv, environment(self.engine))
