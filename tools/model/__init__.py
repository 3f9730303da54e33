# SPDX-License-Identifier: Apache-2.0
"""A card that tenants share, in simulated time: what the scheduler's policy makes of it.

No clock and no thread: a run of ten simulated seconds takes about one, and gives the same figures
each time. tests/c/scheduler holds the scenarios to their targets.
"""
