/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "cleanup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_MAX 16384 /* bytes; two paths and some comments */
#define BESIDE "gpushare-runtime.conf"

static const char system_file[] = "/etc/gpushare/runtime.conf";
static const char default_socket[] = "/run/gpushare/control.sock";
static const char *const default_runtimes[] = {
	"/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc"};

static bool problem(struct config *config, const char *why)
{
	snprintf(config->problem, sizeof(config->problem), "%s %s", config->file, why);
	return false;
}

/* Where the file beside the executable would be. */
static bool beside_executable(char *to, size_t room)
{
	ssize_t length = readlink("/proc/self/exe", to, room);
	if (length <= 0 || (size_t)length >= room)
		return false;
	to[length] = '\0';
	char *base = strrchr(to, '/') + 1;
	size_t left = room - (size_t)(base - to);
	return (size_t)snprintf(base, left, "%s", BESIDE) < left;
}

/* Open the file that counts, its name in config->file: "" when there is none. */
static int open_file(struct config *config)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	int fd = -1, error = ENOENT;

	if (beside_executable(config->file, sizeof(config->file))) {
		fd = open(config->file, flags);
		error = fd < 0 ? errno : 0;
	}
	if (error == ENOENT) {
		memcpy(config->file, system_file, sizeof(system_file));
		fd = open(config->file, flags);
		error = fd < 0 ? errno : 0;
	}
	if (error == ENOENT)
		config->file[0] = '\0';
	else if (error)
		problem(config, strerror(error));
	return fd;
}

/* Whose this program is, whoever runs it trusts. In a rootless engine's user namespace root has no
 * number of its own, and so have its files none (user_namespaces(7), "Unmapped user IDs"). */
static bool owns_this_program(uid_t uid)
{
	struct stat self;
	return stat("/proc/self/exe", &self) == 0 && self.st_uid == uid;
}

/* A file that another user may write names the program that runs as root. */
static bool trusted(struct config *config, int fd)
{
	struct stat found;
	if (fstat(fd, &found) < 0)
		return problem(config, strerror(errno));
	if (!S_ISREG(found.st_mode))
		return problem(config, "is not a regular file");
	if (found.st_uid != 0 && found.st_uid != geteuid() && !owns_this_program(found.st_uid))
		return problem(config, "belongs neither to root nor to you");
	if (found.st_mode & (mode_t)(S_IWGRP | S_IWOTH))
		return problem(config, "is writable by others (run chmod go-w)");
	return true;
}

static char *trim(char *text)
{
	text += strspn(text, " \t\r");
	size_t length = strlen(text);
	while (length > 0 && strchr(" \t\r", text[length - 1]))
		length--;
	text[length] = '\0';
	return text;
}

static bool read_line(struct config *config, char *line)
{
	char *name = trim(line);
	char *equals = strchr(name, '=');
	char why[64];

	if (*name == '\0' || *name == '#')
		return true;
	if (!equals) {
		snprintf(why, sizeof(why), "has a line without '=': \"%.24s\"", name);
		return problem(config, why);
	}
	*equals = '\0';
	char *value = trim(equals + 1);
	name = trim(name);
	char *to = strcmp(name, "runtime") == 0	 ? config->runtime
		   : strcmp(name, "socket") == 0 ? config->socket
						 : NULL;
	if (!to)
		snprintf(why, sizeof(why), "has an unknown key \"%.24s\"", name);
	else if (*value != '/' || strlen(value) >= PATH_MAX)
		snprintf(why, sizeof(why), "requires an absolute path for \"%.24s\"", name);
	else {
		memcpy(to, value, strlen(value) + 1);
		return true;
	}
	return problem(config, why);
}

static bool read_file(struct config *config, int fd)
{
	char text[CONFIG_MAX + 1];
	ssize_t length = read(fd, text, CONFIG_MAX + 1);
	if (length < 0)
		return problem(config, strerror(errno));
	if (length > CONFIG_MAX)
		return problem(config, "is longer than 16 KiB");
	text[length] = '\0';
	for (char *line = text, *next; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (!read_line(config, line))
			return false;
	}
	return true;
}

void config_load(struct config *config)
{
	config->file[0] = config->runtime[0] = config->problem[0] = '\0';
	memcpy(config->socket, default_socket, sizeof(default_socket));
	CLEANUP_FD int fd = open_file(config);

	if (fd >= 0)
		(void)(trusted(config, fd) && read_file(config, fd));
	else if (!config->file[0])
		snprintf(config->problem, sizeof(config->problem),
			"there is neither %s next to gpushare-runtime nor %s", BESIDE, system_file);
	/* Whatever an untrusted or broken file named is not run. */
	if (config->problem[0])
		config->runtime[0] = '\0';
	for (size_t i = 0; !config->runtime[0] && i < sizeof(default_runtimes) / sizeof(char *);
		i++)
		if (access(default_runtimes[i], X_OK) == 0)
			snprintf(config->runtime, sizeof(config->runtime), "%s",
				default_runtimes[i]);
}
