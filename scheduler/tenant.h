/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenants that gpushared has named: their pages, their wake-ups, and their cards.
 */
#ifndef GPUSHARE_SCHEDULER_TENANT_H
#define GPUSHARE_SCHEDULER_TENANT_H

#include "wakeup.h"
#include "cards.h"
#include "loop.h"
#include "message.h"
#include "grant_page.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TENANTS_MAX 1024

struct tenant {
	char key[24];
	dev_t file_system; /* of the directory: the same key may come again with other pages */
	ino_t directory;
	bool named; /* since HELLO */
	uint32_t card_count;
	uint32_t gang;
	int status;
	struct grant_page page;
	struct wakeup wakeup;
	struct source source; /* of the wake-ups */
	struct tenant_card cards[GPUSHARE_MAX_CARDS];
};

/* Apply `message`, which was checked, to a tenant; `directory` is its descriptor, or -1. 0 or an
 * errno: ENOENT for an unknown tenant without a directory. */
int tenant_put(const struct schedule_message *message, int directory, uint64_t now_ns);
/* An unknown tenant is not an error. */
void tenant_remove(const char *key, uint64_t now_ns);

/* Forget which tenants were named ... */
void tenants_unname(void);
/* ... and remove those that were not named since. */
void tenants_forget_unnamed(uint64_t now_ns);
uint32_t tenants_count(void);

/* Listen again to tenants that were muted until now. Returns when the next one is due. */
uint64_t tenants_unmute(uint64_t now_ns);

#endif
