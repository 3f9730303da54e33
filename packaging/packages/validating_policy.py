# SPDX-License-Identifier: Apache-2.0
"""The ValidatingAdmissionPolicy: refuses a pod when it is applied, with the messages of a node.

It reads the annotations of pods, and of the pod templates of Kubernetes' own workloads. `lenient`
refuses what no node accepts, whatever its configuration; `strict` also what a node refuses unless
`defaults` in its gpushare.yaml add what the request lacks. What depends on a card, on a node's
maximums or on something that the object does not contain is left to the node.

An expression that has no value, or costs too much, refuses nothing: the node decides.

`python -m packages.validating_policy`, in `packaging`, writes the files of the chart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import yaml

from gpushare.daemon.lifecycle.scheduled import CARD_KEYS, of_another_mode
from gpushare.protocol.kubernetes import NodeMode
from gpushare.quota.annotations import SCOPE, VENDOR
from gpushare.quota.dialects import TABLES
from gpushare.quota.errors import BadValue
from gpushare.quota.keys import (
    ANNOTATION_PREFIX,
    KEYS,
    MAX_CARDS,
    Choice,
    PercentOfMemory,
    WholeNumber,
)
from gpushare.quota.size import parse_size

from . import vendor_limits
from .layer_rules import CONTRADICTIONS, INCOMPLETE, in_layers
from .policy_text import FORMS, advice, quantity, refusal, text

NAME: Final = "gpushare-requests"
Strictness: TypeAlias = Literal["lenient", "strict"]
STRICTNESS: Final[tuple[Strictness, ...]] = get_args(Strictness)
Object: TypeAlias = "dict[str, Any]"

FOLDER: Final = Path("packaging/helm/gpushare/files")
#: The chart's template writes the name of the release's namespace here.
RELEASE_NAMESPACE: Final = "RELEASE_NAMESPACE"
_HEAD: Final = """\
# SPDX-License-Identifier: Apache-2.0
# Written by packaging/packages/validating_policy.py from gpushare/quota: run it again.
"""
_SCOPED: Final = ANNOTATION_PREFIX + SCOPE
#: The key of the annotation in which the mutating policies record a container's vendor keys.
_RECORDED: Final = VENDOR

_NUMBERS: Final = {
    name: key.parse for name, key in KEYS.items() if isinstance(key.parse, WholeNumber)
}
_PERCENTS: Final = {
    name: key.parse for name, key in KEYS.items() if isinstance(key.parse, PercentOfMemory)
}
_CHOICES: Final = {name: key.parse for name, key in KEYS.items() if isinstance(key.parse, Choice)}
_SIZES: Final = [name for name, key in KEYS.items() if key.parse is parse_size]
_LISTS: Final = ("devices", "allow", "deny", "compute-capability")

_SPACE: Final = r"[ \t\n\r\f\v]?"
_NUMBER: Final = r"[0-9]{1,20}(\.[0-9]{1,20})?"
#: A size; of the letters, those that have one meaning only.
_SIZE: Final = rf"^{_NUMBER}{_SPACE}([bB]|[kKmMgGtT][iI][bB]?|[kmgt])$"
_AMBIGUOUS: Final = rf"^{_NUMBER}{_SPACE}([KMGT]|[kKmMgGtT][bB])$"
_UNITLESS: Final = rf"^{_NUMBER}$"
#: Numbers of bytes from here on are whole ones as doubles, and soon too many for an int.
_EXACT: Final = "9007199254740992.0"
_ZERO: Final = rf"^0+(\.0+)?{_SPACE}[A-Za-z]{{0,3}}$"


# --- what there is to check ---

#: `dyn`: otherwise the status of the policy warns of fields that another kind does not have.
_TEMPLATE: Final = """\
object.kind == "Pod" ? dyn(object) :
object.kind == "CronJob" ? dyn(object).spec.jobTemplate.spec.template :
object.kind == "PodTemplate" ? dyn(object).template : dyn(object).spec.template"""

_SHOWN: Final = (
    r"""(T.matches("^[0-9A-Za-z_.,:;/%@+*=|-]{1,80}$") ? T : """
    r"""T.matches("[\\x00-\\x1f\\x7f]") || T.size() > 80 ? "\"...\"" : """
    r"""'"' + T.replace("\\", "\\\\").replace('"', '\\"') + '"')"""
)

#: Whether all annotations are judged: of a pod that exists, only those that change.
_NEW: Final = 'request.operation == "CREATE" || object.kind != "Pod"'


def _changed(name: str) -> str:
    """Return whether the annotation of a pod, in the expression `name`, differs from before."""
    return f"object.metadata.?annotations[?{name}] != oldObject.metadata.?annotations[?{name}]"


#: Values of the annotations: where they are, for which container, the key, and the text.
_REQUESTS: Final = f"""\
variables.names.map(n, n.startsWith({text(_SCOPED)})
  ? {{"name": n, "container": n.substring({len(_SCOPED)}).split(".", 2)[0],
     "key": n.matches({text("^" + _SCOPED.replace(".", "[.]") + "[^.]+[.].")})
       ? n.substring({len(_SCOPED)}).split(".", 2)[1] : "",
     "text": string(variables.annotations[n]).trim(),
     "where": "annotation " + n + "=" + {_SHOWN.replace("T", "string(variables.annotations[n])")}}}
  : {{"name": n, "container": "", "key": n.substring({len(ANNOTATION_PREFIX)}),
     "text": string(variables.annotations[n]).trim(),
     "where": "pod annotation " + n + "=" +
       {_SHOWN.replace("T", "string(variables.annotations[n])")}}})"""

_IS_SCOPED: Final = 'r.container != "" && r.key != ""'
_IS_UNSCOPED: Final = f'r.container == "" && !r.name.startsWith({text(_SCOPED)})'

#: The requests that a container may make besides our annotations.
_ALONE: Final = f"""\
!(variables.runtimeClass in CLASSES) && !has(variables.template.spec.resourceClaims) &&
!variables.containers.exists(c, has(c.resources) && has(c.resources.limits) &&
  c.resources.limits.exists(l, l.contains("/") && !l.startsWith("hugepages-"))) &&
variables.annotations.all(n, !(n in VENDOR) && !PREFIXES.exists(p, n.startsWith(p)) &&
  !n.endsWith({text("." + _RECORDED)}))"""


def _vendor_annotations() -> tuple[list[str], list[str]]:
    """Return the vendors' annotations that request something: names, and beginnings of names."""
    rows = [
        row
        for dialect in TABLES.dialects
        for row in dialect.rows
        if row.where == "annotation" and row.key
    ]
    names = sorted({row.name for row in rows if row.pattern is None})
    return names, sorted({row.prefix for row in rows if row.pattern is not None})


def _alone() -> str:
    names, prefixes = _vendor_annotations()
    classes = text([_class_of(mode) for mode in _GRANTS])
    condition = _ALONE.replace("VENDOR", text(names)).replace("PREFIXES", text(prefixes))
    return condition.replace("CLASSES", classes)


def _variables(strictness: Strictness) -> dict[str, str]:
    """Return the variables, each of which may use those before it."""
    return {
        "template": _TEMPLATE,
        "annotations": "variables.template.?metadata.?annotations.orValue({})",
        "names": f"""\
variables.annotations.filter(n, n.startsWith({text(ANNOTATION_PREFIX)})).map(n, string(n))""",
        "requests": _REQUESTS,
        "judged": f"""\
{_NEW} ? variables.requests : variables.requests.filter(r, {_changed("r.name")})""",
        # Containers, then init containers.
        "containers": """\
variables.template.spec.containers + variables.template.spec.?initContainers.orValue([])""",
        "pod": "variables.containers.map(c, string(c.name))",
        # Those that run at the same time: containers, then native sidecars.
        "running": """\
variables.containers.filter(c, !(c in variables.template.spec.?initContainers.orValue([])) ||
  c.?restartPolicy.orValue("") == "Always").map(c, string(c.name))""",
        "unscoped": f"variables.requests.filter(r, {_IS_UNSCOPED})",
        "scoped": f"variables.requests.filter(r, {_IS_SCOPED})",
        "scopes": "variables.scoped.map(r, r.container)",
        "named": "variables.pod.filter(c, c in variables.scopes)",
        # Where a container's values are: the beginning of its annotations' names.
        "layers": f"""\
(variables.scoped.size() == 0 ? [{text(ANNOTATION_PREFIX)}]
  : variables.named.map(c, {text(_SCOPED)} + c + ".")
).filter(l, {_NEW} || variables.judged.exists(r, r.name.startsWith(l)))""",
        "runtimeClass": 'string(variables.template.spec.?runtimeClassName.orValue(""))',
        "unallocated": _UNALLOCATED,
        "alone": _alone(),
        "vendorLimits": _VENDOR_LIMITS,
        **_TABLES,
        **vendor_limits.tables(strict=strictness == "strict"),
    }


# --- what is wrong with it: the name of a variable of messages, and its expression ---

_MALFORMED: Final = f"""\
variables.judged.filter(r, r.name.startsWith({text(_SCOPED)}) &&
  (r.container == "" || r.key == "")).map(r, r.where +
  {refusal("must name a container and a key", "write gpushare.io/container.NAME.memory")})"""

_MISSING: Final = f"""\
variables.judged.filter(r, {_IS_SCOPED} && !(r.container in variables.pod)).map(r,
  r.where + ": for container " + r.container + ", which this pod does not have. " +
  "Its containers are " + variables.pod.join(", ") + ".")"""


def _unknown() -> str:
    fix = refusal("unknown key", f"the keys are {', '.join(KEYS)}")
    return f"""\
variables.judged.filter(r, r.key != "" && !(r.key in {text([*KEYS])}) &&
  !(r.container != "" && r.key == {text(_RECORDED)})).map(r, r.where + {fix})"""


_TABLES: Final = {
    "numbers": text({name: [one.low, one.high] for name, one in _NUMBERS.items()}),
    "words": text({name: [*one.words, *one.short] for name, one in _CHOICES.items()}),
    "forms": text({name: f"^({form})$" for name, (form, _) in FORMS.items()}),
    "advice": text(
        {name: advice(one.error) for name, one in (_NUMBERS | _CHOICES | _PERCENTS).items()}
        | {name: advice(bad) for name, (_, bad) in FORMS.items()}
    ),
}
_BELOW_100: Final = "^0*(100([.]0+)?|[0-9]{1,2}([.][0-9]+)?)$"
#: A percentage of memory is above 0 and at most 100: a number, or a ratio of two.
_PERCENT: Final = f"""(r.text.matches({text(f"^({PercentOfMemory.pattern})$")}) && (
    r.text.matches({text(_BELOW_100)}) && !r.text.matches("^[0.]+$") || r.text.contains("/") &&
      int(r.text.split("/")[0]) > 0 && int(r.text.split("/")[1]) > 0 &&
      int(r.text.split("/")[0]) <= 100 * int(r.text.split("/")[1])))"""
_VALUE: Final = f"""\
variables.judged.filter(r,
  r.key in {text([*_PERCENTS])} && !{_PERCENT} ||
  r.key in variables.numbers && (!r.text.matches("^[0-9]{{1,9}}$") ||
    int(r.text) < variables.numbers[r.key][0] || int(r.text) > variables.numbers[r.key][1]) ||
  r.key in variables.words && !(r.text in variables.words[r.key]) ||
  r.key in variables.forms && !(r.key in {text(_LISTS)}) &&
    !r.text.matches(variables.forms[r.key])).map(r,
  r.where + variables.advice[r.key])"""


def _size() -> str:
    number = f"r.text.find({text('^' + _NUMBER)})"
    letter = 'r.text.upperAscii().find("[KMGT]")'
    written = quantity("r.text")
    return f"""\
variables.judged.filter(r, r.key in {text(_SIZES)}).filter(r,
  !r.text.matches({text(_SIZE)}) || r.text.matches({text(_ZERO)}) ||
  isQuantity({written}) && [quantity({written}).asApproximateFloat()].exists(f,
    f < {_EXACT} && f != double(int(f)))).map(r, r.where + (
  r.text.matches({text(_ZERO)})
    ? {refusal("must be greater than zero", "write e.g. 4GiB, or omit the key to request no GPU")} :
  r.text.matches({text(_UNITLESS)})
    ? ": has no unit: " + r.text + " bytes or " + r.text + " GiB. Write " + r.text + "GiB, or " +
      r.text + "B for bytes." :
  r.text.matches({text(_AMBIGUOUS)})
    ? ": ambiguous: binary or decimal. Write " + {number} + {letter} + "iB." :
  r.text.matches({text(_SIZE)})
    ? {refusal("is not a whole number of bytes", "write e.g. 4GiB")}
    : {refusal("is not a size", "write e.g. 4GiB")}))"""


def _list() -> str:
    return f"""\
variables.judged.filter(r, r.key in {text(_LISTS)}).filter(r,
  r.text.split(",").exists(i, i.trim() == "") ||
  r.text.split(",").map(i, i.trim()).exists(i,
    r.text.split(",").filter(j, j.trim() == i).size() > 1) ||
  r.key == "devices" && r.text.split(",").size() > {MAX_CARDS} || r.key in variables.forms &&
    !r.text.split(",").all(i, i.trim().matches(variables.forms[r.key]))).map(r, r.where + (
  r.text.split(",").exists(i, i.trim() == "")
    ? {refusal("has an empty item in its list", "separate the names with single commas")} :
  r.text.split(",").map(i, i.trim()).exists(i,
    r.text.split(",").filter(j, j.trim() == i).size() > 1)
    ? {refusal("lists a name twice", "write each name once")} :
  r.key == "devices" && r.text.split(",").size() > {MAX_CARDS}
    ? {refusal("names too many cards", f"write at most {MAX_CARDS}")}
    : variables.advice[r.key]))"""


#: If the scheduler allocates, each container that has an allocation uses the annotation.
_SEVERAL: Final = f"""\
variables.judged.filter(r, {_IS_UNSCOPED} && (variables.named.size() > 1 ||
  variables.scoped.size() == 0 && variables.running.size() > 1 && r.key in {text([*KEYS])} &&
  variables.alone)).map(r,
  variables.named.size() > 1
    ? r.where + ": names no container, but other annotations name " +
      variables.named.join(", ") + ". Write {_SCOPED}" + variables.named[0] + "." + r.key + "."
    : r.where + ": names no container, and applies to each of " + variables.running.join(", ") +
      ". Write {_SCOPED}" + variables.running[0] + "." + r.key + ".")"""


_GRANTS: Final[Mapping[NodeMode, str]] = {
    "plugin": f"""\
c.?resources.?limits.orValue({{}}).exists(n, string(n).startsWith({text(ANNOTATION_PREFIX)}))""",
    "dra": "has(c.resources) && has(c.resources.claims)",
}


def _class_of(mode: NodeMode) -> str:
    """Return the RuntimeClass of the chart for nodes of a mode."""
    return f"gpushare-{mode}"


#: The containers to which the scheduler allocates nothing, on nodes where it allocates.
_UNALLOCATED: Final = (
    " :\n".join(
        f"""\
variables.runtimeClass == "{_class_of(mode)}" ?
  variables.containers.filter(c, !({grant})).map(c, string(c.name))"""
        for mode, grant in _GRANTS.items()
    )
    + " : []"
)


def _mode() -> str:
    """Return the messages of annotations that a node of another mode refuses."""
    rests = {}
    for mode in _GRANTS:
        error = of_another_mode("", None, "annotations", mode)
        rests[_class_of(mode)] = advice(BadValue(error.rule, error.fix))
    return f"""\
variables.judged.filter(r, r.key in {text(sorted(CARD_KEYS))} && (r.container == ""
  ? variables.scoped.size() == 0 && variables.unallocated.size() > 0
  : r.container in variables.unallocated)).map(r,
  r.where + {text(rests)}[variables.runtimeClass])"""


#: Of each container that the mutating policy has translated, the limits that it removed, each as
#: `KEY=NUMBER`, if the vendor's keys are numbers in limits and nothing else.
_VENDOR_LIMITS: Final = f"""\
variables.judged.filter(r, r.container != "" && r.key == {text(_RECORDED)} &&
  r.text.split("\\n").all(l, l.matches("^(position [0-9]+|limit [^=]+=[0-9]{{1,9}})$"))).map(r,
  r.text.split("\\n").filter(l, l.startsWith("limit ")).map(l, l.substring(6)))"""


def _validation(name: str) -> Object:
    """Return the validation that is false if there are messages in the variable.

    Their order is that of the annotations, which an API server changes from request to request.
    """
    found = f"variables.{name}"
    return {
        "expression": f"{found}.size() == 0",
        "message": "The annotations of gpushare.io cannot be used.",
        "messageExpression": f"""\
{found}.min() + ({found}.size() > 1 ? " And " + string({found}.size() - 1) + " more." : "")""",
    }


#: The variables of messages by the least strictness with which they are checked.
FINDINGS: Final[Mapping[Strictness, Mapping[str, str]]] = {
    "lenient": {
        "malformed": _MALFORMED,
        "missing": _MISSING,
        "unknown": _unknown(),
        "value": _VALUE,
        "size": _size(),
        "list": _list(),
        "several": _SEVERAL,
        "mode": _mode(),
        **vendor_limits.findings(strict=False),
        "contradictions": in_layers(CONTRADICTIONS),
    },
    "strict": {"incomplete": in_layers(INCOMPLETE), **vendor_limits.findings(strict=True)},
}

_WORKLOADS: Final = {
    "": ["pods", "podtemplates", "replicationcontrollers"],
    "apps": ["daemonsets", "deployments", "replicasets", "statefulsets"],
    "batch": ["cronjobs", "jobs"],
}


def policy(strictness: Strictness, namespace: str = RELEASE_NAMESPACE) -> Object:
    """Return the policy, which is v1: of Kubernetes 1.30 and newer.

    Nothing in `namespace`, that of the release, is refused.
    """
    findings = dict(FINDINGS["lenient"])
    if strictness == "strict":
        findings |= FINDINGS["strict"]
    asks = f"""\
({_TEMPLATE}).?metadata.?annotations.orValue({{}})
  .exists(n, n.startsWith({text(ANNOTATION_PREFIX)}))"""
    was = re.sub(r"\bobject\b", "oldObject", _TEMPLATE)
    changed = f"""\
request.operation == "CREATE" || (object.kind == "Pod"
  ? object.metadata.?annotations.orValue({{}}).exists(n,
      n.startsWith({text(ANNOTATION_PREFIX)}) && {_changed("n")})
  : ({_TEMPLATE}) !=\n({was}))"""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": [namespace],
                        }
                    ]
                },
                "resourceRules": [
                    _rule(group, names, ["CREATE", "UPDATE"]) for group, names in _WORKLOADS.items()
                ],
            },
            "matchConditions": [
                {"name": "requests", "expression": asks},
                {"name": "changed", "expression": changed},
            ],
            "variables": [
                {"name": name, "expression": variable}
                for name, variable in (_variables(strictness) | findings).items()
            ],
            "validations": [_validation(name) for name in findings],
        },
    }


def _rule(group: str, resources: list[str], operations: list[str]) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
    }


def files() -> dict[str, str]:
    """Return the specs of the policy by their files' names, which the chart's template reads."""
    texts = {}
    for strictness in STRICTNESS:
        spec = yaml.dump(policy(strictness)["spec"], Dumper=_Dumper, sort_keys=False, width=100)
        texts[f"validating-policy-{strictness}.yaml"] = _HEAD + spec
    return texts


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _write_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _write_text)


def main() -> None:
    """Write the files."""
    folder = Path(__file__).resolve().parents[2] / FOLDER
    folder.mkdir(exist_ok=True)
    for name, content in files().items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
