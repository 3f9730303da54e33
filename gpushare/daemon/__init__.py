# SPDX-License-Identifier: Apache-2.0
"""gpushared: decides what each tenant gets of the cards, and audits that it gets no more.

Threads, and what each of them alone touches:

| thread | owns |
|---|---|
| starting socket | the control socket until the daemon is ready |
| main | every socket and pidfd, signals, timers |
| decide | the ledger, tenants' pages and directories, overrides: all that changes an allocation |
| read | nothing; answers from the ledger's last published records and the last sample |
| truth | the overhead, utilization and heartbeat fields of grant pages, the last sample |
| schedule | the scheduler: its process, its connection, what it was told |
| history | the history's file |
| names | nothing; asks engines for container names, and has the tree of libraries mounted |
| calibration | nothing; ends when it has measured what a context takes |
| driver (`cards/nvml_client`) | the process that calls NVML; other threads ask it with a deadline |
| mounts (up to 16) | the place of each in the host's mount namespace, the spare directories |

What one thread publishes for others is an immutable object behind one attribute.

Layers, the lowest first; a package never imports a higher one (pyproject.toml has the contract):

| package | what is in it |
|---|---|
| core | loop, workers, clock, log, privileges |
| policy | shares of compute, escalation: pure |
| placement | which card a request gets: pure |
| cards, store, pages | the driver; what survives the daemon; what is shared with tenants |
| identity | which process belongs to which tenant, and what it is called |
| state | configuration, ledger, tenants, cards, overrides, and what was observed: plain |
| observe | samples of the driver beside the tenants' claims |
| freezer, limits, compute | freeze and kill; burst and the driver's own limits; the scheduler |
| audit | the driver's figures against the quotas, and what follows |
| lifecycle, operator | create, bind, release; what an operator changes of a running tenant |
| views | what clients are shown |
| service | the control socket and its operations |
| `composition` | makes the parts, and lists who hears of each change of the ledger |
| `__main__` | starts it |
"""
