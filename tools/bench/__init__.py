# SPDX-License-Identifier: Apache-2.0
"""What gpushare costs: one function for each row; `./dev bench` runs them.

Each row measures the same thing with and without gpushare in one run, taking turns, and reports the
median difference: a figure from another day or another machine is no baseline.
"""
