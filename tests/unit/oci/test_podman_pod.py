# SPDX-License-Identifier: Apache-2.0
"""Which container of its pod a container of podman is, by podman's storage alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare.oci import request
from gpushare.oci.request import parse_spec_request, sandbox_annotations, trusted_annotations
from gpushare.quota.errors import QuotaError
from gpushare.quota.request_policy import RequestPolicy

INFRA, TRAIN, SIDE = "1f" * 32, "2e" * 32, "3d" * 32
SCOPED = {"gpushare.io/container.train.memory": "4GiB"}
KAI = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"}
IN_POD = {request.PODMAN_SANDBOX: INFRA}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """podman's storage with the pod `job-1`, whose containers are `train` and `side`."""
    names = {INFRA: "0123456789ab-infra", TRAIN: "job-1-train", SIDE: "job-1-side"}
    listed = [{"id": one, "names": [name]} for one, name in names.items()]
    (tmp_path / "containers.json").write_text(json.dumps(listed))
    for one in names:
        (tmp_path / one / "userdata").mkdir(parents=True)
    infra = {"ociVersion": "1.0.2", "hostname": "job-1", "annotations": {}}
    (tmp_path / INFRA / "userdata" / "config.json").write_text(json.dumps(infra))
    return tmp_path


def rename_host(storage: Path, name: object) -> None:
    file = storage / INFRA / "userdata" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "hostname": name}))


def requested(storage: Path, identity: str, annotations: dict[str, str]) -> dict[str, str]:
    """Return what a container requests, by canonical key, as at its create."""
    bundle = str(storage / identity / "userdata")
    trusted = trusted_annotations(bundle, annotations)
    found = parse_spec_request(
        trusted,
        {},
        of_pod=sandbox_annotations(trusted, bundle),
        cards=None,
        terms_of=lambda _: RequestPolicy(),
    )
    return {key: one.shown for key, one in found.quota.requested.items()}


@pytest.mark.parametrize("annotations", [SCOPED, KAI])
def test_only_the_named_container_requests(storage: Path, annotations: dict[str, str]) -> None:
    assert requested(storage, TRAIN, {**annotations, **IN_POD})
    assert not requested(storage, SIDE, {**annotations, **IN_POD})


def test_a_container_in_no_pod_is_none_of_a_pod(storage: Path) -> None:
    with pytest.raises(QuotaError, match="this container is not in a pod"):
        requested(storage, TRAIN, SCOPED)


@pytest.mark.parametrize("name", ["other", "", 3, None, "job"])
def test_a_pod_with_another_host_name_is_refused_with_the_way_that_works(
    storage: Path, name: object
) -> None:
    rename_host(storage, name)
    if name == "job":  # `job-1-train` would be container `1-train` of it: another one
        assert not requested(storage, TRAIN, {**SCOPED, **IN_POD})
        return
    with pytest.raises(QuotaError) as refused:
        requested(storage, TRAIN, {**SCOPED, **IN_POD})
    assert str(refused.value) == (
        "annotation gpushare.io/container.train.memory=4GiB: names a container of its pod, and "
        "podman does not tell which one this is. Set GPUSHARE_MEMORY in the environment of that "
        "container, or omit the pod's hostname."
    )


@pytest.mark.parametrize("sandbox", ["4c" * 32, "../" + INFRA, "x"])
def test_a_sandbox_that_is_not_there_is_refused(storage: Path, sandbox: str) -> None:
    with pytest.raises(QuotaError, match="podman does not tell"):
        requested(storage, TRAIN, {**SCOPED, request.PODMAN_SANDBOX: sandbox})


@pytest.mark.parametrize("file", ["containers.json", f"{INFRA}/userdata/config.json"])
def test_a_storage_that_cannot_be_read_is_no_name(storage: Path, file: str) -> None:
    (storage / file).write_text("{")
    with pytest.raises(QuotaError, match="podman does not tell"):
        requested(storage, TRAIN, {**SCOPED, **IN_POD})
    assert request.name_in_podman_pod("/run/containerd/train", {}) is None
