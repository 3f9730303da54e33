# SPDX-License-Identifier: Apache-2.0
"""The host: mounts, namespaces, cgroups, the dynamic loader and the driver's files."""
