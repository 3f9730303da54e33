/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors for people: one line on stderr, and in the file of --log as the low-level runtime writes
 * it there. docker and containerd show the last error of that file, not stderr.
 */
#ifndef GPUSHARE_RUNTIME_LOG_H
#define GPUSHARE_RUNTIME_LOG_H

/* Where --log points (NULL: nowhere) and whether --log-format is "json". Keeps the pointers. */
void log_to(const char *path, const char *format);

/* "gpushare: MESSAGE". Terminal escapes in it are made harmless: it may quote a tenant's text. */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
