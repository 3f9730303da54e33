/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include "cards.h"
#include "channel/log.h"
#include "context.h"
#include "pool.h"
#include "quota/ledger.h"
#include "quota/pages.h"

struct allocations buffers;

CUresult charge_reserve(
	struct charge *charge, enum gpushare_kind kind, unsigned card, uint64_t bytes)
{
	charge->kind = kind;
	charge->card = card;
	charge->bytes = bytes;
	charge->context = 0;
	return ledger_reserve(card, kind, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge_reserve_current(struct charge *charge, enum gpushare_kind kind, uint64_t bytes)
{
	unsigned card;
	CUresult result = card_current(&card);

	if (result == CUDA_SUCCESS)
		result = charge_reserve(charge, kind, card, bytes);
	if (result == CUDA_SUCCESS)
		charge->context = context_owner();
	return result;
}

/* Before its charge is released: otherwise memory that others still map would, for a moment, be
 * charged to no process, and its room could be taken. */
static void give_back_marked(const struct allocation *charged)
{
	if (charged->references & CHARGE_EXPORTED)
		ledger_unexport(charged->card, charged->bytes);
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (charged->references & CHARGE_ALSO_ON(card))
			ledger_release(card, charged->kind, charged->bytes);
}

static void give_back(const struct allocation *charged)
{
	if (charged->references)
		give_back_marked(charged);
	if (charged->kind == GPUSHARE_KIND_POOL)
		pool_freed(charged);
	else
		ledger_release(charged->card, charged->kind, charged->bytes);
}

static void note_in(struct allocations *table, const struct allocation *allocation)
{
	struct allocation stale;

	/* Without an entry, the bytes stay charged until the process exits: too much, never too
	 * little. */
	if (!allocations_add(table, allocation, &stale))
		log_line(LOG_WARNING, "out of memory: cannot track an allocation of %llu bytes",
			(unsigned long long)allocation->bytes);
	else if (stale.bytes)
		give_back(&stale);
}

void charge_note(const struct allocation *allocation)
{
	note_in(&buffers, allocation);
}

CUresult charge_settle_in(
	struct allocations *table, const struct charge *charge, CUresult result, uint64_t handle)
{
	struct allocation allocation = {.handle = handle,
		.bytes = charge->bytes,
		.owner = charge->context,
		.card = (uint16_t)charge->card,
		.kind = (uint16_t)charge->kind};

	if (result != CUDA_SUCCESS) {
		ledger_release(charge->card, charge->kind, charge->bytes);
		return result;
	}
	note_in(table, &allocation);
	return result;
}

CUresult charge_settle(const struct charge *charge, CUresult result, const CUdeviceptr *pointer)
{
	return charge_settle_in(&buffers, charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

CUresult charge_free(struct allocations *table, const struct allocation *charged, CUresult result)
{
	struct allocation stale;

	if (!charged)
		return result;
	if (result == CUDA_SUCCESS)
		give_back(charged);
	else
		allocations_add(table, charged, &stale);
	return result;
}

CUresult charge_shared(CUresult result)
{
	ledger_shared(result == CUDA_SUCCESS);
	return result;
}

struct ended {
	uint64_t context;
	unsigned card;
	uint64_t bytes[GPUSHARE_MAX_CARDS][GPUSHARE_KINDS];
	uint64_t exported_bytes[GPUSHARE_MAX_CARDS];
};

/* Not a pool's memory, whose owner is the pool. */
static bool ends_with(const struct allocation *charged, void *which)
{
	struct ended *ended = which;

	if (charged->owner != ended->context || (!ended->context && charged->card != ended->card))
		return false;
	if (charged->references & CHARGE_EXPORTED)
		ended->exported_bytes[charged->card] += charged->bytes;
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (card == charged->card || charged->references & CHARGE_ALSO_ON(card))
			ended->bytes[card][charged->kind] += charged->bytes;
	return true;
}

void charge_end_in(struct allocations *table, uint64_t context, unsigned card)
{
	struct ended ended = {.context = context, .card = card};

	allocations_take_all(table, ends_with, &ended);
	for (card = 0; card < GPUSHARE_MAX_CARDS; card++) {
		if (ended.exported_bytes[card])
			ledger_unexport(card, ended.exported_bytes[card]);
		for (unsigned kind = 0; kind < GPUSHARE_KINDS; kind++)
			if (ended.bytes[card][kind])
				ledger_release(card, kind, ended.bytes[card][kind]);
	}
}
