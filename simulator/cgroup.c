/* SPDX-License-Identifier: Apache-2.0 */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP_V1_MAGIC 0x27e0eb   /* linux/magic.h: CGROUP_SUPER_MAGIC */
#define CGROUP_V2_MAGIC 0x63677270 /* CGROUP2_SUPER_MAGIC */

/* Reads a file of /proc by lines; a line that is longer than the buffer is truncated. */
struct lines {
	int fd;
	size_t start, end;
	char buffer[4096];
};

static char *next_line(struct lines *lines)
{
	for (bool whole = false;;) {
		char *line = lines->buffer + lines->start;
		char *newline = memchr(line, '\n', lines->end - lines->start);
		ssize_t count;

		if (newline || whole) {
			if (!newline)
				newline = lines->buffer + lines->end;
			*newline = '\0';
			lines->start = (size_t)(newline - lines->buffer) + 1;
			if (lines->start > lines->end)
				lines->start = lines->end;
			return line;
		}
		memmove(lines->buffer, line, lines->end - lines->start);
		lines->end -= lines->start;
		lines->start = 0;
		count = read(lines->fd, lines->buffer + lines->end,
			sizeof(lines->buffer) - 1 - lines->end);
		if (count <= 0 && lines->end == 0)
			return NULL;
		whole = count <= 0;
		if (count > 0)
			lines->end += (size_t)count;
	}
}

static bool lines_open(struct lines *lines, const char *path)
{
	lines->start = lines->end = 0;
	lines->fd = open(path, O_RDONLY | O_CLOEXEC);
	return lines->fd >= 0;
}

/* A mount of a cgroup hierarchy, as a line of mountinfo (proc(5)) describes it. */
struct cgroup_mount {
	uint64_t filesystem;
	char root[CGROUP_PATH];	 /* the part of the hierarchy that is mounted */
	char point[CGROUP_PATH]; /* where */
	char options[CGROUP_PATH];
	bool version_2;
};

static bool mount_parse(const char *line, struct cgroup_mount *mount)
{
	const char *rest = strstr(line, " - cgroup");
	unsigned int major, minor;

	if (!rest || sscanf(line, "%*u %*u %u:%u %511s %511s", &major, &minor, mount->root,
			     mount->point) != 4)
		return false;
	mount->version_2 = strncmp(rest, " - cgroup2 ", 11) == 0;
	mount->filesystem = makedev(major, minor);
	return sscanf(rest, " - %*s %*s %511s", mount->options) == 1;
}

/* The rest of `path` below `top`: "" for top itself, null if it is not beneath. */
static const char *below(const char *path, const char *top)
{
	size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);

	if (strncmp(path, top, length) != 0 || (path[length] != '/' && path[length] != '\0'))
		return NULL;
	return strcmp(path + length, "/") == 0 ? "" : path + length;
}

/* The mount through which a path of this process leads into the file system, or any mount of it. */
static bool mount_find(uint64_t filesystem, const char *path, struct cgroup_mount *found)
{
	struct cgroup_mount mount;
	struct lines lines;
	bool any = false;

	if (!lines_open(&lines, "/proc/self/mountinfo"))
		return false;
	for (const char *line; (line = next_line(&lines));) {
		if (!mount_parse(line, &mount) || mount.filesystem != filesystem ||
			(path && !below(path, mount.point)))
			continue;
		/* Of nested mounts, the last one is on top. */
		*found = mount;
		any = true;
	}
	close(lines.fd);
	return any;
}

/* The path of a process in one hierarchy: "4:memory:/docker/..." has number 4. */
static bool path_of(int pid, uint32_t hierarchy, char path[CGROUP_PATH])
{
	char file[64];
	struct lines lines;
	bool found = false;

	if (pid)
		snprintf(file, sizeof(file), "/proc/%d/cgroup", pid);
	else
		snprintf(file, sizeof(file), "/proc/self/cgroup");
	if (!lines_open(&lines, file))
		return false;
	for (const char *line; !found && (line = next_line(&lines));) {
		const char *colon = strchr(line, ':');
		unsigned int number;

		colon = colon ? strchr(colon + 1, ':') : NULL;
		if (!colon || sscanf(line, "%u:", &number) != 1 || number != hierarchy)
			continue;
		found = snprintf(path, CGROUP_PATH, "%s", colon + 1) < CGROUP_PATH;
	}
	close(lines.fd);
	return found;
}

/* The number of the version 1 hierarchy that has the first controller among a mount's options, or
 * the name that replaces a controller. */
static bool hierarchy_of(const struct cgroup_mount *mount, uint32_t *hierarchy)
{
	struct lines lines;
	bool found = mount->version_2;

	*hierarchy = 0;
	if (found || !lines_open(&lines, "/proc/self/cgroup"))
		return found;
	for (const char *line; !found && (line = next_line(&lines));) {
		char controller[64];
		const char *option;
		size_t length;

		if (sscanf(line, "%u:%63[^,:]", hierarchy, controller) != 2)
			continue;
		length = strlen(controller);
		option = strstr(mount->options, controller);
		while (option && (option == mount->options || option[-1] != ',' ||
					 (option[length] != ',' && option[length] != '\0')))
			option = strstr(option + 1, controller);
		found = option != NULL;
	}
	close(lines.fd);
	return found;
}

static uint64_t own_namespace(void)
{
	struct stat link;

	return stat("/proc/self/ns/cgroup", &link) == 0 ? link.st_ino : 0;
}

static bool describe(int fd, struct cgroup *cgroup)
{
	char link[64], path[CGROUP_PATH] = "";
	struct cgroup_mount mount;
	struct statfs filesystem;
	struct stat directory;
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (fstat(fd, &directory) != 0 || fstatfs(fd, &filesystem) != 0 || length <= 0)
		return false;
	errno = EINVAL;
	if (filesystem.f_type != CGROUP_V1_MAGIC && filesystem.f_type != CGROUP_V2_MAGIC)
		return false;
	*cgroup = (struct cgroup){.inode = directory.st_ino,
		.filesystem = directory.st_dev,
		.namespace_inode = own_namespace()};
	errno = EINVAL;
	return mount_find(directory.st_dev, path, &mount) &&
	       hierarchy_of(&mount, &cgroup->hierarchy) &&
	       snprintf(cgroup->path, sizeof(cgroup->path), "%s%s",
		       strcmp(mount.root, "/") == 0 ? "" : mount.root,
		       below(path, mount.point)) < (int)sizeof(cgroup->path);
}

bool cgroup_open(const char *directory, struct cgroup *cgroup)
{
	int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int reason;
	bool known;

	if (fd < 0)
		return false;
	known = describe(fd, cgroup);
	reason = errno;
	close(fd);
	errno = reason;
	return known;
}

/* The caller's cgroup and its ancestors, as far up as a mount of the hierarchy shows them. */
static void see_in_mount(struct cgroup_place *place)
{
	char directory[2 * CGROUP_PATH];
	struct cgroup_mount mount;
	const char *beneath;
	size_t top;

	if (!mount_find(place->filesystem, NULL, &mount) ||
		!(beneath = below(place->path, mount.root)))
		return;
	top = strlen(mount.point);
	snprintf(directory, sizeof(directory), "%s%s", mount.point, beneath);
	for (char *slash = directory; slash && place->inode_count < CGROUP_DEPTH;
		slash = strrchr(directory + top, '/')) {
		struct stat file;

		if (slash != directory)
			*slash = '\0';
		if (stat(directory, &file) == 0 && file.st_dev == place->filesystem)
			place->inodes[place->inode_count++] = file.st_ino;
	}
}

/* Since Linux 6.13, the ID of a process's version 2 cgroup is available without any mount:
 * PIDFD_GET_INFO, linux/pidfd.h, defined here because headers are older. */
static void ask_kernel(struct cgroup_place *place)
{
	struct {
		uint64_t mask, cgroup_id;
		uint32_t rest[12];
	} info = {.mask = 1 << 2 /* PIDFD_INFO_CGROUPID */};
	int fd = (int)syscall(434 /* pidfd_open, on every architecture */, getpid(), 0);

	if (fd < 0)
		return;
	if (ioctl(fd, _IOWR(0xff, 11, info), &info) == 0 && (info.mask & 1 << 2))
		place->inodes[place->inode_count++] = info.cgroup_id;
	close(fd);
}

void cgroup_ask(struct cgroup_place *place, int pid)
{
	place->pid = pid;
	place->namespace_inode = own_namespace();
	place->filesystem = 0;
}

static void look_into(struct cgroup_place *place, const struct cgroup *cgroup)
{
	place->filesystem = cgroup->filesystem;
	place->inode_count = 0;
	place->path_known = path_of(place->pid, cgroup->hierarchy, place->path);
	/* Another process's path means nothing to the caller's mounts. */
	if (place->pid != 0 || place->namespace_inode == cgroup->namespace_inode)
		return;
	if (place->path_known)
		see_in_mount(place);
	if (place->inode_count == 0 && cgroup->hierarchy == 0)
		ask_kernel(place);
}

enum membership cgroup_member(struct cgroup_place *place, const struct cgroup *cgroup)
{
	if (place->filesystem != cgroup->filesystem)
		look_into(place, cgroup);
	if (place->namespace_inode == cgroup->namespace_inode) {
		if (!place->path_known)
			return MEMBER_UNKNOWN;
		return below(place->path, cgroup->path) ? MEMBER : NOT_MEMBER;
	}
	for (unsigned int i = 0; i < place->inode_count; i++) {
		if (place->inodes[i] == cgroup->inode)
			return MEMBER;
	}
	return MEMBER_UNKNOWN;
}

bool cgroup_lives(const struct cgroup *cgroup)
{
	char path[2 * CGROUP_PATH];
	struct cgroup_mount mount;
	struct stat file;
	const char *beneath;

	if (own_namespace() != cgroup->namespace_inode ||
		!mount_find(cgroup->filesystem, NULL, &mount) ||
		!(beneath = below(cgroup->path, mount.root)))
		return true;
	snprintf(path, sizeof(path), "%s%s", mount.point, beneath);
	if (stat(path, &file) != 0)
		return errno != ENOENT;
	return file.st_dev != cgroup->filesystem || file.st_ino == cgroup->inode;
}
