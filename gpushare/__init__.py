# SPDX-License-Identifier: Apache-2.0
"""Containers share an NVIDIA GPU, each with a memory quota and a compute share that hold."""

__version__ = "0.1.0"
