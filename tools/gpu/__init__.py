# SPDX-License-Identifier: Apache-2.0
"""Measurements on a real GPU: `./dev gpu probe` and `./dev gpu`.

What is measured is one module each, named by what it measures, with functions that yield report
rows. A row that cannot be measured says why and costs the others nothing. `child/` holds what runs
in a process of its own, because a CUDA context, a namespace or a crash should not be shared.
"""
