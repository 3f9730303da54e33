/* SPDX-License-Identifier: Apache-2.0
 *
 * Identifies the cgroup of a process, so that a container and its host mean the same one. A path is
 * only valid within one cgroup namespace (cgroup_namespaces(7)); a directory's inode number is the
 * same in all, and is the cgroup's ID. Nothing here allocates or takes a lock.
 */
#ifndef GPUSHARE_SIMULATOR_CGROUP_H
#define GPUSHARE_SIMULATOR_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_PATH 512
#define CGROUP_DEPTH 32

struct cgroup {
	uint64_t inode;
	uint64_t filesystem;	  /* st_dev */
	uint64_t namespace_inode; /* the cgroup namespace in which `path` is valid */
	uint32_t hierarchy;	  /* its number in /proc/PID/cgroup; 0 is version 2 */
	uint32_t reserved;
	char path[CGROUP_PATH]; /* from the hierarchy's root */
};

enum membership { MEMBER, NOT_MEMBER, MEMBER_UNKNOWN };

/* The cgroup of a process, in the hierarchy that was last queried. */
struct cgroup_place {
	int pid;		  /* as numbered by the mounted /proc; 0 is the caller */
	uint64_t namespace_inode; /* the caller's */
	uint64_t filesystem;	  /* of the results below; 0 before the first */
	bool path_known;
	char path[CGROUP_PATH];
	unsigned int inode_count; /* its cgroup and its ancestors, as far as they are visible */
	uint64_t inodes[CGROUP_DEPTH];
};

/* Describe the cgroup of `directory`, in any hierarchy of either version; false with errno if it
 * cannot be opened or is not a cgroup (ENOTDIR, EINVAL). */
bool cgroup_open(const char *directory, struct cgroup *cgroup);

/* Begin to query a process. */
void cgroup_ask(struct cgroup_place *place, int pid);

/* Whether the process is in the cgroup or beneath it. Unknown if neither path nor inode is
 * conclusive: the caller is in a cgroup namespace of its own and has no mount of the hierarchy, or
 * it queries another process from such a namespace. */
enum membership cgroup_member(struct cgroup_place *place, const struct cgroup *cgroup);

/* False once the directory is known to be removed, or to be another of the same name. */
bool cgroup_lives(const struct cgroup *cgroup);

#endif
