# SPDX-License-Identifier: Apache-2.0
"""What `gpushare-node` reads from the Kubernetes API server and writes to it."""
