/* SPDX-License-Identifier: Apache-2.0
 *
 * Log messages of the library. They go to the daemon, or to stderr if GPUSHARE_LOG requests it
 * (error, warning, info or debug). errno is preserved.
 */
#ifndef GPUSHARE_LOG_H
#define GPUSHARE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* To stderr whatever GPUSHARE_LOG is set to: messages that the user needs to proceed. */
void log_always(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
