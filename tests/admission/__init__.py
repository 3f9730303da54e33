# SPDX-License-Identifier: Apache-2.0
"""Evaluates admission policies as the Kubernetes API server does, without one."""

from .policy import Rejected, mutate, violations

__all__ = ["Rejected", "mutate", "violations"]
