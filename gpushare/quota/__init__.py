# SPDX-License-Identifier: Apache-2.0
"""Quotas: from annotations and environment to an effective request. Standard library only."""
