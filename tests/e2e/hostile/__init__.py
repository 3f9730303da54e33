# SPDX-License-Identifier: Apache-2.0
"""The threats of docs/explanation/threats.md, carried out: an image, a caller or a tenant attacks.

Each runs under runc and under crun, before a daemon and a simulated card of its own, and what would
be harmed on the host is watched by the kernel (witness.py).
"""
