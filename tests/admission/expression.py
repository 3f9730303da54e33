# SPDX-License-Identifier: Apache-2.0
"""CEL, compiled and evaluated by the library of its authors, with Kubernetes' functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from . import functions, tree

DYN, BOOL, STRING = cel.Type.DYN, cel.Type.BOOL, cel.Type.STRING
PATCHES = cel.Type.List(cel.Type("JSONPatch"))


class InvalidExpression(ValueError):
    """The API server refuses an object with this expression."""


class EvaluationError(RuntimeError):
    """An expression has no value, for example because it uses a field that does not exist."""


def _declarations() -> list[Any]:
    overloads: dict[str, list[Any]] = {}
    for number, one in enumerate(functions.FUNCTIONS):
        overloads.setdefault(one.name, []).append(
            cel.Overload(
                f"{one.name}_{number}",
                return_type=cel.Type(one.returns),
                parameters=[cel.Type(kind) for kind in one.parameters],
                is_member=one.is_method,
                impl=one.call,
            )
        )
    return [cel.FunctionDecl(name, each) for name, each in overloads.items()]


_DECLARATIONS = _declarations()


class Expression:
    """One compiled expression."""

    def __init__(self, text: str, variables: Mapping[str, Any], returns: Any = None) -> None:
        """Compile it.

        Args:
            text: the expression.
            variables: the types of what it may use, by name.
            returns: the exact type of its value; None: any.

        Raises:
            InvalidExpression: it does not compile, or has a value of another type.
        """
        self.text = text
        environment = cel.NewEnv(
            functions.POOL,
            variables=dict(variables),
            functions=_DECLARATIONS,
            extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings(2)],
        )
        try:
            self._compiled = environment.compile(text)
        except RuntimeError as error:
            raise InvalidExpression(f"{text}: {error}") from None
        if faults := list(tree.mixed_literals(tree.checked(self._compiled.serialize()))):
            raise InvalidExpression(f"{text}: {faults[0]}")
        self.type = self._compiled.return_type()
        if returns is not None and self.type != returns:
            raise InvalidExpression(f"{text}: must evaluate to {returns}, not {self.type}")

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return its value.

        Raises:
            EvaluationError: it has none.
        """
        found = self._compiled.eval(data=dict(values))
        if found.type() == cel.Type.ERROR:
            raise EvaluationError(f"{self.text}: {found.plain_value()}")
        return found.plain_value()
