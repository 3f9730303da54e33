/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setns, O_PATH */
#include "driver_params.h"

#include "cleanup.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

/* Linux's numbers of these calls are every architecture's; musl's headers lack some, and their
 * flags: open_tree(2), move_mount(2), mount_setattr(2), openat2(2). */
enum {
	OPEN_TREE_NR = 428,
	MOVE_MOUNT_NR = 429,
	OPENAT2_NR = 437,
	MOUNT_SETATTR_NR = 442,
	CLONE_THE_MOUNT = 1,
	BOTH_PATHS_EMPTY = 0x04 | 0x40,
	THE_EMPTY_PATH = 0x1000,
	NO_OTHER_MOUNT = 0x01,
	NO_LINKS = 0x02 | 0x04,
	PROC_MAGIC = 0x9fa0,
};

struct open_how_v0 {
	uint64_t flags, mode, resolve;
};

struct mount_attr_v0 {
	uint64_t set, clear, propagation, userns_fd;
};

static int open_path(int folder, const char *path, uint64_t resolve)
{
	struct open_how_v0 how = {.flags = O_PATH | O_CLOEXEC, .resolve = resolve};

	return (int)syscall(OPENAT2_NR, folder, path, &how, sizeof(how));
}

/* Where this process is: its mount namespace, its root and its working directory. */
struct place {
	int namespace, root, folder;
};

static bool place_open(struct place *place)
{
	place->namespace = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	place->root = open("/", O_PATH | O_CLOEXEC);
	place->folder = open(".", O_PATH | O_CLOEXEC);
	return place->namespace >= 0 && place->root >= 0 && place->folder >= 0;
}

static void place_close(const struct place *place)
{
	cleanup_fd(&place->namespace);
	cleanup_fd(&place->root);
	cleanup_fd(&place->folder);
}

/* setns(2) sets both folders to the root of the namespace. */
static bool place_return(const struct place *place)
{
	return setns(place->namespace, CLONE_NEWNS) == 0 && fchdir(place->root) == 0 &&
	       chroot(".") == 0 && chdir("/") == 0 && fchdir(place->folder) == 0;
}

/* A mount of the file `path` that can be moved anywhere, and be changed by nobody; -1. */
static int restricted_mount(const char *path)
{
	/* MOUNT_ATTR_* are the same numbers. */
	const struct mount_attr_v0 restricted = {
		.set = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, .propagation = MS_PRIVATE};
	CLEANUP_FD int mount = (int)syscall(OPEN_TREE_NR, -1, path, CLONE_THE_MOUNT | O_CLOEXEC);

	if (mount < 0 || syscall(MOUNT_SETATTR_NR, mount, "", THE_EMPTY_PATH, &restricted,
				 sizeof(restricted)) < 0)
		return -1;
	return steal_fd(&mount);
}

/* Move `mount` over `name` in this process's mount namespace; false: errno says why not. */
static bool move_over(int mount, const char *name)
{
	struct statfs found;
	CLEANUP_FD int proc = open_path(-1, "/proc", NO_LINKS);
	CLEANUP_FD int target = proc < 0 ? -1 : open_path(proc, name, NO_LINKS | NO_OTHER_MOUNT);

	if (target < 0 || fstatfs(target, &found) < 0)
		return false;
	if (found.f_type != PROC_MAGIC) {
		errno = EXDEV;
		return false;
	}
	return syscall(MOVE_MOUNT_NR, mount, "", target, "", BOTH_PATHS_EMPTY) == 0;
}

const char *driver_params_cover(int pidfd, const char *copy, const char *name)
{
	struct place home = {-1, -1, -1};
	const char *why = NULL;
	CLEANUP_FD int mount = restricted_mount(copy);

	if (mount < 0 || !place_open(&home) || setns(pidfd, CLONE_NEWNS) < 0) {
		why = strerror(errno);
	} else {
		if (!move_over(mount, name))
			why = strerror(errno);
		if (!place_return(&home))
			abort(); /* nothing is to be run there */
	}
	place_close(&home);
	return why;
}
