# SPDX-License-Identifier: Apache-2.0
"""The threats of docs/explanation/threat-model.md, carried out for real.

Each runs under runc, and where the runtime has a part in it under crun too, before a daemon and a
simulated card of its own. What would be harmed on the host is watched by the kernel (witness.py).
"""
