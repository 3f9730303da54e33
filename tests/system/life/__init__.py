# SPDX-License-Identifier: Apache-2.0
"""The same life as without us: a caller sees of a low-level runtime what it would see without us.

Each test is a script that `Pair.same` runs twice, on the bare runtime and through gpushare-runtime,
with the same bundle path, the same state directory and the same container id. Exit status, stdout,
stderr and what is left on disk must be equal; times, process ids and measured figures are masked.
"""
