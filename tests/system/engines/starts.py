# SPDX-License-Identifier: Apache-2.0
"""Many containers that an engine starts at once, as after a node's restart."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gpushare.unix_http import UnixSocketConnection
from tests.stack import Stack

from .docker_client import IMAGE
from .node import BUSYBOX, CriNode
from .pod import IDLE, PodContainer, PodSandbox

#: Of what is created before and removed after; the starts are all at once.
_AT_ONCE: Final = 8
#: As an uninterrupted client of docker waits.
_ANSWER_SECONDS: Final = 300


@dataclass(frozen=True)
class Started:
    """How one start went: the container, how long it took, and what the engine said if it failed"""

    id: str
    seconds: float
    error: str


class Containers(Protocol):
    """Containers that an engine has created, by the ids that it gave them."""

    ids: list[str]

    def start(self, identity: str) -> None:
        """Start one; RuntimeError with what the engine says."""
        ...

    def remove(self) -> None:
        """Kill and remove all."""
        ...


def start_all(containers: Containers) -> list[Started]:
    """Start all at once, and return when the last start has ended."""
    together = threading.Barrier(len(containers.ids))

    def start(identity: str) -> Started:
        together.wait()
        begun, error = time.monotonic(), ""
        try:
            containers.start(identity)
        except RuntimeError as failed:
            error = str(failed)
        return Started(identity, time.monotonic() - begun, error)

    with ThreadPoolExecutor(max_workers=len(containers.ids)) as pool:
        return list(pool.map(start, containers.ids))


@contextmanager
def killed_after(stack: Stack, bound: int) -> Iterator[None]:
    """Kill gpushared once it has bound `bound` more containers, and start the next at once."""
    log = stack.root / "gpushared.log"
    before, over = _bound(log), threading.Event()

    def restart() -> None:
        while not over.is_set() and _bound(log) < before + bound:
            time.sleep(0.02)
        stack.end_daemon()
        stack.start_daemon()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bound(log: Path) -> int:
    return log.read_text().count('"tenant-bound"')


def _several(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(work, items))


class DockerContainers:
    """`count` idle containers of docker under `runtime`, with `variables`, from the probe's image.

    Through the API of dockerd: 200 clients would take more of the machine than what is tested.
    """

    def __init__(
        self, stack: Stack, count: int, *, runtime: str = "gpushare", variables: Sequence[str] = ()
    ) -> None:
        self._socket = Path(stack.env["DOCKER_HOST"].removeprefix("unix://"))
        wanted = {
            "Image": IMAGE,
            # Under runc alone the probe would find no driver, and end while others start.
            "Entrypoint": list(IDLE),
            "Env": list(variables),
            "HostConfig": {
                "Binds": [f"{BUSYBOX}:{BUSYBOX}:ro"],
                "Runtime": runtime,
                "NetworkMode": "none",
            },
        }
        made = _several(lambda _: self._call("POST", "/containers/create", wanted), range(count))
        self.ids: list[str] = [each["Id"] for each in made]

    def start(self, identity: str) -> None:
        self._call("POST", f"/containers/{identity}/start")

    def remove(self) -> None:
        _several(lambda each: self._call("DELETE", f"/containers/{each}?force=1"), self.ids)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = UnixSocketConnection(self._socket, _ANSWER_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        found = json.loads(text) if text else {}
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(found["message"])
        return found


class CriContainers:
    """`count` pods of one container each, as a kubelet has containerd make them."""

    def __init__(
        self, node: CriNode, count: int, *, handler: str = "gpushare", memory: str | None = None
    ) -> None:
        asked = {} if memory is None else {"memory": memory}
        self._pods: list[PodSandbox] = _several(
            lambda _: node.pod(asked, handler=handler), range(count)
        )
        made: list[PodContainer] = _several(lambda pod: pod.create("train"), self._pods)
        self._by_id = {container.id: container for container in made}
        self.ids = list(self._by_id)

    def start(self, identity: str) -> None:
        self._by_id[identity].start()

    def remove(self) -> None:
        def remove(pod: PodSandbox) -> None:
            with pod:  # which stops and removes it, and its container
                pass

        _several(remove, self._pods)
