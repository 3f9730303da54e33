/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library has to say. To the daemon; to stderr instead where GPUSHARE_LOG asks for it
 * (error, warning, info or debug). errno is left as it was.
 */
#ifndef GPUSHARE_LOG_H
#define GPUSHARE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* To stderr whatever GPUSHARE_LOG says: for what the user must know to be able to go on. */
void log_always(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
