# SPDX-License-Identifier: Apache-2.0
"""Which container a cgroup names: of every engine, under v1 and v2, with both cgroup drivers."""

from __future__ import annotations

import pytest

from gpushare.daemon.observe.non_tenant import container_of

ID = "4f5e6d7c8b9a" + "0" * 52
POD = "pod1c0ffee0-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"/docker/{ID}", "docker 4f5e6d7c8b9a"),
        (f"/system.slice/docker-{ID}.scope", "docker 4f5e6d7c8b9a"),
        (f"/kubepods/burstable/{POD}/{ID}", "containerd 4f5e6d7c8b9a"),
        (f"/kubepods.slice/x.slice/cri-containerd-{ID}.scope", "containerd 4f5e6d7c8b9a"),
        (f"/kubepods.slice/x.slice/crio-{ID}.scope", "cri-o 4f5e6d7c8b9a"),
        (f"/machine.slice/libpod-{ID}.scope", "podman 4f5e6d7c8b9a"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman 4f5e6d7c8b9a"),
        (f"/docker/{ID}/docker/{'b' * 64}", "docker " + "b" * 12),
        ("/user.slice/user-1000.slice/session-2.scope", ""),
        ("/system.slice/nvidia-persistenced.service", ""),
        ("/", ""),
    ],
)
def test_an_engines_container_is_distinguished_from_the_hosts_own(path: str, said: str) -> None:
    assert container_of({"": path}) == said
    assert container_of({"": "/", "devices": path, "pids": path, "freezer": path}) == said


def test_a_runtimes_own_group_is_one_that_every_hierarchy_has() -> None:
    own = "/some-namespace/train"
    assert container_of(dict.fromkeys(("devices", "pids", "freezer"), own)) == (
        "container some-namespace/train"
    )
    assert container_of({"devices": own, "pids": "/", "freezer": own}) == ""
    assert container_of(dict.fromkeys(("devices", "pids", "freezer"), "/gpushare/host-1")) == ""
    assert container_of({}) == ""
