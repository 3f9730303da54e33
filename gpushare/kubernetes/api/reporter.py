# SPDX-License-Identifier: Apache-2.0
"""Tells the API server what this node offers and what happened on it, on one thread.

It also has the labels of the node configure gpushared.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.events import (
    MESSAGE_CHARACTERS,
    WARNING,
    EventRecorder,
    EventReporter,
    KubernetesEvent,
    NodeObject,
)
from gpushare.kubernetes.api.labels import NODES, NodeLabels, NodeSettings, settings_of
from gpushare.kubernetes.api.server import ApiServer, WatchedObjects
from gpushare.kubernetes.api.slices import SLICES, SlicePublisher
from gpushare.kubernetes.cards import NodeCards, node_cards, pcie_roots
from gpushare.protocol.kubernetes import DRIVER
from gpushare.quota.node_settings import RELEASED

STEP_SECONDS: Final = 5.0
#: How often labels are compared with the node, which something else may change.
VERIFY_SECONDS: Final = 300.0
#: A restart of gpushared is over by then. After it, the scheduler gets no card of this node.
OUTAGE_SECONDS: Final = 15.0
OUTAGE: Final = "daemon: gpushared is not running"
NO_CARDS: Final = "GpuNoCards"
_CLOSE_SECONDS: Final = 5.0


class NodeReporter:
    """Keeps labels, slices and events of the node `name` current, from `start` to `close`.

    Labels and slices stay when it closes, so that an upgrade is not seen by the scheduler; `remove`
    deletes them. Slices are written after `register`: the kubelet deletes them before that.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it stands between the API server and gpushared
        self,
        api: ApiServer,
        source: Client,
        name: str,
        log: StatusLog,
        chart_mode: str,
        root: Path = Path("/"),
    ) -> None:
        self._api = api
        self._source = source
        self._log = log
        self._root = root
        self._labels = NodeLabels(api, name)
        self._slices = SlicePublisher(api, name)
        recorder = EventRecorder(api, name)
        self._recorder = recorder
        self._events = EventReporter(source, recorder)
        self._settings = NodeSettings(source, recorder, chart_mode)
        query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={name}"}
        self._watch = WatchedObjects(api, SLICES, query, changed=self._changed)
        self._wake = threading.Event()
        own = {"fieldSelector": f"metadata.name={name}"}
        self._nodes = WatchedObjects(api, NODES, own, changed=self._wake.set)
        self._registered = False
        self._slices_changed = False
        self._withdrawn = False
        self._located: frozenset[str] = frozenset()  # the cards of `_roots`
        self._roots: dict[str, str] = {}
        self._without_cards = ""  # why the node has none, as last reported
        self._node: NodeCards | None = None
        self._status: Mapping[str, Any] | None = None  # None: gpushared is away
        self._answered = 0.0
        self._verified = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="api-server", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._nodes.start()
        self._thread.start()

    def configure(self) -> None:
        """Have the labels of the node configure gpushared once, without `start`; UserError."""
        self._settings.apply(self._labels.node(), self._source.status())

    def register(self) -> None:
        """Publish slices from now on: the kubelet has registered the driver. Repeatable."""
        if not self._registered:
            self._registered = True
            self._watch.start()
        self._changed()

    def close(self) -> None:
        """End, and leave labels and slices as they are."""
        self._api.stop.set()
        self._wake.set()
        self._watch.close()
        self._nodes.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        if any(RELEASED in settings_of(node).settings for node in self._nodes.objects()):
            # This pod ends by that label. The second step has the cards as the first left them.
            self.step()
            self.step()

    def remove(self) -> None:
        """Remove the node's labels and slices: it offers no cards any more. ApiError.

        From then on gpushare.yaml alone configures gpushared.
        """
        self._labels.remove()
        self._slices.remove()
        try:
            for key in self._source.status().get("node_settings", ()):
                self._source.set_node_setting(key, None)
        except UserError as error:
            self._log.note("gpushared", f"settings by labels of the node stay: {error}")

    def step(self) -> None:
        """Bring the API server up to date once; what fails is logged, and tried again."""
        self._read()
        node = self._node
        if node is not None:
            self._try("labels", lambda: self._labels.write(node))
            self._try("settings", self._apply_labels)
            self._try("cards", self._report_no_cards)
            if node.mode != "dra":
                self._try("slices", self._withdraw)
            elif self._registered:
                self._try("slices", lambda: self._publish(node))
        self._try("events", self._events.step)

    def _apply_labels(self) -> None:
        """Have the labels of the node configure gpushared, if both are known now."""
        if self._status is None:
            return
        for node in self._nodes.objects():
            self._settings.apply(node, self._status)

    def _report_no_cards(self) -> None:
        """Have an event on the node say why there is nothing to register, once."""
        if self._status is None:
            return
        why = ""
        if not self._status["cards"]:
            reason = next(iter(self._status["warnings"]), "see gpushare doctor")
            why = f"gpushared has no card: {reason}"[:MESSAGE_CHARACTERS]
        for node in self._nodes.objects():
            if why and why != self._without_cards:
                about = NodeObject(node["metadata"]["name"], node["metadata"]["uid"])
                event = KubernetesEvent(about, NO_CARDS, WARNING, why, time.time(), "")
                self._recorder.record(event)
            self._without_cards = why

    def _serve(self) -> None:
        while not self._api.stop.is_set():
            try:
                self.step()
            except Exception:  # noqa: BLE001 - an error in one step must not end the others
                self._log.note("reporter", f"internal error: {traceback.format_exc()}")
            self._wake.wait(STEP_SECONDS)
            self._wake.clear()

    def _changed(self) -> None:
        self._slices_changed = True
        self._wake.set()

    def _publish(self, node: NodeCards) -> None:
        self._withdrawn = False
        if self._slices_changed:
            self._slices_changed = False
            self._slices.verify()
        try:
            self._slices.write(node)
        except UserError:
            self._slices_changed = True
            raise

    def _withdraw(self) -> None:
        """Delete the slices of an earlier mode, once."""
        if not self._withdrawn:
            self._slices.remove()
            self._withdrawn = True

    def _read(self) -> None:
        now = time.monotonic()
        try:
            rows, status = self._source.cards(), self._source.status()
        except UserError as error:
            self._log.note("gpushared", str(error))
            self._status = None
            if self._node is not None and now - self._answered >= OUTAGE_SECONDS:
                cards = [replace(card, reason=OUTAGE) for card in self._node.cards]
                self._node = replace(self._node, cards=cards)
            return
        self._answered, self._status = now, status
        present = frozenset(row["uuid"] for row in rows)
        if present != self._located:  # a card does not move while it is there
            self._located, self._roots = present, pcie_roots(self._root)
        self._node = node_cards(rows, status, self._roots)
        self._log.note("gpushared", f"gpushared reports {len(rows)} cards")
        if now - self._verified >= VERIFY_SECONDS:
            self._verified = now
            self._slices.retry()
            self._try("labels", self._labels.verify)

    def _try(self, subject: str, do: Any) -> None:
        try:
            do()
        except UserError as error:
            self._log.note(subject, f"{subject}: {error}")
        else:
            self._log.note(subject, f"{subject}: the API server is up to date")
