# SPDX-License-Identifier: Apache-2.0
"""The objects that `gpushare-node` reads from the Kubernetes API server and writes to it."""
