# SPDX-License-Identifier: Apache-2.0
"""The threats of docs/explanation/threat-model.md, carried out for real.

Each runs under runc and under crun, before a daemon and a simulated card of its own, and what would
be harmed on the host is watched by the kernel (witness.py).
"""
