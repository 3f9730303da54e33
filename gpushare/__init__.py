# SPDX-License-Identifier: Apache-2.0
"""Containers share an NVIDIA GPU, each with a quota of memory and a share of compute."""

__version__ = "0.1.0"
