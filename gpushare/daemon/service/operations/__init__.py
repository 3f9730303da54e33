# SPDX-License-Identifier: Apache-2.0
"""The operations, by what they are about; each module has its table `OPERATIONS`."""
