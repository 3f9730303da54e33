# SPDX-License-Identifier: Apache-2.0
"""The commands of `gpushare`, by section of its help: where they are, and what the help shows.

`gpushare --help` reads this table and imports no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """A command of gpushare."""

    summary: str  # the first line of its help
    example: str
    place: str = ""  # `module:function` in gpushare.cli; empty: its own module's `command`


SECTIONS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "Inspect": {
        "ls": CommandEntry(
            "List the cards and their available capacity.", "gpushare ls", "status:ls"
        ),
        "ps": CommandEntry("List containers and their usage.", "gpushare ps -a", "status:ps"),
        "top": CommandEntry(
            "Show live usage of cards, containers and processes.", "gpushare top --once"
        ),
        "inspect": CommandEntry("Show the details of a container.", "gpushare inspect train"),
        "why": CommandEntry("Break down a container's memory usage.", "gpushare why train"),
        "history": CommandEntry(
            "Show past events of a container or of this node.", "gpushare history train --since 1h"
        ),
        "report": CommandEntry(
            "Report on usage, waste, costs and incidents.",
            "gpushare report chargeback --since 7d --by namespace",
        ),
        "dashboard": CommandEntry(
            "Serve web pages with cards, containers, graphs and reports.",
            "gpushare dashboard --listen unix:/run/gpushare/dashboard.sock",
        ),
        "metrics": CommandEntry(
            "Print the Prometheus metrics once.", "gpushare metrics --node gpu-7", "metrics:metrics"
        ),
    },
    "Manage": {
        "run": CommandEntry(
            "Run a command on this host under a quota.",
            "gpushare run --memory 4GiB --cores 30 -- python train.py",
        ),
        "queue": CommandEntry(
            "List the starts that wait for room, or cancel one.", "gpushare queue"
        ),
        "set": CommandEntry(
            "Change or reset a running container's quota.",
            "gpushare set train --memory 6GiB --cores 40",
        ),
        "pause": CommandEntry(
            "Pause all processes of one or more containers.",
            'gpushare pause train --reason "inspecting card 0"',
            "run_state:pause",
        ),
        "resume": CommandEntry(
            "Resume containers that were paused, or frozen by the audit.",
            "gpushare resume train",
            "run_state:resume",
        ),
        "stop": CommandEntry(
            "Stop one or more containers.",
            "gpushare stop train --timeout 30 --reason 'draining card 0'",
            "run_state:stop",
        ),
        "evict": CommandEntry(
            "Move the GPU memory of containers to host memory.",
            "gpushare evict notebook",
            "run_state:evict",
        ),
        "restore": CommandEntry(
            "Move the GPU memory of evicted containers back to a card.",
            "gpushare restore notebook",
            "run_state:restore",
        ),
        "move": CommandEntry(
            "Move a running container to another card.",
            "gpushare move train --card 1",
            "run_state:move",
        ),
        "card": CommandEntry(
            "Set a card's sharing policy, or cordon and drain it.", "gpushare card ls"
        ),
    },
    "Diagnose": {
        "doctor": CommandEntry("Check this machine and suggest fixes.", "gpushare doctor --k8s"),
        "verify": CommandEntry(
            "Test on this host that quotas are enforced.",
            "gpushare verify --cores 30 --runtime docker",
        ),
        "audit": CommandEntry(
            "Test on this host that the audit detects a container over quota.",
            "gpushare audit --self-test",
            "verify:audit",
        ),
    },
    "Manifests and images": {
        "explain": CommandEntry(
            "Explain a manifest, a code, a topic or an image.",
            "gpushare explain CUDA_ERROR_OUT_OF_MEMORY",
        ),
        "validate": CommandEntry(
            "Check the GPU requests in manifests.", "gpushare validate deploy/ compose.yaml"
        ),
        "compat": CommandEntry(
            "Check whether an image runs on a driver and its cards.",
            "gpushare compat nvidia/cuda:12.4.1-base-ubuntu22.04",
        ),
        "convert": CommandEntry(
            "Convert GPU requests in a manifest to another system's keys.",
            "gpushare convert train.yaml --to gpushare --in-place",
        ),
        "k8s": CommandEntry(
            "Describe resources to a platform's console.",
            "gpushare k8s resources --format alauda | kubectl apply -f -",
        ),
    },
    "Install and configure": {
        "setup": CommandEntry(
            "Set up GPU sharing on this machine, or undo it.",
            "gpushare setup --runtime docker --dry-run",
        ),
        "runtime": CommandEntry(
            "Register the runtime with Docker, containerd, CRI-O or Podman.",
            "gpushare runtime configure --runtime docker --dry-run",
        ),
        "cdi": CommandEntry("Generate CDI specifications.", "gpushare cdi generate --output -"),
        "config": CommandEntry(
            "Show, check and reload the gpushared configuration.",
            "gpushare config check /etc/gpushare/gpushare.yaml",
        ),
        "rules": CommandEntry(
            "Print Prometheus rules and Grafana dashboards.",
            "gpushare rules export --output monitoring",
            "metrics:rules",
        ),
        "completion": CommandEntry(
            "Print the script with which a shell completes gpushare.", "gpushare completion bash"
        ),
        "simulator": CommandEntry(
            "Create simulated cards and inject faults.",
            "gpushare simulator create ./cards --profile h200",
        ),
    },
}
#: The entries by name.
COMMANDS: Final = {name: entry for names in SECTIONS.values() for name, entry in names.items()}
