# SPDX-License-Identifier: Apache-2.0
"""Breaks lines of the product on purpose, and tells whether the tests notice."""
