# SPDX-License-Identifier: Apache-2.0
"""A running gpushare-exporter, as Prometheus reads it."""

from __future__ import annotations

import http.client
import socket
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.stack import Stack
from tests.stack.program import ServiceProcess

EXPORTER = Path(sys.executable).parent / "gpushare-exporter"
LOOPBACK = "127.0.0.1"


class Exporter:
    """A running exporter on a free port of loopback."""

    def __init__(self, stack: Stack, program: ServiceProcess, port: int) -> None:
        self.stack, self.program, self.port = stack, program, port

    @classmethod
    def of(cls, stack: Stack, *options: str) -> Exporter:
        """Start one without privileges for the daemon of `stack`, and wait for its figures."""
        port = free_port()
        argv = [str(EXPORTER), "--socket", str(stack.socket), "--listen", f"{LOOPBACK}:{port}"]
        powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        program = stack.start("exporter", [*powerless, *argv, "--node", "node-1", *options])
        program.wait_until(lambda: answers(port))
        made = cls(stack, program, port)
        program.wait_until(lambda: made.value("gpushare_driver_up") == 1)
        return made

    def ask(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of a name with those labels."""
        status, text = self.ask()
        assert status == 200
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of those series, None where there is none."""
        found = [value for _, value in self.series(name, **labels)]
        return sum(found) if found else None


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=5).close()
    except OSError:
        return False
    return True
