# SPDX-License-Identifier: Apache-2.0
"""The requests: containers as an engine makes them, and what is done to each afterwards.

Case n is drawn from a generator of its own, so a case stays the same whatever came before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from tests.guard.vocabulary import ANNOTATIONS, ENV, LABELS, LIMITS, OWN, WRONG

CORPUS: Final = Path(__file__).resolve().parents[1] / "corpus"
_CARD: Final = {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}
_RULE: Final = {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rwm"}
_HOOK: Final = {
    "path": "/usr/bin/nvidia-container-runtime-hook",
    "args": ["nvidia-container-runtime-hook", "prestart"],
}
_THEIRS: Final = {"path": "/opt/theirs", "args": ["theirs"]}
_SETTABLE: Final = ("memory", "memory_limit", "cores", "policy", "weight", "priority", "class")


@dataclass(frozen=True)
class GeneratedContainer:
    """One container. `pod` is the sandbox that it belongs to; `then` is what an operator does."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""
    container: str = "main"
    namespace: str = "team"
    changes: Mapping[str, Any] = field(default_factory=dict)
    marker: str = "strong"
    then: tuple[tuple[str, Any], ...] = ()
    debian: bool = False

    @property
    def identity(self) -> str:
        """The container's id."""
        return f"case-{self.name}".replace("/", "-").replace(" ", "-")[:120]

    def config(self) -> dict[str, Any]:
        """Return config.json, as the engine writes it."""
        annotations = dict(self.annotations)
        if self.pod:
            annotations |= {
                "io.kubernetes.cri.container-name": self.container,
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-id": self.pod,
                "io.kubernetes.cri.sandbox-name": "job-1",
                "io.kubernetes.cri.sandbox-namespace": self.namespace,
            }
        env = ["PATH=/usr/bin:/bin", *(f"{name}={value}" for name, value in self.env.items())]
        document = {
            "ociVersion": "1.0.2",
            "process": {"args": ["sh"], "env": env, "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "hooks": {"prestart": [_THEIRS], "createRuntime": [_THEIRS]},
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            },
            **self.changes,
        }
        return document | ({"annotations": annotations} if annotations else {})


def cases(first: int, count: int) -> Iterator[GeneratedContainer]:
    """Yield the generated cases from number `first` on."""
    for number in range(first, first + count):
        yield from _case(number, Random(f"guard/{number}"))


def _case(number: int, random: Random) -> Iterator[GeneratedContainer]:
    name = f"{number:04}"
    annotations, env = _request(random)
    if random.random() < 0.3:
        annotations, env = _modest(random, annotations, env)
    case = GeneratedContainer(
        name,
        annotations,
        env,
        pod=f"pod-{name}" if random.random() < 0.35 else "",
        namespace=random.choice(("team", "team", "prod", "dev-one")),
        changes=_changes(random),
        marker="strong" if random.random() < 0.85 else "weak",
        then=_then(random),
        debian=random.random() < 0.5,
    )
    yield case
    if case.pod and random.random() < 0.4:
        other = dict(env) if random.random() < 0.5 else {}
        yield GeneratedContainer(
            f"{name}b",
            annotations,
            other,
            pod=case.pod,
            container="other",
            namespace=case.namespace,
            then=_then(random),
        )


def _request(random: Random) -> tuple[dict[str, str], dict[str, str]]:
    """Draw the annotations and the environment of a request."""
    kind = random.choices(
        ("own env", "own annotation", "own both", "dialect", "two", "mixed", "nvidia", "nothing"),
        (22, 16, 12, 28, 7, 8, 5, 2),
    )[0]
    annotations: dict[str, str] = {}
    env: dict[str, str] = {}
    if kind in {"own env", "own both", "mixed"}:
        for key in _keys(random):
            env[f"GPUSHARE_{key.upper().replace('-', '_')}"] = _value(random, OWN[key])
    if kind in {"own annotation", "own both"}:
        for key in _keys(random):
            scope = random.choices(("", "container.main.", "container.other."), (8, 2, 1))[0]
            annotations[f"gpushare.io/{scope}{key}"] = _value(random, OWN[key])
    if kind in {"dialect", "mixed", "two"}:
        names = sorted({*ANNOTATIONS, *ENV})
        for dialect in random.sample(names, 2 if kind == "two" else 1):
            _speak(random, dialect, annotations, env)
    if kind == "nvidia":
        _speak(random, "nvidia", annotations, env)
    return annotations, env


def _modest(
    random: Random, annotations: dict[str, str], env: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Add a right memory of gpushare's own, so that many of the requests are given something."""
    size = random.choice(("1GiB", "2GiB", "4GiB", "10GiB"))
    if random.random() < 0.5:
        return annotations, {**env, "GPUSHARE_MEMORY": size}
    return {**annotations, "gpushare.io/memory": size}, env


def _keys(random: Random) -> list[str]:
    """Draw keys of gpushare's own; memory is in most requests."""
    weights = [3 if key in {"cores", "policy"} else 0.2 if key in WRONG else 1 for key in OWN]
    drawn = random.choices(list(OWN), weights, k=random.choice((1, 1, 2, 2, 3, 4)))
    return list(dict.fromkeys([*(["memory"] if random.random() < 0.7 else []), *drawn]))


def _value(random: Random, values: tuple[str, ...]) -> str:
    """Draw a value; those that stand first, which are right, in most cases."""
    return random.choice(values[: (len(values) + 1) // 2] if random.random() < 0.92 else values)


def _speak(random: Random, dialect: str, annotations: dict[str, str], env: dict[str, str]) -> None:
    for table, into in ((ANNOTATIONS, annotations), (ENV, env)):
        keys = table.get(dialect, {})
        for name in random.sample(sorted(keys), min(len(keys), random.choice((1, 2, 3)))):
            into[name] = _value(random, keys[name])


def _changes(random: Random) -> dict[str, Any]:
    drawn = random.random()
    if drawn < 0.04:  # as docker run --device, or an engine that has put a card in
        rules = [{"allow": False, "access": "rwm"}, _RULE]
        return {"linux": {"devices": [_CARD], "resources": {"devices": rules}}}
    if drawn < 0.08:  # as NVIDIA's toolkit leaves it
        return {"hooks": {"prestart": [_HOOK]}}
    if drawn < 0.11:  # a user namespace
        mappings = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        return {"linux": {"uidMappings": mappings, "gidMappings": mappings}}
    return {}


def _then(random: Random) -> tuple[tuple[str, Any], ...]:
    """Draw what becomes of a container that got its part: most are given back soon."""
    fate = random.choices(("release", "leave", "again", "bind"), (35, 25, 5, 35))[0]
    if fate != "bind":
        return ((fate, None),)
    steps: list[tuple[str, Any]] = [("bind", None)]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        what = random.choices(
            ("set", "reset", "why", "pause", "resume", "over", "twice"), (8, 2, 2, 1, 1, 1, 1)
        )[0]
        steps.append((what, _changed(random) if what == "set" else None))
    return (*steps, (random.choice(("kill", "stop", "exit", "leave")), None))


def _changed(random: Random) -> dict[str, str]:
    keys = random.sample(_SETTABLE, random.choice((1, 1, 2)))
    return {key: _value(random, OWN[key.replace("_", "-")]) for key in keys}


def opens(count: int) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Yield what `gpushare run` would ask for: a name, a quota, and whether it is rootless."""
    for number in range(count):
        random = Random(f"guard/open/{number}")
        quota = {key: _value(random, OWN[key]) for key in _keys(random)}
        yield f"run-{number:03}", quota, random.random() < 0.5


# --- tests/corpus, and manifests ---


def manifests() -> list[Path]:
    """Return the manifests of tests/corpus, without what they are converted to."""
    return [path for path in sorted(CORPUS.glob("*/*.yaml")) if ".to-" not in path.name]


def of_corpus() -> Iterator[GeneratedContainer]:
    """Yield a case for each container of tests/corpus, with what a runtime is given of it."""
    for path in manifests():
        name = f"{path.parent.name}-{path.stem}"
        documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
        found = [one for document in documents for one in _containers(document, {})]
        for number, (container, asked, env) in enumerate(found):
            then = (("bind", None), ("why", None), ("exit", None))
            yield GeneratedContainer(
                f"corpus-{name}-{number}",
                asked,
                env,
                f"{name}-{number}",
                container,
                then=then,
            )


def _containers(
    node: Any, annotations: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str], dict[str, str]]]:
    if isinstance(node, list):
        for one in node:
            yield from _containers(one, annotations)
    if not isinstance(node, dict):
        return
    metadata = node.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        annotations = {str(key): str(value) for key, value in metadata["annotations"].items()}
    for key, value in node.items():
        if key in {"containers", "initContainers"} and isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    yield str(one.get("name", "main")), annotations, _environment(one.get("env"))
        elif key == "services" and isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, dict):
                    yield str(name), {}, _environment(one.get("environment"))
        else:
            yield from _containers(value, annotations)


def _environment(env: Any) -> dict[str, str]:
    if isinstance(env, dict):
        return {str(name): "" if value is None else str(value) for name, value in env.items()}
    found = {}
    for one in env if isinstance(env, list) else ():
        if isinstance(one, str):
            name, _, found[name] = one.partition("=")
        elif isinstance(one, dict) and "name" in one:
            found[str(one["name"])] = str(one.get("value", ""))
    return found


def pods(count: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of generated manifests of pods, in any vendor's keys."""
    for number in range(count):
        random = Random(f"guard/pod/{number}")
        annotations, env = _request(random)
        limits: dict[str, str] = {}
        labels: dict[str, str] = {}
        for dialect in random.sample(sorted(LIMITS), random.choice((0, 1, 1, 2))):
            for table, into in ((LIMITS, limits), (LABELS, labels)):
                keys = table.get(dialect, {})
                for name in random.sample(sorted(keys), min(len(keys), random.choice((1, 2, 3)))):
                    into[name] = _value(random, keys[name])
        container = {
            "name": "main",
            "image": "train:1",
            "env": [{"name": name, "value": value} for name, value in env.items()],
            "resources": {"limits": limits},
        }
        other = {"name": "other", "image": "side:1"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "job", "labels": labels, "annotations": annotations},
            "spec": {"containers": [container, other] if random.random() < 0.3 else [container]},
        }
        yield f"pod-{number:03}.yaml", yaml.safe_dump(pod, sort_keys=False)


def configs(count: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of config.json, of some of the generated cases."""
    for case in cases(0, count):
        if not case.name.endswith("b"):
            yield f"config-{case.name}.json", json.dumps(case.config(), indent=2)
