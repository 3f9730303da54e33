/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel.h"
#include "gpushare_abi.h"

enum { TO_DAEMON = 0, NOT_READ = -1 };

/* The least severe level that goes to stderr; TO_DAEMON if GPUSHARE_LOG is not set. */
static int stderr_level(void)
{
	static _Atomic int level = NOT_READ;
	static const struct {
		const char *name;
		int level;
	} names[] = {{"error", LOG_ERROR}, {"warning", LOG_WARNING}, {"info", LOG_INFO},
		{"debug", LOG_DEBUG}};

	if (atomic_load(&level) != NOT_READ)
		return atomic_load(&level);
	const char *text = getenv("GPUSHARE_LOG");
	int requested = TO_DAEMON;
	for (size_t i = 0; text && i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(text, names[i].name) == 0)
			requested = names[i].level;
	atomic_store(&level, requested);
	return requested;
}

/* One write, so that lines of several processes do not interleave. */
static void to_stderr(const char *text)
{
	char line[GPUSHARE_MESSAGE_TEXT_BYTES + 16];
	int length = snprintf(line, sizeof(line), "gpushare: %s\n", text);
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation); /* callers hold locks */
	ssize_t written = write(STDERR_FILENO, line, (size_t)length);
	pthread_setcancelstate(cancellation, NULL);
	(void)written; /* there is nowhere to report it */
}

void log_line(enum log_level level, const char *format, ...)
{
	int saved = errno;
	int shown = stderr_level();
	char text[GPUSHARE_MESSAGE_TEXT_BYTES];
	va_list arguments;

	if ((shown == TO_DAEMON && level > LOG_INFO) || (shown != TO_DAEMON && (int)level > shown))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (shown == TO_DAEMON)
		channel_log((unsigned)level, text);
	else
		to_stderr(text);
	errno = saved;
}

void log_always(const char *format, ...)
{
	int saved = errno;
	char text[GPUSHARE_MESSAGE_TEXT_BYTES];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	to_stderr(text);
	errno = saved;
}
