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
        request: old_object, subresource, user and params.

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
        given = ["object", "oldObject", "request", *(["params"] if "paramKind" in spec else [])]
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
        subresource: str = "",
        user: str = "user",
        params: Object | None = None,
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
        self.subresource = subresource
        self.name = metadata.get("name", "")
        kind = {"group": group, "version": version, "kind": object_["kind"]}
        self.values = {
            "object": object_,
            "oldObject": old_object,
            "request": {
                "kind": kind,
                "resource": self.resource,
                "subResource": subresource,
                "requestKind": kind,
                "requestResource": self.resource,
                "name": self.name,
                "namespace": self.namespace["metadata"]["name"],
                "operation": operation,
                "userInfo": {"username": user, "groups": ["system:authenticated"]},
                "dryRun": False,
            },
            "namespaceObject": self.namespace,
            "params": params,
        }

    def is_matched(self, constraints: Object) -> bool:
        """Return whether a policy with these matchConstraints is for it."""
        labels = self.namespace["metadata"].get("labels", {})
        return (
            any(self._is_ruled(rule) for rule in constraints.get("resourceRules", []))
            and not any(
                self._is_ruled(rule) for rule in constraints.get("excludeResourceRules", [])
            )
            and _is_selected(labels, constraints.get("namespaceSelector", {}))
            and _is_selected(self.labels, constraints.get("objectSelector", {}))
        )

    def _is_ruled(self, rule: Object) -> bool:
        resource = self.resource["resource"]
        if self.subresource:
            resources = {f"{resource}/{self.subresource}", f"{resource}/*", "*/*"}
            resources.add(f"*/{self.subresource}")
        else:
            resources = {resource, "*", "*/*"}
        return (
            bool(resources & set(rule["resources"]))
            and bool({self.resource["group"], "*"} & set(rule["apiGroups"]))
            and bool({self.resource["version"], "*"} & set(rule["apiVersions"]))
            and bool({self.operation, "*"} & set(rule["operations"]))
            and self.name in rule.get("resourceNames", [self.name])
            and rule.get("scope", "*") != "Cluster"
        )


def _is_selected(labels: Mapping[str, str], selector: Object) -> bool:
    expressions = [
        *(
            {"key": k, "operator": "In", "values": [v]}
            for k, v in selector.get("matchLabels", {}).items()
        ),
        *selector.get("matchExpressions", []),
    ]
    return all(_is_met(labels.get(one["key"]), one) for one in expressions)


def _is_met(value: str | None, requirement: Object) -> bool:
    operator, values = requirement["operator"], requirement.get("values", [])
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[operator]


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
    except jsonpatch.JsonPatchTestFailed:
        return object_  # no error: the patch is not applied
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
