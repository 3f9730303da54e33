# SPDX-License-Identifier: Apache-2.0
"""The operations: one module a subject, each with the table of its operations."""
