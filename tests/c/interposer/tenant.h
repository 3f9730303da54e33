/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant without a daemon: its pages-files in a directory of the test's own. One card, number 0.
 */
#ifndef TEST_TENANT_H
#define TEST_TENANT_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "gpushare_abi.h"

#define MIB (UINT64_C(1) << 20)

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			_Exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* Run a test, and say its name. */
#define TEST(function)                                                                             \
	do {                                                                                       \
		function();                                                                        \
		printf("ok    %s\n", #function);                                                   \
		fflush(stdout);                                                                    \
	} while (0)

/* Write both files, with a quota of `quota_bytes`, and name their directory to the library. */
void tenant_create(uint64_t quota_bytes);

/* The daemon's side of the grant. */
struct gpushare_grant_card *tenant_card(void);
void tenant_set_memory(uint64_t quota_bytes);

/* Forget what this process mapped and all that is written: the next test starts anew. */
void tenant_reset(uint64_t quota_bytes);

/* All that is held of the card, pending too. */
uint64_t tenant_used_bytes(void);

/* Run `body` in a child; its exit status. A child that is killed by a signal: 128 + signal. */
int in_child(void (*body)(void));
pid_t start_child(void (*body)(void));
int wait_child(pid_t pid);

#endif
