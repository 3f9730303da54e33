# SPDX-License-Identifier: Apache-2.0
"""gpushare-node: what the Kubernetes scheduler and the kubelet know about this node's shares.

One process beside gpushared. It asks the control socket as the command line does, and decides
nothing: gpushared reserves, and refuses what does not fit.

| module | content |
|---|---|
| names | names that the cluster sees: the driver, resources, labels, devices |
| cards | what gpushared reports of the cards, also while it restarts |
| claim_follower | pods that join prepared claims, and the status of claims |
| log | lines on stderr, one for each change |
| kubelet | the kubelet's side: device plugin and DRA driver, over gRPC on Unix sockets |
| api | the API server's side: labels, ResourceSlices, claims and events |
"""

import sys
from typing import Final

#: The error if the library, an optional dependency, is missing.
NO_LIBRARY: Final = (
    f"grpcio is not installed. Run {sys.executable} -m pip install grpcio "
    "(the extra `kubernetes` of gpushare-runtime), or install Debian's python3-grpcio"
)
