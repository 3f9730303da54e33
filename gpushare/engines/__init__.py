# SPDX-License-Identifier: Apache-2.0
"""How container engines are told of the runtime.

`docker` and `containerd` are pure: configuration text in, configuration text out, everything that
they do not know kept byte for byte. `engine` says where each engine keeps its text, `registration`
reads and writes the files.
"""
