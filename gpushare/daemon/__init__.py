# SPDX-License-Identifier: Apache-2.0
"""gpushared: decides what each tenant gets of the cards, and watches that it stays so.

Threads and what each alone touches:

| thread | owns |
|---|---|
| door | the control socket until the daemon is ready |
| main (`server`) | every socket and pidfd, signals, timers |
| decide | the ledger, tenants' pages and directories, overrides: all that changes a promise |
| read | nothing; answers from the ledger's last published entries and the last sample |
| truth | the overhead, utilisation and heartbeat fields of grant pages, the last sample |
| schedule | the scheduler: its process, its connection, what it was told |
| history | the history's file |
| names | nothing; asks engines what a container is called, and removes libraries that nobody has |
| calibration | nothing; ends when it has measured what a context takes |
| driver (`cards/nvml`) | the process that calls NVML; everybody else asks it with a deadline |
| turns | one for each tenant that runs for a part of the time: the freezing of its cgroup |
| mounts | its place in the host's mount namespace |

What one thread publishes for others is an immutable object behind one attribute.

| folder | what is in it |
|---|---|
| service | the loop, the control socket and its operations, tenants' sockets |
| store | what survives the daemon |
| cards | what is there, what it can promise, what a context takes of it |
| placement | which card: pure |
| policy | who is to get what, and what is to be done: pure |
| life | asked for, reserved, bound, released |
| pages | what is shared with a tenant's processes |
| identity | which process is whose, and what it is called |
| control | what an operator changes of a running tenant |
| memory | what is lent; the driver's own limits |
| compute | shares, and the scheduler that is told them |
| audit | the driver's figures beside the tenants' |
| views | what clients are shown |
"""
