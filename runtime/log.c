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
			return; /* nobody is left to be told */
		text += written;
		length -= (size_t)written;
	}
}

/* One write per line: the low-level runtime of another container may append to the same file. */
static void log_file(const char *message)
{
	static const char *const formats[] = {"time=\"%s\" level=error msg=%s\n",
		"{\"level\":\"error\",\"msg\":%s,\"time\":\"%s\"}\n"};
	CLEANUP_FD int fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	size_t room = strlen(message) * 6 + 2, length = 0;
	CLEANUP_FREE char *quoted = malloc(room + 1);
	CLEANUP_FREE char *line = malloc(room + 128);
	time_t now = time(NULL);
	struct tm utc;
	char when[32];

	if (fd < 0 || !quoted || !line || !gmtime_r(&now, &utc))
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_quote(quoted, room, &length, message);
	quoted[length] = '\0';
	int printed = log_json ? snprintf(line, room + 128, formats[1], quoted, when)
			       : snprintf(line, room + 128, formats[0], when, quoted);
	write_all(fd, line, (size_t)printed);
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
