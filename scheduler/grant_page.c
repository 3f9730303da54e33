/* SPDX-License-Identifier: Apache-2.0 */
#include "grant_page.h"

#include "cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether a text field, which may lack its terminator, equals `text`. */
static bool text_equals(const char *field, size_t room, const char *text)
{
	return strnlen(field, room) < room && strcmp(field, text) == 0;
}

static int grant_page_check(const struct grant_page *page, const char *key, uint32_t card_count)
{
	const struct gpushare_grant_header *header = (const void *)page->map;

	if (header->magic != GPUSHARE_ABI_MAGIC || header->abi_version != GPUSHARE_ABI_VERSION)
		return EPROTO;
	if (header->card_count != card_count || !text_equals(header->key, sizeof(header->key), key))
		return EINVAL;
	return 0;
}

int grant_page_open(struct grant_page *page, int directory, const char *key, uint32_t card_count)
{
	struct stat found;
	CLEANUP_FD int fd = openat(
		directory, GPUSHARE_GRANT_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &found) < 0)
		return errno;
	if (!S_ISREG(found.st_mode))
		return EINVAL;
	if (found.st_size != GPUSHARE_GRANT_BYTES)
		return EPROTO;
	page->bytes = GPUSHARE_GRANT_CARD_OFFSET((size_t)card_count);
	page->map = mmap(NULL, page->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page->map == MAP_FAILED)
		return errno;
	int error = grant_page_check(page, key, card_count);
	if (error)
		grant_page_close(page);
	return error;
}

void grant_page_close(struct grant_page *page)
{
	munmap(page->map, page->bytes);
}

static struct gpushare_grant_card *card_of(const struct grant_page *page, uint32_t number)
{
	return (void *)(page->map + GPUSHARE_GRANT_CARD_OFFSET(number));
}

struct gpushare_gate *grant_page_gate(const struct grant_page *page, uint32_t number)
{
	return &card_of(page, number)->gate;
}

bool grant_page_is_of(const struct grant_page *page, uint32_t number, const char *uuid)
{
	const struct gpushare_grant_card *card = card_of(page, number);
	return text_equals(card->uuid, sizeof(card->uuid), uuid);
}

static uint64_t read64(const _Atomic uint64_t *field)
{
	return atomic_load_explicit(field, memory_order_relaxed);
}

void gate_totals_read(const struct gpushare_gate *gate, struct gate_totals *totals)
{
	totals->charged_ns = read64(&gate->charged_ns);
	totals->windows = read64(&gate->windows);
	totals->overruns = read64(&gate->overruns);
	totals->demand_ns = read64(&gate->demand_ns);
	totals->claimed_ns = read64(&gate->claimed_ns);
	totals->ungated_ns = read64(&gate->ungated_ns);
}

/* A store takes the cache line from every core that polls the gate: store only on a change. */
static bool put64(_Atomic uint64_t *field, uint64_t value)
{
	if (read64(field) == value)
		return false;
	atomic_store_explicit(field, value, memory_order_relaxed);
	return true;
}

static bool put32(_Atomic uint32_t *field, uint32_t value)
{
	if (atomic_load_explicit(field, memory_order_relaxed) == value)
		return false;
	atomic_store_explicit(field, value, memory_order_release);
	return true;
}

/* Not the private kind: the waiting process has another mapping of the file. */
static void wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gate_write(
	struct gpushare_gate *to, const struct gate *decided, const struct gate_totals *totals)
{
	put64(&to->charged_ns, totals->charged_ns + decided->charged_ns);
	put64(&to->windows, totals->windows + decided->windows);
	put64(&to->overruns, totals->overruns + decided->overruns);
	put64(&to->demand_ns, totals->demand_ns + decided->demand_ns);
	put64(&to->claimed_ns, totals->claimed_ns + decided->claimed_ns);
	put64(&to->ungated_ns, totals->ungated_ns + decided->ungated_ns);
	put32(&to->hung, decided->hung);

	bool changed = put64(&to->in_flight_max_ns, decided->in_flight_max_ns);
	changed |= put64(&to->timing_interval_ns, decided->timing_interval_ns);
	changed |= put64(&to->wait_max_ns, decided->wait_max_ns);
	changed |= put32(&to->self_throttle_permille, decided->self_throttle_permille);
	changed |= put32(&to->pieces_min, decided->pieces_min);
	/* Last: a process that sees the mode must see the values that belong to it. */
	changed |= put32(&to->mode, decided->mode);
	if (!changed)
		return;
	atomic_fetch_add_explicit(&to->epoch, 1, memory_order_release);
	wake(&to->epoch);
}

void gate_beat(struct gpushare_gate *gate, uint64_t busy_ns, uint64_t until_ns)
{
	put64(&gate->busy_ns, busy_ns);
	atomic_store_explicit(&gate->heartbeat_ns, until_ns, memory_order_release);
}
