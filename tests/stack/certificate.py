# SPDX-License-Identifier: Apache-2.0
"""A certificate of 127.0.0.1 that signs itself."""

from __future__ import annotations

import subprocess
from pathlib import Path


def write_certificate(folder: Path) -> Path:
    """Write a file with a certificate and its key, and return it."""
    key, file = folder / "key.pem", folder / "server.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=stand-in",
            "-keyout",
            key,
            "-out",
            file,
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + key.read_text())
    return file
