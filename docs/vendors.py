# SPDX-License-Identifier: Apache-2.0
"""The page of what runs unchanged, as the expected results of tests/corpus say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from tests.corpus.cases import CASES
from tests.corpus.pods import pods
from tests.corpus.results import MODES, by_convert, named, node_labels

_INTRO: Final = """\
Which manifests of other systems run unchanged, and what the others need. The manifests are those
of `tests/corpus`. For the steps, see
[use your existing manifests](../how-to/bring-your-manifests.md); for the meaning of each key, see
[other systems' keys](dialects.md)."""
_IN_KUBERNETES: Final = """\
From Kubernetes 1.36 on, [a policy of the chart](../how-to/admission-policies.md) translates pods
when they are created. For this page, it is applied to the pods of each manifest, and gpushared
reads the result. *unchanged* means that every container requests exactly what `gpushare convert`
writes for it. Controllers such as those of Volcano, Kubeflow and Ray still have to run. [On a
cluster](../how-to/try-on-a-cluster.md#seen-on-real-clusters), with Kubernetes 1.36.2 and simulated
cards, pods of HAMi have run; those of the other systems have not.

In the mode `dra`, this needs `admission.templates: true` in the chart's values: the policy names a
ResourceClaimTemplate, and a Deployment of the chart
[creates it](../how-to/kubernetes-dra.md#run-pods-of-other-systems). What `gpushare convert` writes
is for the mode `annotations`."""
_OUTSIDE: Final = """\
*unchanged* means that the variables alone make the request, if gpushare is the
[default runtime](../how-to/register-an-engine.md) or the service has `runtime: gpushare`."""
_AMOUNTS: Final = """\
- `vke.volcengine.com/mgpu-core` of 1 and 2 is refused: Volcano reads percent, the console cards,
  and Kubernetes writes 2.0 as 2. Write 200 for two cards.
- `tencent.com/vcuda-memory` alone requests no compute, and gets what others leave. To guarantee
  each such container of a node 20 percent, set `defaults.cores: 20` in its gpushare.yaml."""
#: Why a manifest is not unchanged, and what to do, by the words in the tables.
REASONS: Final = {
    "claim": "The pod has a ResourceClaim for another driver, which continues to serve it.",
    "no amount": "The manifest requests a time slice, which is no amount of memory. Set "
    "`gpushare.io/memory` instead of the limit.",
    "NVIDIA's plugin": "The limits are those of NVIDIA's device plugin, which serves them as "
    "before. In a cluster without it, set `admission.nvidia` of the chart: then the pods run "
    "unchanged on nodes in the mode `annotations`.",
    "whole or several cards": "The device plugin counts the memory of one card. Use nodes in the "
    "mode `annotations`, or write `gpushare.io/memory-gib`.",
    "percentage": "The device plugin counts memory, and the manifest requests a part of a card. "
    "Use nodes in the mode `annotations`, or write `gpushare.io/memory-gib`.",
    "not in the limits": "The amount of memory, or the number of cards, is in an annotation, a "
    "variable, or the name of a limit with the model of the card. Use nodes in the mode "
    "`annotations`, write `gpushare.io/memory-gib`, or in the mode `dra` a claim.",
    "amounts only": "Memory, compute and the number of cards are as requested. A model, a policy, "
    "a priority or another key that chooses a card is not applied, and `kubectl apply` names it.",
    "task": "Only ECS reads the request. `gpushare convert` writes variables.",
}
_COLUMNS: Final = ("system", "manifest", "keys of the request")


def vendors() -> Iterator[str]:
    """Yield the tables, and the reasons for what is not unchanged."""
    cases = sorted(CASES, key=named)
    in_cluster = [case for case in cases if pods(case)]
    yield from (*_INTRO.splitlines(), "", "## In Kubernetes", "", *_IN_KUBERNETES.splitlines(), "")
    yield from table(
        (*_COLUMNS, *(f"mode `{mode}`" for mode in MODES), "`convert`"),
        [
            (*named(case), *case.expected["admitted"].values(), by_convert(case))
            for case in in_cluster
        ],
    )
    selecting = [(f"`{case}`", labels) for case in in_cluster if (labels := node_labels(case))]
    yield "The policy does not change node selectors. These nodes need the labels:"
    yield ""
    yield from table(("manifest", "selects nodes by"), selecting)
    yield from ("## With Docker, Compose and ECS", "", *_OUTSIDE.splitlines(), "")
    yield from table(
        (*_COLUMNS, "result", "`convert`"),
        [
            (*named(case), case.expected["admitted"], by_convert(case))
            for case in cases
            if not pods(case)
        ],
    )
    yield from ("## Reasons", "")
    yield from table(("in the tables", "reason, and what to do"), REASONS.items())
    yield from ("## Amounts with two readings", "", *_AMOUNTS.splitlines())
