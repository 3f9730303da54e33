# SPDX-License-Identifier: Apache-2.0
"""The scheduler's program, with a policy of the tests' own."""
