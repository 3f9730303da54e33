# SPDX-License-Identifier: Apache-2.0
"""Applies a ValidatingAdmissionPolicy or a MutatingAdmissionPolicy to one object.

Follows apiserver/pkg/admission/plugin/policy. A policy that the API server would not store raises
InvalidExpression. The binding is not read: each policy is applied as if bound to everything.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonpatch
import jsonpointer

from . import functions
from .expression import BOOL, DYN, PATCHES, STRING, EvaluationError, Expression, InvalidExpression

Object = dict[str, Any]


class Rejected(RuntimeError):
    """A policy with `failurePolicy: Fail` could not be evaluated, so the request is denied."""


def mutate(
    policy: Object,
    object_: Object,
    *,
    namespace: Object | None = None,
    operation: str = "CREATE",
    **request: Any,
) -> Object:
    """Return what a MutatingAdmissionPolicy makes of an object, which stays as it is.

    Args:
        policy: of v1 or v1beta1.
        object_: with apiVersion and kind.
        namespace: the Namespace object; default: one without labels.
        operation: of the request.
        request: old_object.

    Raises:
        InvalidExpression: the API server would not store the policy.
        Rejected: an evaluation failed, and the policy says `failurePolicy: Fail`.
    """
    compiled = compiled_policy(policy)
    found = copy.deepcopy(object_)
    given = Request(found, namespace, operation, **request)
    if not given.is_matched(policy["spec"].get("matchConstraints", {})):
        return found
    try:
        if compiled.is_excluded(given):
            return found
        for mutation in compiled.mutations:
            values = compiled.values(given)
            found = patched(found, operations(mutation.evaluate(values)), mutation.text)
            given = Request(found, namespace, operation, **request)
    except EvaluationError as error:
        if compiled.fails_closed:
            raise Rejected(str(error)) from error
        return copy.deepcopy(object_)
    return found


def violations(
    policy: Object,
    object_: Object,
    *,
    namespace: Object | None = None,
    operation: str = "CREATE",
    **request: Any,
) -> list[str]:
    """Return the messages with which a ValidatingAdmissionPolicy denies an object; none: admitted.

    The arguments and InvalidExpression are those of `mutate`. An evaluation that fails is a message
    too, unless the policy says `failurePolicy: Ignore`.
    """
    compiled = compiled_policy(policy)
    given = Request(object_, namespace, operation, **request)
    if not given.is_matched(policy["spec"].get("matchConstraints", {})):
        return []
    try:
        if compiled.is_excluded(given):
            return []
    except EvaluationError as error:
        return [str(error)] if compiled.fails_closed else []
    values = compiled.values(given)
    found = []
    for validation, message, fixed in compiled.validations:
        try:
            if not validation.evaluate(values):
                found.append(_message(message, fixed, values) or f"failed: {validation.text}")
        except EvaluationError as error:
            if compiled.fails_closed:
                found.append(str(error))
    return found


class CompiledPolicy:
    """The expressions of a policy, compiled."""

    def __init__(self, policy: Object) -> None:
        spec = policy["spec"]
        self.fails_closed = spec.get("failurePolicy", "Fail") == "Fail"
        given = ["object", "oldObject", "request"]
        types = dict.fromkeys(given, DYN)
        self._given = [*given, "namespaceObject"]
        self.conditions = [
            Expression(one["expression"], types, BOOL) for one in spec.get("matchConditions", [])
        ]
        types["namespaceObject"] = DYN
        self.variables = {}
        for one in spec.get("variables", []):
            made = Expression(one["expression"], types)
            if str(made.type).startswith("optional_type"):
                raise InvalidExpression(
                    f"{one['name']}: a variable that is optional is not supported"
                )
            self.variables[f"variables.{one['name']}"] = made
            types[f"variables.{one['name']}"] = made.type
        self.mutations = [
            Expression(one["jsonPatch"]["expression"], types, PATCHES)
            for one in spec.get("mutations", [])
        ]
        self.validations = [
            (
                Expression(one["expression"], types, BOOL),
                Expression(one["messageExpression"], types, STRING)
                if "messageExpression" in one
                else None,
                one.get("message", ""),
            )
            for one in spec.get("validations", [])
        ]

    def is_excluded(self, request: Request) -> bool:
        """Return whether a match condition is false; one that fails matters if none is."""
        values = self.given(request)
        failed = None
        for condition in self.conditions:
            try:
                if not condition.evaluate(values):
                    return True
            except EvaluationError as error:
                failed = failed or error
        if failed:
            raise failed
        return False

    def given(self, request: Request) -> dict[str, Any]:
        """Return what match conditions may use."""
        return {name: request.values[name] for name in self._given if name != "namespaceObject"}

    def values(self, request: Request) -> dict[str, Any]:
        """Return the values of all variables; one without a value is an error where it is used."""
        values = self.given(request) | {"namespaceObject": request.values["namespaceObject"]}
        for name, variable in self.variables.items():
            try:
                values[name] = variable.evaluate(values)
            except EvaluationError:
                continue
        return values


def compiled_policy(policy: Object) -> CompiledPolicy:
    """Return a policy compiled; InvalidExpression: the API server would not store it."""
    return _compiled_spec(json.dumps(policy["spec"], sort_keys=True))


@cache
def _compiled_spec(spec: str) -> CompiledPolicy:
    return CompiledPolicy({"spec": json.loads(spec)})


class Request:
    """What the API server is asked, and the values that expressions may use of it."""

    def __init__(
        self,
        object_: Object,
        namespace: Object | None,
        operation: str,
        *,
        old_object: Object | None = None,
    ) -> None:
        group, _, version = object_["apiVersion"].rpartition("/")
        metadata = object_.get("metadata", {})
        self.operation = operation
        self.labels = metadata.get("labels", {})
        name = metadata.get("namespace", "default")
        self.namespace = namespace or {"metadata": {"name": name}}
        self.resource = {
            "group": group,
            "version": version,
            "resource": f"{object_['kind'].lower()}s",
        }
        kind = {"group": group, "version": version, "kind": object_["kind"]}
        self.values = {
            "object": object_,
            "oldObject": old_object,
            "request": {
                "kind": kind,
                "resource": self.resource,
                "requestKind": kind,
                "requestResource": self.resource,
                "name": metadata.get("name", ""),
                "namespace": self.namespace["metadata"]["name"],
                "operation": operation,
            },
            "namespaceObject": self.namespace,
        }

    def is_matched(self, constraints: Object) -> bool:
        """Return whether a policy with these matchConstraints is for it."""
        labels = self.namespace["metadata"].get("labels", {})
        return (
            any(self._is_ruled(rule) for rule in constraints["resourceRules"])
            and _is_selected(labels, constraints.get("namespaceSelector", {}))
            and _is_selected(self.labels, constraints.get("objectSelector", {}))
        )

    def _is_ruled(self, rule: Object) -> bool:
        return (
            self.resource["resource"] in rule["resources"]
            and self.resource["group"] in rule["apiGroups"]
            and self.resource["version"] in rule["apiVersions"]
            and self.operation in rule["operations"]
        )


def _is_selected(labels: Mapping[str, str], selector: Object) -> bool:
    """Return whether a selector, all of whose operators are NotIn, selects an object."""
    requirements = selector.get("matchExpressions", [])
    assert all(one["operator"] == "NotIn" for one in requirements)
    return not any(labels.get(one["key"]) in one["values"] for one in requirements)


def operations(patches: list[Any]) -> list[Object]:
    """Return what a mutation evaluates to as the operations of a JSON patch."""
    return [
        {
            name: functions.plain(getattr(patch, name)) if name == "value" else getattr(patch, name)
            for name in ("op", "path", "from", "value")
            if name in {"op", "path"} or _is_set(patch, name)
        }
        for patch in patches
    ]


def patched(object_: Object, patch: list[Object], text: str) -> Object:
    """Return an object after a JSON patch; EvaluationError, with the `text`, if that fails."""
    try:
        found: Object = jsonpatch.apply_patch(object_, patch)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise EvaluationError(f"{text}: {error}") from None
    return found


def _is_set(patch: Any, name: str) -> bool:
    return patch.HasField(name) if name == "value" else bool(getattr(patch, name))


def _message(expression: Expression | None, fixed: str, values: Mapping[str, Any]) -> str:
    """Return the message of a validation: an expression without a usable value has no effect."""
    if expression:
        try:
            found = expression.evaluate(values)
        except EvaluationError:
            return fixed
        if found.strip() and "\n" not in found and len(found.encode()) <= 5 * 1024:
            return str(found)
    return fixed
