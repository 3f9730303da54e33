# SPDX-License-Identifier: Apache-2.0
"""Measures which lines of the product the tests execute; docs/measurements/tests.md."""
