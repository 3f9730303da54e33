# SPDX-License-Identifier: Apache-2.0
"""A running gpushare-exporter, and a Prometheus that scrapes it."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from gpushare.cli.metrics import RULES, read
from tests.stack import Stack
from tests.stack.program import ServiceProcess

EXPORTER = Path(sys.executable).parent / "gpushare-exporter"
LOOPBACK = "127.0.0.1"
#: The annotations of a pod's container, as containerd's CRI plugin writes them.
POD = {
    "io.kubernetes.cri.container-name": "main",
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "5a4d",
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.sandbox-namespace": "team",
    "io.kubernetes.cri.sandbox-uid": "0a1b",
}


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


class Prometheus:
    """A Prometheus that scrapes an exporter, and evaluates the rules, once a second."""

    def __init__(self, exporter: Exporter) -> None:
        found = shutil.which("prometheus")
        assert found, "run ./dev setup: it installs prometheus"
        self._port, folder = free_port(), exporter.stack.root / "prometheus"
        folder.mkdir()
        rules = yaml.safe_load(read(RULES))
        for group in rules["groups"]:
            group.pop("interval", None)
        (folder / RULES).write_text(yaml.safe_dump(rules))
        targets = [f"{LOOPBACK}:{exporter.port}"]
        scraped = {
            "job_name": "gpushare",
            "honor_labels": True,
            "static_configs": [{"targets": targets}],
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [RULES],
            "scrape_configs": [scraped],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.program = exporter.stack.start(
            "prometheus",
            [
                found,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self._address}",
            ],
        )

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    def call(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API, {} if it does not answer yet."""
        query = urllib.parse.urlencode(parameters)
        try:
            url = f"http://{self._address}/api/v1/{path}?{query}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it starts
                return {}
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return {}

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        found: list[dict[str, Any]] = self.call("query", query=text).get("result", [])
        return found


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
