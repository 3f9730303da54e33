# SPDX-License-Identifier: Apache-2.0
"""A container's request: every vendor's keys beside ours, and what a runtime gets of it."""

from __future__ import annotations

from gpushare.manifest.request import ManifestRequest, request_of, settings_of

from .test_kubernetes import manifest, only


def request(text: str, *, strict: bool = True) -> ManifestRequest:
    return request_of(only(manifest(text)), strict=strict)


def asked(found: ManifestRequest) -> dict[str, str]:
    return {key: one.text for key, one in found.requested.items()}


def pod(resources: str = "", annotations: str = "", env: str = "") -> str:
    return (
        f"kind: Pod\nmetadata: {{annotations: {{{annotations}}}}}\nspec:\n  containers:\n"
        f"    - name: c\n      image: i\n      env: [{env}]\n      resources: {{{resources}}}\n"
    )


HAMI = "limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}"


def test_every_error_is_reported_with_its_value() -> None:
    found = request(
        pod(
            "limits: {nvidia.com/gpumem: x}",
            "gpushare.io/memory: 4Q, gpushare.io/coers: '30', gpushare.io/container.c.count: '0'",
            "{name: GPUSHARE_WEIGHT, value: heavy}",
        )
    )
    assert [(one.error.where, one.value.line if one.value else 0) for one in found.problems] == [
        ("pod annotation gpushare.io/memory", 2),
        ("pod annotation gpushare.io/coers", 2),
        ("annotation gpushare.io/container.c.count", 2),
        ("env GPUSHARE_WEIGHT", 7),
        ("limit nvidia.com/gpumem (HAMi)", 8),
    ]
    assert "did you mean gpushare.io/cores?" in found.problems[1].error.fix


def test_two_dialects_are_refused_or_the_smaller_holds() -> None:
    text = pod("limits: {nvidia.com/gpumem: 3000}", "gpushare.io/container.c.memory: 2GiB")
    (refusal,) = request(text).problems
    assert refusal.value is not None
    assert refusal.value.text == "2GiB"
    assert refusal.error.fix.startswith("keep one of the two")
    lenient = request(text, strict=False)
    assert lenient.problems == ()
    assert asked(lenient) == {"memory": "2GiB"}
    assert any("requests less" in note for note in lenient.notes)


def test_the_environment_of_a_pod_asks_for_nothing_and_that_of_compose_does() -> None:
    of_pod = request(pod(env="{name: GPUSHARE_MEMORY, value: 4GiB}"))
    assert asked(of_pod) == {}
    assert any("may only shrink" in note for note in of_pod.notes)
    of_compose = request("services: {a: {image: i, environment: {GPUSHARE_MEMORY: 4GiB}}}")
    assert asked(of_compose) == {"memory": "4GiB"}


def test_the_environment_of_a_config_json_asks_where_no_kubelet_made_it() -> None:
    env = '"process": {"env": ["GPUSHARE_MEMORY=4GiB"]}'
    alone = f'{{"ociVersion": "1", {env}}}'
    assert asked(request(alone)) == {"memory": "4GiB"}
    of_pod = '"annotations": {"io.kubernetes.cri.container-name": "c"}'
    assert asked(request(f'{{"ociVersion": "1", {env}, {of_pod}}}')) == {}


def test_the_labels_of_a_node_are_its_operators() -> None:
    (document,) = manifest(
        "kind: Node\nmetadata: {labels: {tke.cloud.tencent.com/qgpu-schedule-policy: fs}}\n"
    ).documents
    (found,) = settings_of(document)
    assert found.word.dialect.name == "qgpu"
    assert found.value.line == 2
