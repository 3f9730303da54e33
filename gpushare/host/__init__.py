# SPDX-License-Identifier: Apache-2.0
"""The host as its kernel and loader show it: mounts, namespaces, cgroups, the driver's files."""
