/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include "cleanup.h"
#include "json.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *log_path;
static bool log_json;

void log_to(const char *path, const char *format)
{
	/* crun names the kind of its log before the path; its other kinds are no file. */
	if (path && strncmp(path, "file:", 5) == 0)
		path += 5;
	else if (path && (strncmp(path, "syslog:", 7) == 0 || strncmp(path, "journald:", 9) == 0))
		path = NULL;
	log_path = path;
	log_json = format && strcmp(format, "json") == 0;
}

static void write_all(int fd, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t written = write(fd, text, length);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return; /* there is no way left to report it */
		text += written;
		length -= (size_t)written;
	}
}

/* `message` as the low-level runtime logs it; NULL without memory. The caller frees it. */
static char *log_line(const char *message, size_t *length)
{
	time_t now = time(NULL);
	struct tm utc = {0};
	char before[64] = "{\"level\":\"error\",\"msg\":", after[64] = "\n";
	const size_t room = sizeof(before) + strlen(message) * 6 + 2 + sizeof(after);
	char *line = malloc(room);

	if (!line)
		return NULL;
	gmtime_r(&now, &utc);
	if (log_json)
		strftime(after, sizeof(after), ",\"time\":\"%Y-%m-%dT%H:%M:%SZ\"}\n", &utc);
	else
		strftime(before, sizeof(before),
			"time=\"%Y-%m-%dT%H:%M:%SZ\" level=error msg=", &utc);
	*length = (size_t)snprintf(line, room, "%s", before);
	json_quote(line, room, length, message);
	*length += (size_t)snprintf(line + *length, room - *length, "%s", after);
	return line;
}

/* One write per line: the low-level runtime of another container may append to the same file. */
static void log_file(const char *message)
{
	size_t length = 0;
	CLEANUP_FD int fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	CLEANUP_FREE char *line = log_line(message, &length);

	if (fd >= 0 && line)
		write_all(fd, line, length);
}

void log_error(const char *format, ...)
{
	static const char prefix[] = "gpushare: ";
	CLEANUP_FREE char *line = NULL;
	va_list arguments, again;

	va_start(arguments, format);
	va_copy(again, arguments);
	int length = vsnprintf(NULL, 0, format, again);
	va_end(again);
	size_t start = sizeof(prefix) - 1;
	if (length >= 0)
		line = malloc(start + (size_t)length + 2);
	if (line) {
		memcpy(line, prefix, start);
		vsnprintf(line + start, (size_t)length + 1, format, arguments);
	}
	va_end(arguments);
	if (!line)
		return;
	if (log_path)
		log_file(line);
	for (char *at = line; *at; at++)
		if (((unsigned char)*at < 0x20 && *at != '\n') || *at == 0x7f)
			*at = '?';
	line[start + (size_t)length] = '\n';
	write_all(STDERR_FILENO, line, start + (size_t)length + 1);
}
