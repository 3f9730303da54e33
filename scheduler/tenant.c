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
static uint32_t count, gangs, deaf;

static struct tenant **find(const char *key)
{
	for (uint32_t at = 0; at < count; at++)
		if (strcmp(tenants[at]->key, key) == 0)
			return &tenants[at];
	return NULL;
}

static struct share share_of(const struct schedule_share *said, uint32_t gang)
{
	return (struct share){
		.permille = said->permille,
		.capped = said->capped,
		.online = said->online,
		.priority = said->priority,
		.gang = gang,
	};
}

static void leave_cards(struct tenant *tenant, uint64_t now_ns)
{
	for (uint32_t number = 0; number < tenant->card_count; number++) {
		struct place *place = &tenant->places[number];
		if (place->device)
			device_remove(place, now_ns);
		if (place->work)
			munmap(place->work, sizeof(*place->work));
	}
}

static int join_card(
	struct tenant *tenant, uint32_t number, const struct schedule_share *said, uint64_t now_ns)
{
	struct place *place = &tenant->places[number];
	const struct share share = share_of(said, tenant->gang);

	if (!page_is_of(&tenant->page, number, said->uuid))
		return EINVAL;
	/* Not from the heap: of most tenants only the first page of it is ever touched. */
	struct work *work = mmap(
		NULL, sizeof(*work), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (work == MAP_FAILED)
		return ENOMEM;
	*place = (struct place){
		.tenant = tenant,
		.gate = page_gate(&tenant->page, number),
		.work = work,
		.card = number,
	};
	gate_before(place->gate, &place->before);
	struct device *device = device_of(said->uuid);
	return device ? device_add(device, place, &share, now_ns) : ENOSPC;
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
	int error = bell_open(&tenant->bell, directory, now_ns);
	if (error)
		goto close_status;
	error = page_open(&tenant->page, directory, tenant->key, tenant->card_count);
	if (!error)
		return 0;
	bell_close(&tenant->bell);
close_status:
	close(tenant->status);
	return error;
}

static void close_pages(struct tenant *tenant)
{
	page_close(&tenant->page);
	bell_close(&tenant->bell);
	close(tenant->status);
}

static void bell_ready(struct source *source, uint64_t now_ns)
{
	struct tenant *tenant =
		(struct tenant *)((unsigned char *)source - offsetof(struct tenant, source));

	if (!bell_drain(&tenant->bell, now_ns)) {
		loop_mute(source);
		deaf++;
	}
	for (uint32_t number = 0; number < tenant->card_count; number++) {
		tenant->places[number].rung = true;
		tenant->places[number].device->rung = true;
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
	tenant->source = (struct source){.fd = tenant->bell.fd, .ready = bell_ready};
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

static void remove_at(struct tenant **place, uint64_t now_ns)
{
	struct tenant *tenant = *place;

	*place = tenants[--count];
	deaf -= tenant->bell.deaf_until_ns != 0;
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
		if (strcmp(tenant->places[number].device->uuid, message->shares[number].uuid) != 0)
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
		device_change(&(*known)->places[number], &share, now_ns);
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

uint64_t tenants_hear(uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (uint32_t at = 0; at < count && deaf; at++) {
		struct bell *bell = &tenants[at]->bell;

		if (!bell->deaf_until_ns)
			continue;
		if (bell->deaf_until_ns <= now_ns) {
			bell->deaf_until_ns = 0;
			deaf--;
			loop_hear(&tenants[at]->source);
		} else if (bell->deaf_until_ns < next_ns) {
			next_ns = bell->deaf_until_ns;
		}
	}
	return next_ns;
}
