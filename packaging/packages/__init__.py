# SPDX-License-Identifier: Apache-2.0
"""Builds gpushare's packages: `./dev package [KIND...]`.

One module for each kind. Each has a function that builds its packages from a `Workspace` and
returns them as `Artifact`s. `__main__` writes checksums and bills of materials next to them.
The same commit gives the same bytes: every time is the commit's, every list is sorted, and owners
and modes are fixed.
"""
