# SPDX-License-Identifier: Apache-2.0
"""The steps of a migration, in their order, each with its reason and the way back.

Until the last step, both systems are in the cluster. They share no node, because each would give
the cards to its own pods, and no pod is rewritten by both: HAMi's webhook and gpushare's admission
policy apply to different namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare.manifest.migration.inventory import FoundObject, Inventory, MigrationMode
from gpushare.manifest.migration.systems import ROLES, ComponentRole

#: Of the chart's policy: namespaces with this label are left alone.
_NOT_YET: Final = "gpushare.io/translate=false"
_NAMESPACE: Final = "gpushare-system"
VALUES_FILE: Final = "gpushare-values.yaml"
#: What kubectl apply refuses in an object that does not exist any more.
_STRIP: Final = "grep -vE '^ +(resourceVersion|uid|creationTimestamp):'"
#: What `kubectl rollout restart` accepts.
_RESTARTABLE: Final = ("Deployment", "StatefulSet", "DaemonSet")


@dataclass(frozen=True)
class MigrationStep:
    """One step: shell commands, what to know, and how to go back. NODE and NAMESPACE are yours."""

    title: str
    why: str
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepPlanner:
    """Makes the steps for one system; `translates` is the chart's admission.translate."""

    inventory: Inventory
    mode: MigrationMode
    translates: str

    def steps(self) -> Iterator[MigrationStep]:
        """Yield the steps in their order."""
        yield self._save()
        if self.translates != "none":
            yield self._hold()
        yield self._free_node()
        yield self._install()
        yield self._move()
        yield self._repeat()
        yield from self._remove()
        yield self._clean_up()

    @property
    def _title(self) -> str:
        return self.inventory.system.title

    @property
    def _releases(self) -> list[str]:
        return list(dict.fromkeys(one.release for one in self.inventory.objects if one.release))

    def _file(self, role: ComponentRole) -> str:
        return f"{self.inventory.system.name}-{role.replace(' ', '-')}.yaml"

    def _save(self) -> MigrationStep:
        commands = [
            f"{_get(objects)} |\n  {_STRIP} > {self._file(role)}"
            for role in ROLES
            if (objects := self.inventory.of_role(role))
        ]
        for namespace, _, name in (one.partition("/") for one in self._releases):
            commands.append(f"helm get values {name} -n {namespace} -o yaml > {name}-values.yaml")
            commands.append(f"helm list -n {namespace} --filter '^{name}$'    # note the version")
        commands.append("kubectl get nodes -o yaml > nodes.yaml")
        notes = []
        managed = self.inventory.system.managed
        if managed and not self._releases:
            notes.append(f"{self._title} is managed {managed}. Note its settings there.")
        if not self.inventory.objects:
            notes.append(
                "The dump has none of its DaemonSets, Deployments and webhooks. Make it again with "
                "them, to see what has to be removed."
            )
        return MigrationStep(
            "Save what is there",
            "Each way back below uses these files.",
            tuple(commands),
            tuple(notes),
        )

    def _hold(self) -> MigrationStep:
        reason = f"Until you move a namespace, its pods stay with {self._title}."
        notes = ["Label namespaces that are created later as well."]
        if self.translates == "v1beta1":
            notes.append(
                "On Kubernetes 1.34 and 1.35, the API server needs "
                "--feature-gates=MutatingAdmissionPolicy=true and "
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true. Without them, set "
                f"admission.translate: none in {VALUES_FILE}, and use gpushare convert."
            )
        return MigrationStep(
            "Exclude all namespaces from gpushare's admission policy",
            reason,
            (f"kubectl label namespaces --all {_NOT_YET}",),
            tuple(notes),
            ("kubectl label namespaces --all gpushare.io/translate-",),
        )

    def _free_node(self) -> MigrationStep:
        system = self.inventory.system
        selectors = {
            key: value
            for one in self.inventory.of_role("device plugin")
            for key, value in one.node_selector.items()
        }
        why = (
            f"A node's cards belong to one system: a card that {self._title} shares looks unused "
            "to gpushare, and the other way round."
        )
        if not system.free_node_by_label:
            title, commands = f"Add a node without {self._title}", system.new_node_commands
            return MigrationStep(title, why, commands, system.free_node, ("Remove the node.",))
        commands = (
            "kubectl cordon NODE",
            "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data",
            *(f"kubectl label node NODE {key}-" for key in selectors),
        )
        labels = (f"kubectl label node NODE {key}={value}" for key, value in selectors.items())
        notes = list(system.free_node)
        if not selectors:
            notes.insert(0, "Its DaemonSet has no nodeSelector that the dump shows: add one.")
        listed = ", ".join(self.inventory.nodes)
        notes.insert(
            0,
            f"Nodes that have it: {listed or 'none in the dump'}. Begin with one, whose pods find "
            "room on the others.",
        )
        back = (*labels, "kubectl uncordon NODE")
        return MigrationStep("Free a first node", why, commands, tuple(notes), back)

    def _install(self) -> MigrationStep:
        return MigrationStep(
            "Install gpushare on that node",
            f"{VALUES_FILE} has the values above. Other nodes are not changed.",
            (
                "kubectl label node NODE gpushare.io/install=true",
                (
                    "helm install gpushare gpushare-VERSION.tgz --create-namespace \\\n"
                    f"  --namespace {_NAMESPACE} --values {VALUES_FILE} \\\n"
                    "  --set image.repository=REGISTRY/gpushare"
                ),
                f"kubectl --namespace {_NAMESPACE} rollout status daemonset gpushare-node",
                *(("kubectl uncordon NODE",) if self.inventory.system.free_node_by_label else ()),
            ),
            (),
            (
                (
                    "helm upgrade gpushare gpushare-VERSION.tgz --reset-then-reuse-values \\\n"
                    f"  --namespace {_NAMESPACE} --set state=absent"
                ),
                f"kubectl --namespace {_NAMESPACE} rollout status daemonset gpushare-node",
                f"helm uninstall gpushare --namespace {_NAMESPACE}",
                "kubectl label node NODE gpushare.io/install-",
            ),
        )

    def _move(self) -> MigrationStep:
        restart = "kubectl --namespace NAMESPACE rollout restart WORKLOAD..."
        why = (
            "Quotas are set when a container is created, so pods that run are not changed: they "
            "move when they are created again. Delete pods without a controller yourself, and "
            "create them again; let Jobs end."
        )
        notes = list(self._workload_notes())
        if self.translates == "none":
            return MigrationStep(
                "Move a workload",
                why,
                (
                    "gpushare convert FILE --to gpushare --in-place",
                    "kubectl apply -f FILE",
                    "kubectl --namespace NAMESPACE get pods -o wide",
                ),
                (
                    (
                        "Kubernetes before 1.34 has no admission policies, so each manifest is "
                        "converted. Keep the original."
                    ),
                    *notes,
                ),
                ("kubectl apply -f ORIGINAL",),
            )
        ignore = self.inventory.system.ignore_webhook
        has_webhook = bool(ignore and self.inventory.of_role("webhook"))
        commands = ["kubectl label namespace NAMESPACE gpushare.io/translate-"]
        back = [f"kubectl label namespace NAMESPACE {_NOT_YET}"]
        if has_webhook:
            commands.insert(0, f"kubectl label namespace NAMESPACE {ignore}")
            back.append(f"kubectl label namespace NAMESPACE {ignore.partition('=')[0]}-")
            notes.insert(
                0,
                f"In this order: {self._title}'s webhook and gpushare's policy never both rewrite "
                "a pod of the namespace.",
            )
        commands += [restart, "kubectl --namespace NAMESPACE get pods -o wide"]
        return MigrationStep(
            "Move a namespace", why, tuple(commands), tuple(notes), (*back, restart)
        )

    def _workload_notes(self) -> Iterator[str]:
        """Yield how pods are created again, by namespace, and what single workloads need."""
        namespaces: dict[str, list[str]] = {}
        for one in self.inventory.workloads:
            kind, _, name = one.owner.partition(" ")
            owner = f"{kind.lower()}/{name.rpartition('/')[2]}"
            namespaces.setdefault(one.namespace, []).append(
                owner if kind in _RESTARTABLE else f"{owner} (by hand)"
            )
        for namespace, owners in namespaces.items():
            yield f"In {namespace}: {', '.join(dict.fromkeys(owners))}."
        named: dict[str, list[str]] = {}
        for one in self.inventory.workloads:
            for problem in one.problems:
                named.setdefault(f"gpushare refuses it: {problem.rstrip('.')}", []).append(
                    one.owner
                )
            for selector in one.selectors:
                named.setdefault(
                    f"remove nodeSelector {selector}, which gpushare's nodes do not have", []
                ).append(one.owner)
            if one.names_scheduler:
                name = self.inventory.system.scheduler
                how = "the policy replaces" if self.translates != "none" else "convert removes"
                named.setdefault(
                    f"names schedulerName: {name}: {how} it; remove it before {name} is removed", []
                ).append(one.owner)
            why = one.stays(self.mode) if self.translates != "none" else ""
            if why and not one.problems:
                others = not one.stays("annotations")
                named.setdefault(
                    f"{why}, so the policy leaves it as it is: write gpushare's keys into its "
                    f"manifest{', or use nodes of the mode annotations' if others else ''}",
                    [],
                ).append(one.owner)
        for what, owners in named.items():
            yield f"{', '.join(dict.fromkeys(owners))}: {what}."

    def _repeat(self) -> MigrationStep:
        return MigrationStep(
            "Move the other namespaces and nodes",
            f"Repeat the steps above, until no pod uses {self._title}: free a node when its pods "
            "have moved, label it, and move the next namespace.",
            (
                (
                    "kubectl get pods -A -o yaml | gpushare k8s migrate -"
                    "    # lists no workload when all have moved"
                ),
            ),
            back=("Each namespace and each node goes back on its own, as above.",),
        )

    def _remove(self) -> Iterator[MigrationStep]:
        """Yield the removal: what rewrites pods first, and the device plugin after all pods."""
        inventory = self.inventory
        reasons: dict[ComponentRole, str] = {
            "webhook": "First: if it stayed, it would hand pods to a scheduler that is gone. With "
            "failurePolicy Fail, the API server would then refuse every pod.",
            "scheduler": "Pods that name it, or wait for it, stay Pending from now on.",
            "device plugin": "Last: the kubelet keeps its pods running, but admits no new ones.",
            "settings": "Nothing reads them any more.",
        }
        managed = inventory.system.managed
        if managed and not self._releases:
            yield MigrationStep(
                f"Remove {self._title}",
                "Its vendor's console removes its parts in their order.",
                (),
                (f"Remove it {managed}.",),
                ("Install it there again, with the settings that you noted.",),
            )
            return
        for role in ROLES:
            objects = inventory.of_role(role)
            if not objects or (self._releases and role != "webhook"):
                continue
            yield MigrationStep(
                f"Remove the {role} of {self._title}"
                if role != "settings"
                else "Remove its settings",
                reasons[role],
                tuple(_delete(objects)),
                tuple(filter(None, [inventory.system.removal.get(role)])),
                (f"kubectl apply -f {self._file(role)}",),
            )
        for namespace, _, name in (one.partition("/") for one in self._releases):
            yield MigrationStep(
                f"Remove the rest of {self._title}",
                "The scheduler, the device plugin, their settings and accounts are of one release.",
                (f"helm uninstall {name} --namespace {namespace}",),
                (),
                (
                    (
                        f"helm install {name} CHART --version VERSION --namespace {namespace} "
                        f"--values {name}-values.yaml"
                    ),
                ),
            )

    def _clean_up(self) -> MigrationStep:
        commands = []
        if self.translates != "none":
            commands.append("kubectl label namespaces --all gpushare.io/translate-")
        records = {
            one.key
            for one in self.inventory.node_keys
            if one.where == "node annotation" and one.word.row.role == "record"
        }
        if records:
            removed = " ".join(f"{key}-" for key in sorted(records))
            commands.append(f"kubectl annotate nodes --all {removed}")
        if self.inventory.system.ignore_webhook:
            label = self.inventory.system.ignore_webhook.partition("=")[0]
            commands.append(f"kubectl label namespaces --all {label}-")
        notes = [
            "ResourceQuotas of the old resources limit nothing any more. In the mode plugin, "
            "write requests.gpushare.io/memory-gib."
            if self.mode == "plugin"
            else "ResourceQuotas of the old resources limit nothing any more: use max_per_node of "
            "gpushare.yaml.",
            "Manifests can keep the old keys, or be converted: gpushare convert FILE --to gpushare."
            if self.translates != "none"
            else "Dashboards of the old metrics keep working with gpushare-exporter's aliases.",
        ]
        if self.inventory.system.free_node_by_label:
            notes += self.inventory.system.free_node
        return MigrationStep(
            "Clean up",
            "From now on, pods of all namespaces are translated."
            if self.translates != "none"
            else "Only gpushare is left.",
            tuple(commands),
            tuple(notes),
        )


def _by_kind(objects: list[FoundObject]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield namespace, kind and names, for kubectl."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in objects:
        key = one.document.namespace, one.document.kind.lower()
        found.setdefault(key, []).append(one.document.name)
    for (namespace, kind), names in found.items():
        yield namespace, kind, names


def _get(objects: list[FoundObject]) -> str:
    """Return the command that prints `objects`, of which all are in one namespace or in none."""
    parts = []
    for namespace, kind, names in _by_kind(objects):
        option = f" -n {namespace}" if namespace else ""
        parts.append(f"kubectl get{option} {kind} {' '.join(names)} -o yaml")
    return parts[0] if len(parts) == 1 else "{ " + "; echo ---; ".join(parts) + "; }"


def _delete(objects: list[FoundObject]) -> Iterator[str]:
    for namespace, kind, names in _by_kind(objects):
        option = f" -n {namespace}" if namespace else ""
        yield f"kubectl delete{option} {kind} {' '.join(names)}"
