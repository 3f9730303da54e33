/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenants that gpushared has named: their pages, their bell, their place on each of their
 * cards.
 */
#ifndef GPUSHARE_SCHEDULER_TENANT_H
#define GPUSHARE_SCHEDULER_TENANT_H

#include "bell.h"
#include "device.h"
#include "loop.h"
#include "message.h"
#include "page.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TENANTS_MAX 1024

struct tenant {
	char key[24];
	dev_t file_system; /* of the directory: the same key comes again with other pages */
	ino_t directory;
	bool named; /* since HELLO */
	uint32_t card_count;
	uint32_t gang;
	int status;
	struct page page;
	struct bell bell;
	struct source source; /* of the bell */
	struct place places[GPUSHARE_MAX_CARDS];
};

/* Do what `message`, which was checked, says of a tenant; `directory` is its descriptor, -1: none
 * came along. 0 or an errno: ENOENT for a tenant that is not known and came without. */
int tenant_put(const struct schedule_message *message, int directory, uint64_t now_ns);
/* One that is not there is fine. */
void tenant_remove(const char *key, uint64_t now_ns);

/* From here on tenants are named anew ... */
void tenants_unname(void);
/* ... and who was not is forgotten. */
void tenants_forget_unnamed(uint64_t now_ns);
uint32_t tenants_count(void);

/* Hear those again that were deaf until now. Returns when the next is to be heard again. */
uint64_t tenants_hear(uint64_t now_ns);

#endif
