# SPDX-License-Identifier: Apache-2.0
"""What the labels of a node set, of every system, and what is said of labels that are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpushare.client import Client, DaemonUnreachable, RequestRefused
from gpushare.kubernetes.api.event_recorder import EVENTS, EventRecorder
from gpushare.kubernetes.api.node_settings import (
    CHANGED,
    IGNORED,
    NodeSettings,
    SettingsTarget,
)
from gpushare.kubernetes.api.server import ApiServer
from gpushare.quota.node_settings import (
    ALLOWED_MODE,
    POLICY,
    NodeSetting,
)
from tests.stack.api_server import Body, StandInApiServer
from tests.unit.kubernetes.test_node_settings import WANTED_POLICY

NODE = "/api/v1/nodes/n"


class Daemon:
    """Takes settings as gpushared does, or refuses them."""

    def __init__(self) -> None:
        self.settings: dict[str, NodeSetting] = {}
        self.refuses = self.is_away = False
        self.accepts = True
        self.requests = 0

    def set_node_setting(self, key: str, setting: NodeSetting | None) -> None:
        self.requests += 1
        if self.is_away:
            raise DaemonUnreachable("gpushared is not running")
        if self.refuses:
            raise RequestRefused("node label x=y: not allowed on this node. Write z.")
        if setting is None:
            del self.settings[key]
        else:
            self.settings[key] = setting

    @property
    def status(self) -> dict[str, Any]:
        return {"accepts_node_labels": self.accepts, "node_settings": dict(self.settings)}


class Labelled:
    """A node, gpushared, and what keeps the one as the other says."""

    def __init__(self, api: ApiServer, cluster: StandInApiServer) -> None:
        self.api, self.cluster, self.daemon = api, cluster, Daemon()
        self.restart()

    def restart(self) -> None:
        """Have a new gpushare-node follow."""
        recorder = EventRecorder(self.api, "n")
        self.following = NodeSettings(self.daemon, recorder, lambda: 1_780_000_000.0)

    def step(self, **labels: str) -> dict[str, NodeSetting]:
        """Label the node, apply the labels twice, and return the settings of gpushared."""
        names = {key.replace("_", "-"): value for key, value in labels.items()}
        return self.apply({f"gpushare.io/{name}": value for name, value in names.items()})

    def apply(self, labels: Mapping[str, str]) -> dict[str, NodeSetting]:
        node = self.cluster.put(NODE, {"metadata": {"labels": dict(labels)}})
        for _ in range(2):
            self.following.apply(node, self.daemon.status)
        return self.daemon.settings

    def events(self, reason: str) -> list[Body]:
        return [one for one in self.cluster.of(EVENTS) if one["reason"] == reason]


@pytest.fixture
def labelled(api: ApiServer, cluster: StandInApiServer) -> Labelled:
    return Labelled(api, cluster)


def test_labels_are_applied_once_and_reported_on_the_node(labelled: Labelled) -> None:
    assert labelled.step(wanted_policy="burst-share") == {
        POLICY: {"value": "burst-share", "source": f"node label {WANTED_POLICY}"}
    }
    assert labelled.daemon.requests == 1
    [event] = labelled.events(CHANGED)
    assert event["type"] == "Normal"
    assert event["message"].startswith(
        f"defaults.policy is burst-share, by the node label {WANTED_POLICY}"
    )
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
        "uid": labelled.cluster.objects[NODE]["metadata"]["uid"],
    }


def test_without_the_label_gpushare_yaml_sets_it_again(labelled: Labelled) -> None:
    labelled.step(wanted_policy="burst-share", wanted_mode="shared")
    assert labelled.step(wanted_mode="shared").keys() == {ALLOWED_MODE}
    assert labelled.step() == {}
    assert len(labelled.events(CHANGED)) == 4


def test_a_wrong_label_is_one_event_and_no_change(labelled: Labelled) -> None:
    before = dict(labelled.step(wanted_policy="burst-share"))
    assert labelled.step(wanted_policy="burst") == before
    labelled.restart()
    assert labelled.step(wanted_policy="burst") == before
    [event] = labelled.events(IGNORED)
    assert event["type"] == "Warning"
    assert event["count"] == 1
    assert event["message"] == (
        "node label gpushare.io/wanted-policy=burst: not a valid value. Write fixed-share, "
        "burst-share, best-effort or native-burst-share. Nothing was changed."
    )
    assert labelled.step(wanted_policy="best-effort")[POLICY]["value"] == "best-effort"


def test_a_label_that_becomes_wrong_again_raises_the_count(labelled: Labelled) -> None:
    labelled.step(wanted_policy="burst")
    labelled.step()
    labelled.step(wanted_policy="burst")
    labelled.step(wanted_policy="x")
    assert len(labelled.events(IGNORED)) == 2


def test_a_setting_that_gpushared_refuses_is_an_event_and_tried_again(labelled: Labelled) -> None:
    labelled.daemon.refuses = True
    assert labelled.step(wanted_policy="burst-share") == {}
    [event] = labelled.events(IGNORED)
    assert "not allowed on this node" in event["message"]
    labelled.daemon.refuses = False
    assert labelled.step(wanted_policy="burst-share").keys() == {POLICY}


def test_a_gpushared_that_is_away_is_asked_again_later(labelled: Labelled) -> None:
    labelled.daemon.is_away = True
    with pytest.raises(DaemonUnreachable):
        labelled.step(wanted_policy="burst-share")
    labelled.daemon.is_away = False
    assert labelled.step(wanted_policy="burst-share").keys() == {POLICY}
    assert not labelled.events(IGNORED)


def test_a_node_that_accepts_no_labels_is_left_alone(labelled: Labelled) -> None:
    labelled.daemon.accepts = False
    assert labelled.step(wanted_policy="burst", wanted_mode="shared") == {}
    assert not labelled.cluster.of(EVENTS)


def test_a_gpushared_of_an_earlier_version_is_left_alone(labelled: Labelled) -> None:
    node = labelled.cluster.put(NODE, {"metadata": {"labels": {WANTED_POLICY: "burst-share"}}})
    labelled.following.apply(node, {"kubernetes_mode": "dra"})
    assert labelled.daemon.requests == 0


def test_gpushareds_client_is_a_target(tmp_path: Path) -> None:
    target: SettingsTarget = Client(tmp_path / "control.sock")
    with pytest.raises(DaemonUnreachable):
        target.set_node_setting(POLICY, None)
