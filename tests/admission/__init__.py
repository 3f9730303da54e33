# SPDX-License-Identifier: Apache-2.0
"""Evaluates admission policies as the Kubernetes API server does, without one."""

from .cost import Costs, measure
from .policy import Rejected, mutate, violations

__all__ = ["Costs", "Rejected", "measure", "mutate", "violations"]
