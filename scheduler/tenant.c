/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct tenant *tenants[TENANTS_MAX];
static uint32_t count, gangs, muted;

static struct tenant **find(const char *key)
{
	for (uint32_t at = 0; at < count; at++)
		if (strcmp(tenants[at]->key, key) == 0)
			return &tenants[at];
	return NULL;
}

static struct share share_of(const struct schedule_share *requested, uint32_t gang)
{
	return (struct share){
		.permille = requested->permille,
		.capped = requested->capped,
		.online = requested->online,
		.priority = requested->priority,
		.gang = gang,
		.measured = requested->measured,
		.correction_permille = requested->correction_permille,
	};
}

static void leave_cards(struct tenant *tenant, uint64_t now_ns)
{
	for (uint32_t number = 0; number < tenant->card_count; number++) {
		struct tenant_card *tenant_card = &tenant->cards[number];
		if (tenant_card->shared)
			shared_card_remove(tenant_card, now_ns);
		if (tenant_card->status)
			munmap(tenant_card->status, sizeof(*tenant_card->status));
	}
}

static int join_card(struct tenant *tenant, uint32_t number, const struct schedule_share *requested,
	uint64_t now_ns)
{
	struct tenant_card *tenant_card = &tenant->cards[number];
	const struct share share = share_of(requested, tenant->gang);

	if (!grant_page_is_of(&tenant->page, number, requested->uuid))
		return EINVAL;
	/* Not from the heap: of most tenants only the first page of it is ever touched. */
	struct status_page *status = mmap(
		NULL, sizeof(*status), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (status == MAP_FAILED)
		return ENOMEM;
	*tenant_card = (struct tenant_card){
		.tenant = tenant,
		.gate = grant_page_gate(&tenant->page, number),
		.status = status,
		.card = number,
	};
	gate_totals_read(tenant_card->gate, &tenant_card->totals_before);
	struct shared_card *shared = shared_card_of(requested->uuid);
	return shared ? shared_card_add(shared, tenant_card, &share, now_ns) : ENOSPC;
}

static int join_cards(
	struct tenant *tenant, const struct schedule_message *message, uint64_t now_ns)
{
	int error = 0;

	tenant->gang = message->card_count > 1 ? ++gangs : 0;
	for (uint32_t number = 0; number < message->card_count && !error; number++)
		error = join_card(tenant, number, &message->shares[number], now_ns);
	if (error)
		leave_cards(tenant, now_ns);
	return error;
}

static int open_pages(struct tenant *tenant, int directory, uint64_t now_ns)
{
	tenant->status = openat(
		directory, GPUSHARE_STATUS_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (tenant->status < 0)
		return errno;
	int error = wakeup_open(&tenant->wakeup, directory, now_ns);
	if (error)
		goto close_status;
	error = grant_page_open(&tenant->page, directory, tenant->key, tenant->card_count);
	if (!error)
		return 0;
	wakeup_close(&tenant->wakeup);
close_status:
	close(tenant->status);
	return error;
}

static void close_pages(struct tenant *tenant)
{
	grant_page_close(&tenant->page);
	wakeup_close(&tenant->wakeup);
	close(tenant->status);
}

static void wakeup_ready(struct source *source, uint64_t now_ns)
{
	struct tenant *tenant =
		(struct tenant *)((unsigned char *)source - offsetof(struct tenant, source));

	if (!wakeup_drain(&tenant->wakeup, now_ns)) {
		loop_mute(source);
		muted++;
	}
	for (uint32_t number = 0; number < tenant->card_count; number++) {
		tenant->cards[number].woken = true;
		tenant->cards[number].shared->woken = true;
	}
}

static int tenant_begin(struct tenant *tenant, const struct schedule_message *message,
	int directory, uint64_t now_ns)
{
	struct stat found;

	if (fstat(directory, &found) < 0)
		return errno;
	memcpy(tenant->key, message->key, sizeof(tenant->key));
	tenant->file_system = found.st_dev;
	tenant->directory = found.st_ino;
	tenant->card_count = message->card_count;
	tenant->named = true;
	int error = open_pages(tenant, directory, now_ns);
	if (error)
		return error;
	error = join_cards(tenant, message, now_ns);
	tenant->source = (struct source){.fd = tenant->wakeup.fd, .ready = wakeup_ready};
	if (!error && !loop_read(&tenant->source)) {
		error = errno;
		leave_cards(tenant, now_ns);
	}
	if (error)
		close_pages(tenant);
	return error;
}

static int tenant_add(const struct schedule_message *message, int directory, uint64_t now_ns)
{
	if (directory < 0)
		return ENOENT;
	if (count == TENANTS_MAX)
		return ENOSPC;
	struct tenant *tenant = calloc(1, sizeof(*tenant));
	if (!tenant)
		return ENOMEM;
	int error = tenant_begin(tenant, message, directory, now_ns);
	if (error)
		free(tenant);
	else
		tenants[count++] = tenant;
	return error;
}

static void remove_at(struct tenant **at, uint64_t now_ns)
{
	struct tenant *tenant = *at;

	*at = tenants[--count];
	muted -= tenant->wakeup.muted_until_ns != 0;
	loop_forget(&tenant->source);
	leave_cards(tenant, now_ns);
	close_pages(tenant);
	free(tenant);
}

/* Whether it still is the tenant that `message` names, with the same pages and cards. */
static bool is_same(
	const struct tenant *tenant, const struct schedule_message *message, int directory)
{
	struct stat found;

	if (tenant->card_count != message->card_count)
		return false;
	for (uint32_t number = 0; number < message->card_count; number++)
		if (strcmp(tenant->cards[number].shared->uuid, message->shares[number].uuid) != 0)
			return false;
	return directory < 0 ||
	       (fstat(directory, &found) == 0 && found.st_dev == tenant->file_system &&
		       found.st_ino == tenant->directory);
}

int tenant_put(const struct schedule_message *message, int directory, uint64_t now_ns)
{
	struct tenant **known = find(message->key);

	if (known && !is_same(*known, message, directory)) {
		remove_at(known, now_ns);
		known = NULL;
	}
	if (!known)
		return tenant_add(message, directory, now_ns);
	(*known)->named = true;
	for (uint32_t number = 0; number < message->card_count; number++) {
		const struct share share = share_of(&message->shares[number], (*known)->gang);
		shared_card_change(&(*known)->cards[number], &share, now_ns);
	}
	return 0;
}

void tenant_remove(const char *key, uint64_t now_ns)
{
	struct tenant **known = find(key);
	if (known)
		remove_at(known, now_ns);
}

void tenants_unname(void)
{
	for (uint32_t at = 0; at < count; at++)
		tenants[at]->named = false;
}

void tenants_forget_unnamed(uint64_t now_ns)
{
	for (uint32_t at = count; at > 0; at--)
		if (!tenants[at - 1]->named)
			remove_at(&tenants[at - 1], now_ns);
}

uint32_t tenants_count(void)
{
	return count;
}

uint64_t tenants_unmute(uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (uint32_t at = 0; at < count && muted; at++) {
		struct wakeup *wakeup = &tenants[at]->wakeup;

		if (!wakeup->muted_until_ns)
			continue;
		if (wakeup->muted_until_ns <= now_ns) {
			wakeup->muted_until_ns = 0;
			muted--;
			loop_unmute(&tenants[at]->source);
		} else if (wakeup->muted_until_ns < next_ns) {
			next_ns = wakeup->muted_until_ns;
		}
	}
	return next_ns;
}
