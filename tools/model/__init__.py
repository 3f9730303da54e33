# SPDX-License-Identifier: Apache-2.0
"""A card that tenants share, in simulated time: what the scheduler's policy makes of it.

No clock and no thread: a run of ten simulated seconds takes about one, and gives the same figures
each time. `python -m tools.model` prints the scenarios as a table.
"""
