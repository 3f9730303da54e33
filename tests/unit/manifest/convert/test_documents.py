# SPDX-License-Identifier: Apache-2.0
"""Changes, refusals and notes in particular: by kinds of files, and by neighbouring keys."""

from __future__ import annotations

import textwrap

import pytest
import yaml

from gpushare.manifest import read
from gpushare.manifest.convert import Converted, convert
from gpushare.manifest.convert.conversion import CannotConvert
from gpushare.manifest.convert.targets import TARGETS

LIMITS = "{nvidia.com/gpu: 1, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 30}"


def converted(text: str, target: str = "gpushare") -> Converted:
    return convert(read("f.yaml", textwrap.dedent(text)), TARGETS[target])


def told(made: Converted, key: str) -> str:
    """Return the note about `key`: `lost: why`."""
    return " ".join(f"{one.what}: {one.why}" for one in made.notes if one.key == key)


def refused(text: str, target: str = "gpushare") -> str:
    with pytest.raises(CannotConvert) as raised:
        converted(text, target)
    return str(raised.value)


def pod(spec: str, annotations: str = "{}") -> str:
    """Return a pod with one container of `spec`, in flow style."""
    return (
        f"kind: Pod\nmetadata: {{name: p, annotations: {annotations}}}\n"
        f"spec:\n  containers: [{{name: c, image: i, {spec}}}]\n"
    )


def test_a_part_of_a_mig_instance_stays_and_is_reported() -> None:
    """No request says it: taken out, the container would have no GPU."""
    made = converted(pod("resources: {limits: {nvidia.com/mig-1c.3g.40gb: 1}}"))
    assert not made.changed
    assert "gpushare.io/devices" in told(made, "nvidia.com/mig-1c.3g.40gb")


def test_a_key_that_is_there_twice_is_refused() -> None:
    text = pod("resources: {limits: {nvidia.com/gpumem: 1024, nvidia.com/gpumem: 2048}}")
    assert "f.yaml:4: nvidia.com/gpumem is a duplicate of line 4" in refused(text)


def test_a_shell_variable_is_reported() -> None:
    made = converted(
        """\
        services:
          a:
            image: i
            environment:
              CUDA_DEVICE_MEMORY_LIMIT: ${MEM}
          b:
            image: i
            environment:
              CUDA_DEVICE_MEMORY_LIMIT: ${MEM:-4g}
        """
    )
    services = yaml.safe_load(made.text)["services"]
    assert services["a"]["environment"] == {"CUDA_DEVICE_MEMORY_LIMIT": "${MEM}"}
    assert services["b"]["environment"] == {"GPUSHARE_MEMORY": "4GiB"}
    said = told(made, "CUDA_DEVICE_MEMORY_LIMIT")
    assert "left: not converted, because its value is not in this file" in said
    assert "note: the default of ${MEM:-4g} is used: 4g" in said


def test_pod_wide_values_of_the_target_are_reported_where_containers_differ() -> None:
    made = converted(
        """\
        kind: Pod
        metadata:
          name: p
          annotations:
            gpushare.io/container.a.memory: 1GiB
            gpushare.io/container.a.allow: A100
            gpushare.io/container.b.memory: 2GiB
            gpushare.io/container.b.allow: T4
        spec:
          runtimeClassName: gpushare
          containers:
          - {name: a, image: i}
          - {name: b, image: i}
        """,
        "hami",
    )
    assert yaml.safe_load(made.text)["metadata"]["annotations"] == {
        "nvidia.com/use-gputype": "A100"
    }
    assert [one.why for one in made.lost] == [
        (
            "allow T4: nvidia.com/use-gputype applies to the whole pod, and another container "
            "needs another value"
        )
    ]
    assert "runtimeClassName" not in made.text


def test_an_unrequested_value_of_the_target_is_refused() -> None:
    """NVIDIA_VISIBLE_DEVICES says nothing beside Huawei's limit, and cards to HAMi."""
    env = "env: [{name: NVIDIA_VISIBLE_DEVICES, value: '3'}]"
    text = pod(f"{env}, resources: {{limits: {{volcano.sh/gpu-mem.128Mi: 16}}}}")
    assert "its devices would change, by env NVIDIA_VISIBLE_DEVICES; remove that key" in refused(
        text, "hami"
    )
    assert converted(text).changed


def test_a_document_that_would_lose_a_comment_is_refused() -> None:
    text = pod(f"resources: {{limits: {LIMITS}}}").replace("{name: p,", "{name: p, # mine\n ")
    assert "f.yaml:2: the comment # mine would be lost" in refused(text)


A_GPU = f"image: i, resources: {{limits: {LIMITS}}}"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("{name: c, %}, {%}", "a request needs the container's name; add one"),
        ("{name: c, %}, {name: c, %}", "two containers of this pod are named c; rename one"),
        (f"{{name: c, %}}, {{name: {'d' * 55}, %}}", "is too long for Kubernetes; rename the"),
        ("{%, image: }", "recognized as a container without its resources; add its image"),
        ("{name: c, %}]\n{a: b}: [c", "f.yaml:5: a key that is not a text; render the template"),
        (f"{{name: c, %}}] # {'x' * (1 << 20)}\nd: [", "is larger than 1 MiB; split it"),
        ("{name: c, %}]\nat: [!!timestamp 2001-99-99", "read it: month must be in 1..12"),
    ],
)
def test_containers_that_cannot_be_converted_are_refused(names: str, why: str) -> None:
    listed = names.replace("%, image: ", A_GPU.removeprefix("image: i, ")).replace("%", A_GPU)
    assert why in refused(f"kind: Pod\nmetadata: {{}}\nspec:\n  containers: [{listed}]\n")


def test_what_is_not_what_it_should_be_is_refused() -> None:
    assert "annotations is not a mapping; write one" in refused(pod(A_GPU[10:], "[a]"))
    unread = pod("env: [{name: CUDA_DEVICE_SM_LIMIT, value: many}]")
    assert "env CUDA_DEVICE_SM_LIMIT=many" in refused(unread, "hami")
    profile = pod("", "{gpushare.io/profile: small}")
    assert "only the node knows its profile small" in refused(profile, "hami")
    half = pod("", "{gpushare.io/memory-percent: '0.5'}")
    assert "c: its kind would change; remove that key" in refused(half, "hami")


def test_what_a_target_cannot_express_exactly_is_reported() -> None:
    made = converted(pod("", "{gpushare.io/memory-percent: '1.5'}"), "hami")
    assert "nvidia.com/gpumem-percentage: 1" in made.text
    assert told(made, "gpushare.io/memory-percent").endswith("1.5 %, rounded down to 1")
    made = converted(pod("", "{gpushare.io/count: '2', gpushare.io/class: offline}"), "qgpu")
    assert "an offline pod of qGPU has one card" in told(made, "gpushare.io/class")
    for target, key, value, why in (
        ("qgpu", "cores", "33", "not a multiple of 5; rounded up to 35"),
        ("hami", "devices", "1", "HAMi selects cards by UUID"),
        ("hami", "allow", "A100,GPU-1", "mixes models and UUIDs in one list"),
    ):
        asked = f"{{gpushare.io/memory: 4GiB, gpushare.io/{key}: '{value}'}}"
        assert why in told(converted(pod("", asked), target), f"gpushare.io/{key}")
    asked = "{gpushare.io/memory: 4GiB, gpushare.io/count: '2', gpushare.io/devices: 'GPU-1,GPU-2'}"
    assert 'nvidia.com/use-gpuuuid: "GPU-1,GPU-2"' in converted(pod("", asked), "hami").text
