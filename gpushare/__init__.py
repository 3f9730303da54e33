# SPDX-License-Identifier: Apache-2.0
"""Containers share an NVIDIA GPU, each with a memory quota that holds."""

__version__ = "0.1.0"
