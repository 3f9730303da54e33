# SPDX-License-Identifier: Apache-2.0
"""The events of the daemon's log: a name never changes its meaning, so that alerts may rest on it.

docs/reference/events.md is written from here, and tests/unit/daemon/test_events.py holds that what
is logged and what stands here are the same. `KEPT` are also the history of a node.
"""

from __future__ import annotations

from typing import Final

EVENTS: Final = {
    # The daemon
    "daemon-ready": "It serves.",
    "daemon-stopped": "It ended as it was told; tenants go on.",
    "signal": "A signal came.",
    "config-read": "SIGHUP: the configuration was read again.",
    "config-bad": "SIGHUP: the configuration is not right, and the old one stays.",
    "privileges-kept": "Capabilities could not be given up.",
    "mounts-own-namespace": "Tenants' pages are mounted where only this daemon may see them.",
    "notify-failed": "systemd could not be told.",
    "socket-lost": "The control socket was removed, and made again.",
    "descriptors-exhausted": "No descriptor is free: new connections wait.",
    "callback-failed": "A fault of gpushared; the loop goes on.",
    "job-failed": "A fault of gpushared; the next job is done.",
    "request-failed": "A fault of gpushared: the caller was told that it could not be done.",
    "request-late": "Who asked gave up before an answer; nothing was done.",
    "request-refused": "The caller was refused, and told why.",
    # A tenant's life
    "tenant-reserved": "It was promised its part, and nobody else is.",
    "tenant-given-none": "It starts without a GPU, or is refused; why.",
    "tenant-noted": "What it asked and did not get, or got beyond the interposer.",
    "tenant-bound": "Its process is known: it lasts as long as that.",
    "tenant-adopted": "A daemon that was started anew found it at work.",
    "tenant-resized": "An operator changed what it has.",
    "tenant-released": "It ended: what it was promised is free.",
    "tenant-frozen": "All its processes were stopped; by whom, and why.",
    "tenant-frozen-again": "Another had thawed what is held still.",
    "tenant-thawed": "It goes on, unless another holds it still.",
    "tenant-killed": "All its processes are ended; why.",
    "kill-unfinished": "Processes that are to end have not yet; tried again.",
    "hold-failed": "Who is to be held still, or ended, could not be yet; tried again.",
    "tenant-stranded": "Its runtime was killed halfway and can never start it: ended.",
    "tenant-process": "A process of it opened the driver.",
    "tenant-said": "Its libraries logged something; the text is the tenant's.",
    "tenant-hung": "It has work pending that seems never to end.",
    "pages-lost": "Its pages are gone or damaged.",
    "processes-reaped": "Records of its ended processes were freed.",
    "reap-failed": "Records of its ended processes could not be freed yet.",
    "release-failed": "Its end could not be settled yet; tried again.",
    "directory-left": "Its folder could not be removed.",
    "directory-unknown": "A folder of no tenant: removed where nobody uses it.",
    # Cards and driver
    "driver-loaded": "The driver answers; these are its cards.",
    "driver-missing": "There is no driver: nothing can be promised.",
    "driver-silent": "The driver does not answer: its figures are old, nobody is acted on.",
    "driver-answers": "It answers again.",
    "driver-changed": "The driver was changed underneath: nothing new is promised.",
    "driver-files-renewed": "The CDI spec was written anew for a changed driver.",
    "driver-spec-renewed": "The CDI spec of the driver was written.",
    "driver-spec-not-written": "The CDI spec could not be written.",
    "driver-limits-failed": "The driver did not take a limit; the interposer holds it alone.",
    "driver-limits-left": "The driver's limits of an ended tenant could not be removed yet.",
    "device-links-made": "Links beneath /dev/char were made.",
    "device-link-failed": "A link beneath /dev/char could not be made.",
    "look-failed": "A fault of gpushared at a look at the driver.",
    "slow-motion-unknown": "A simulated device does not say how slow it is.",
    "context-measured": "What a context takes of a model was measured.",
    "context-learned": "What a context takes of a model was learned from a tenant.",
    "context-not-measured": "What a context takes of a model could not be measured.",
    "context-not-kept": "What was measured could not be written.",
    "compat-used": "A cuda-compat package of an image is the driver of its container.",
    "compat-removed": "A copy of a cuda-compat package that nobody uses was removed.",
    "compat-left": "Copies of cuda-compat packages could not be removed.",
    # Compute
    "card-policy": "An operator changed a card's policy.",
    "scheduler-started": "The scheduler was started.",
    "scheduler-adopted": "A scheduler was found at work.",
    "scheduler-replaced": "A scheduler of another version was replaced.",
    "scheduler-lost": "The scheduler ended; another is started.",
    "share-refused": "The scheduler did not take a tenant's share.",
    "gate-bypassed": "The driver saw clearly more work than passed the gate.",
}

#: What the history of a node is made of.
KEPT: Final = frozenset(
    {
        "daemon-ready",
        "daemon-stopped",
        "driver-changed",
        "driver-loaded",
        "driver-silent",
        "driver-answers",
        "tenant-reserved",
        "tenant-given-none",
        "tenant-bound",
        "tenant-resized",
        "tenant-released",
        "tenant-stranded",
        "tenant-frozen",
        "tenant-frozen-again",
        "tenant-thawed",
        "tenant-killed",
        "tenant-hung",
        "pages-lost",
        "card-policy",
        "scheduler-lost",
        "gate-bypassed",
    }
)
