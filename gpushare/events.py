# SPDX-License-Identifier: Apache-2.0
"""The events of the daemon's log: a name never changes its meaning, so that alerts may rest on it.

docs/reference/events.md is written from here, and tests/unit/daemon/test_events.py holds that this
table and the logged events are the same.
"""

from __future__ import annotations

from typing import Final

#: Those that the history of a node keeps; each has its words in gpushare/cli/history.py.
KEPT: Final = {
    # The daemon
    "daemon-ready": "gpushared is ready to serve requests.",
    "daemon-stopped": "gpushared stopped as requested; containers keep running.",
    "config-reloaded": "The configuration was reloaded; `changed` lists the keys that changed.",
    "node-setting-changed": "A label of the Node object set a setting of this node.",
    "node-setting-reset": "No label sets that setting any more: gpushare.yaml does.",
    "config-rejected": "The new configuration was rejected, and the previous one stays in effect.",
    "request-refused": "A request was refused, with the reason.",
    "history-resumed": "The history is written again; `lost` events are missing.",
    "history-damaged": "The history file was damaged and set aside; a new one was started.",
    # Its state
    "ledger-damaged": "Records of the ledger, or copies, could not be read, and were set aside.",
    "ledger-repaired": "The ledger had lost records; they were restored from their copies.",
    "ledger-write-failed": (
        "The disk does not take the ledger: no new reservations; containers keep running."
    ),
    "integrity-lost": (
        "What is allocated is not known: new reservations are refused until an operator checks."
    ),
    "integrity-confirmed": "An operator confirmed the integrity of the ledger.",
    # A tenant's life
    "tenant-reserved": "A reservation was made for the container.",
    "tenant-not-allocated": "The container starts without a GPU, or is refused; the reason.",
    "tenant-remote": "The container uses the GPU of a remote server.",
    "tenant-request-adjusted": (
        "A part of the request was not applied, or bypasses the interposer library."
    ),
    "ticket-queued": "A start that does not fit waits in the queue; the reason.",
    "ticket-granted": "Room was reserved for a start that waited.",
    "ticket-ended": (
        "A ticket ended: `how` is started, cancelled, timed-out, expired (granted, and not started "
        "in time), client-ended or refused."
    ),
    "tenant-bound": (
        "The container's process is registered; the allocation lasts as long as it does."
    ),
    "tenant-adopted": "A restarted gpushared found the container running.",
    "tenant-name-refused": (
        "The container's name is the ID of another one, or its beginning: it goes by its own ID."
    ),
    "tenant-resized": "An operator changed the container's quota.",
    "tenant-released": "The container exited, and its allocation was released.",
    "claim-prepared": "A ResourceClaim of Kubernetes was reserved.",
    "claim-released": (
        "A ResourceClaim was released; its containers that still run keep what they have."
    ),
    "tenant-frozen": (
        "All processes of the container were frozen, by the audit, an operator or `idle.action`."
    ),
    "tenant-refrozen": "Something else thawed a frozen container; it was frozen again.",
    "tenant-thawed": "The container was resumed, unless something else keeps it frozen.",
    "tenant-stop-requested": (
        "An operator, `idle.action` or the time limit stopped the container: the signal, and the "
        "timeout before SIGKILL."
    ),
    "tenant-time-limit-near": "The container is going to be stopped: its time limit is near.",
    "tenant-time-limit-failed": "The container's time is over, and it could not be stopped yet.",
    "tenant-killed": "All processes of the container were killed; why.",
    "tenant-start-abandoned": (
        "The runtime was killed during create; the container's process was killed."
    ),
    "tenant-evicted": (
        "The container's GPU memory was moved to host memory; `driver_seconds` of the seconds were "
        "the driver's."
    ),
    "tenant-restored": "The container's GPU memory is on its card again.",
    "tenant-moved": "The container's GPU memory was restored to another card.",
    "tenant-restore-waits": (
        "A program of an evicted container uses CUDA, and its card has no room yet: it waits."
    ),
    "tenant-eviction-failed": "The container could not be evicted; it goes on as before.",
    "tenant-restore-failed": "The container could not be restored; it stays evicted.",
    "tenant-eviction-lost": (
        "The driver can neither keep nor restore the container's GPU memory: stop the container."
    ),
    "tenant-eviction-bypassed": (
        "Another program has restored the container's GPU memory: it counts on its card again."
    ),
    "tenant-hung": "The container has pending work that does not seem to end.",
    "tenant-bypasses-mps": (
        "A process of a container on a card in MPS mode uses the card and is no client of its MPS "
        "server."
    ),
    "tenant-lost-mps-server": (
        "A fatal fault of another client ended the work of all clients of the MPS server: the "
        "container has to be started again."
    ),
    "tenant-pages-lost": "The container's pages are gone or damaged.",
    "tenant-pages-incompatible": (
        "The container's pages are of another version; they stay as they are."
    ),
    # Cards and driver
    "driver-loaded": "The driver was loaded; these are its cards.",
    "driver-missing": "There is no driver: reservations are refused.",
    "driver-timed-out": (
        "The driver does not respond: its figures are stale, and quotas are not enforced on them."
    ),
    "driver-recovered": "The driver responds again.",
    "driver-sample-rejected": "The driver reported impossible figures; they are not acted on.",
    "driver-cards-changed": (
        "The driver, its cards or their MIG instances changed since the last sample."
    ),
    "driver-worker-abandoned": (
        "The process that calls NVML hangs and cannot be killed; it was abandoned."
    ),
    "card-unhealthy": (
        "A card is unhealthy: containers keep what they have, and none is placed on it."
    ),
    "card-recovered": "The card is healthy again.",
    "card-xid-reported": "The driver reported an XID for a card, with the processes that used it.",
    "driver-replaced": "The driver was replaced while in use: new reservations are refused.",
    "driver-limit-set-failed": (
        "The driver rejected a memory limit; the interposer library alone enforces it."
    ),
    # The audit
    "over-quota-detected": "The container is over its quota; the configured action is observe.",
    "over-quota-warned": "The container is over its quota: it and the operator are warned.",
    "over-quota-frozen": "The container stayed over its quota: its processes were frozen.",
    "over-quota-killed": (
        "The container was far over its quota for long, or caused a shortfall: it was killed."
    ),
    "over-quota-thawed": "The container is within its quota again and was thawed.",
    "over-quota-cleared": "The container is within its quota again.",
    "over-quota-action-failed": "The container could not be frozen, or thawed; tried again.",
    "unallocated-container-detected": "A container uses a card without an allocation.",
    "tenant-idle-detected": "The container holds memory and did not use its cards for idle.after.",
    "tenant-idle-warned": "The same, and its user is warned: the action is warn, pause or kick.",
    "tenant-idle-action-failed": "An idle container could not be paused or stopped.",
    "memory-shortfall-reported": (
        "The driver could not allocate memory that is within a container's quota."
    ),
    # Compute
    "card-policy-changed": "An operator changed a card's policy.",
    "card-cordoned": "An operator cordoned a card: no container is placed on it.",
    "card-uncordoned": "An operator uncordoned a card.",
    "scheduler-started": "The scheduler was started.",
    "mps-control-started": "The MPS control daemon of a card in MPS mode was started.",
    "mps-control-adopted": (
        "The MPS control daemon that an earlier gpushared had started was found, and is used."
    ),
    "mps-control-failed": (
        "The MPS control daemon of a card does not run; it is started again after a while."
    ),
    "mps-control-stopped": "The MPS control daemon of a card was ended.",
    "mps-command-slow": (
        "The MPS control daemon of a card took over a second for a command, while new clients wait "
        "too: idle connections delay it. `ss -xp` lists them."
    ),
    "mps-socket-repaired": (
        "Somebody had removed the socket of a card's MPS control daemon, which was put back. "
        "`restarted`: no client could reach the control daemon any more (`error`), so another one "
        "is started."
    ),
    "mps-limits-changed": (
        "Somebody else had changed the limits of an MPS server, which root of a container and the "
        "host's root can: to what, before they were set again."
    ),
    "mps-limits-not-changed": (
        "The MPS server's limits of a container were not changed; the interposer library enforces "
        "the quota."
    ),
    "mps-server-faulted": (
        "A client of an MPS server had a fatal fault: who caused it, and whose work it ended."
    ),
    "scheduler-lost": "The scheduler exited; another one is started.",
    "gate-bypass-detected": "The driver saw clearly more work than passed the launch gate.",
    "gate-bypass-frozen": "A container that bypasses the launch gate was frozen for it.",
}
#: Those that are in the log alone.
_LOGGED: Final = {
    "remote-engine-read": "A client library of a remote engine was read; its SHA-256.",
    "remote-engine-unusable": (
        "The client libraries of a remote engine cannot be used: containers that request it are "
        "refused."
    ),
    # The daemon
    "signal-received": "gpushared received a signal.",
    "priority-raise-failed": "gpushared runs at the priority of other programs.",
    "privileges-drop-failed": "gpushared could not drop capabilities.",
    "mount-namespace-isolated": (
        "Tenant pages are mounted in a namespace that only gpushared can see."
    ),
    "systemd-notify-failed": "systemd could not be notified.",
    "thread-hung": "A thread of gpushared hangs; systemd's watchdog ends gpushared if it stays so.",
    "thread-recovered": "The thread runs again.",
    "socket-recreated": ("The control socket was removed; it was created again."),
    "descriptors-exhausted": "No file descriptor is left: new connections wait.",
    "callback-failed": "An internal error in a callback; the event loop continues.",
    "job-failed": "An internal error in a job; the next job runs.",
    "request-failed": "An internal error in a request; the client received an error.",
    "request-abandoned": "The client gave up before the answer; nothing was done.",
    "caller-refused": (
        "A caller without the right, or with a malformed request, was refused. It is logged only."
    ),
    "log-lines-suppressed": (
        "Sources had more to log than their allowance: how many lines were counted and dropped."
    ),
    "history-write-failed": "The history cannot be written; everything else continues.",
    "metrics-history-failed": (
        "The metrics history is not written, or not complete; everything else continues."
    ),
    # Its state
    "ledger-discarded": "The ledger was of an earlier boot, whose containers have ended.",
    "ledger-write-resumed": "The disk takes the ledger again.",
    "ledger-copy-failed": "A record was written, but its copy could not be put in place.",
    "freeze-record-failed": (
        "The disk does not take the record of a freeze or kill, which is in effect all the same."
    ),
    # A tenant's life
    "tenant-image-incompatible": "The image's CUDA does not fit the driver or the card; the rule.",
    "claim-files-failed": "The CDI specification or the folder of a ResourceClaim is missing.",
    "tenant-kill-retried": "Killed processes have not exited yet; tried again.",
    "tenant-freeze-failed": "The container could not be frozen, or killed; tried again.",
    "eviction-refused": (
        "A container was not evicted for another one, or before its kill; the reason."
    ),
    "eviction-unsettled": (
        "An eviction was interrupted, and the driver does not report how far it got; tried again."
    ),
    "eviction-worker-lost": "The process that calls the checkpoint API exited, or was killed.",
    "tenant-log-received": "The interposer library logged a message; the text is the tenant's.",
    "process-records-freed": "Records of exited processes were freed.",
    "process-records-free-failed": "Records of exited processes could not be freed yet.",
    "tenant-release-failed": "The container's exit could not be recorded yet; tried again.",
    "directory-removal-failed": "The container's folder could not be removed.",
    "directory-orphan-removed": "A folder that belongs to no container was removed.",
    # Cards and driver
    "driver-prepared": "Kernel modules of the driver were loaded, or its device nodes created.",
    "driver-preparation-failed": (
        "A kernel module could not be loaded, or a device node not created."
    ),
    "driver-worker-started": "The process that calls NVML was started.",
    "driver-worker-lost": "The process that calls NVML exited or hung; another one is started.",
    "driver-cdi-spec-updated": "The CDI specification was updated for a changed driver.",
    "driver-cdi-spec-written": "The CDI specification of the driver was written.",
    "driver-cdi-spec-write-failed": "The CDI specification could not be written.",
    "driver-limit-removal-failed": (
        "The driver's limits of an exited container could not be removed yet."
    ),
    "device-links-created": "Links under /dev/char were created.",
    "device-link-failed": "A link under /dev/char could not be created.",
    "driver-sample-failed": "An internal error while the driver was sampled.",
    "context-size-measured": "The memory of a CUDA context on a card model was measured.",
    "context-size-measurement-failed": (
        "The memory of a CUDA context on a card model could not be measured."
    ),
    "context-size-write-failed": "The measured context size could not be written.",
    "library-tree-failed": (
        "The libraries could not be mounted ahead of need, or earlier ones not unmounted; each "
        "container mounts them itself."
    ),
    "driver-params-not-covered": (
        "The container starts without the copy of `/proc/driver/nvidia/params` that keeps its root "
        "from creating device nodes of other cards. Its device rules are in effect."
    ),
    "cuda-compat-selected": (
        "The container uses the cuda-compat package of its image as the driver."
    ),
    "cuda-compat-removed": "An unused copy of a cuda-compat package was removed.",
    "cuda-compat-removal-failed": "Copies of cuda-compat packages could not be removed.",
    # Compute
    "mps-command-failed": "The MPS control daemon of a card did not carry out a command.",
    "scheduler-adopted": "A running scheduler was adopted.",
    "scheduler-replaced": "A scheduler of another version was replaced.",
    "share-rejected": "The scheduler rejected a container's share.",
}
EVENTS: Final = {**KEPT, **_LOGGED}

#: Evidence of what a container did and what was done about it: the history never drops one of these
#: to make room for another event, and the log charges them to an allowance of their own.
LASTING: Final = frozenset(
    {
        *(name for name in KEPT if name.startswith(("over-quota-", "unallocated-container-"))),
        "tenant-frozen",
        "tenant-refrozen",
        "tenant-thawed",
        "tenant-stop-requested",
        "tenant-killed",
        "gate-bypass-detected",
        "gate-bypass-frozen",
    }
)

#: Events of which a tenant's processes choose the number and the text.
SENT_BY_TENANTS: Final = frozenset({"tenant-log-received"})

#: Events of root's own commands, and reports that are rare by themselves: no allowance bounds them.
UNCHARGED: Final = frozenset(
    {
        "daemon-ready",
        "daemon-stopped",
        "config-reloaded",
        "config-rejected",
        "tenant-resized",
        "tenant-stop-requested",
        "card-policy-changed",
        "card-cordoned",
        "card-uncordoned",
        "log-lines-suppressed",
    }
)

#: Events that metrics count: those of the history, and those that are only logged or suppressed.
COUNTED: Final = KEPT.keys() | {"caller-refused"}
