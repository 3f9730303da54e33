/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include "cards.h"
#include "channel/log.h"
#include "context.h"
#include "quota/ledger.h"
#include "quota/pages.h"

struct allocations buffers;

CUresult charge_reserve(
	struct charge *charge, enum gpushare_kind kind, unsigned card, uint64_t bytes)
{
	charge->kind = kind;
	charge->card = card;
	charge->bytes = bytes;
	charge->context = NULL;
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

CUresult charge_settle(const struct charge *charge, CUresult result, const CUdeviceptr *pointer)
{
	struct allocation stale;
	struct allocation allocation = {.bytes = charge->bytes,
		.owner = (uintptr_t)charge->context,
		.card = (uint16_t)charge->card,
		.kind = (uint16_t)charge->kind};

	if (result != CUDA_SUCCESS) {
		ledger_release(charge->card, charge->kind, charge->bytes);
		return result;
	}
	allocation.handle = *pointer;
	/* Without an entry the bytes stay charged until the process ends: too much, never too
	 * little. */
	if (!allocations_add(&buffers, &allocation, &stale))
		log_line(LOG_WARNING, "no memory to note an allocation of %llu bytes",
			(unsigned long long)charge->bytes);
	else if (stale.bytes)
		ledger_release(stale.card, stale.kind, stale.bytes);
	return result;
}

CUresult charge_free(const struct allocation *charged, CUresult result)
{
	struct allocation stale;

	if (!charged)
		return result;
	if (result == CUDA_SUCCESS)
		ledger_release(charged->card, charged->kind, charged->bytes);
	else
		allocations_add(&buffers, charged, &stale);
	return result;
}
