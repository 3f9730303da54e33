# SPDX-License-Identifier: Apache-2.0
"""Shares of compute when something fails: real containers on simulated cards in slow motion.

What a tenant had of a card is what the simulated card served its processes, as read from the card
itself (served.py). The bands are wide: how exactly shares hold is measured by tools/bench/shares.
"""
