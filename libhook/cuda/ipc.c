/* SPDX-License-Identifier: Apache-2.0
 *
 * Opened memory stays charged to its creator. It has no entry among this process's own buffers:
 * freeing it is an error, which the driver reports.
 *
 * Lock order: `books` is a leaf except for the table's own locks.
 */
#include "ipc.h"

#include <pthread.h>
#include <stdbool.h>

#include "cards.h"
#include "charge.h"
#include "context.h"
#include "memory.h"
#include "quota/ledger.h"

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

/* By address. If opened again in the same context, it has the same address (cuIpcOpenMemHandle),
 * and one more reference. The owner is the context: one that the program created, or a card's
 * primary one. */
static struct allocations opened;

static uint64_t owner_of(uint64_t context, unsigned card)
{
	return context ? context : UINT64_MAX - card;
}

CUDA(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer))
{
	struct allocation buffer;
	CUresult result = SHARING(REAL(cuIpcGetMemHandle)(handle, pointer));

	if (result != CUDA_SUCCESS || !allocations_find_at(&buffers, pointer, &buffer) ||
		buffer.kind != GPUSHARE_KIND_BUFFER)
		return result;
	if (allocations_mark(&buffers, buffer.handle, CHARGE_EXPORTED, 0, &buffer) &&
		!(buffer.references & CHARGE_EXPORTED))
		ledger_export(buffer.card, buffer.bytes);
	return result;
}

CUDA(cuMemGetHandleForAddressRange,
	(void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags))
{
	return SHARING(REAL(cuMemGetHandleForAddressRange)(handle, pointer, bytes, type, flags));
}

/* Its card, which may differ from the context's. */
static unsigned card_of_pointer(CUdeviceptr pointer, unsigned current)
{
	CUdevice device;
	unsigned card;

	if (REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) !=
			CUDA_SUCCESS ||
		card_of_device(&card, device) != CUDA_SUCCESS)
		return current;
	return card;
}

/* Add a reference to the entry of the address, or add `first` as its first. */
static void opened_hold(const struct allocation *first)
{
	struct allocation entry, stale;

	pthread_mutex_lock(&books);
	if (!allocations_take(&opened, first->handle, &entry)) {
		entry = *first;
		entry.references = 0;
		ledger_import(entry.card, entry.bytes);
	}
	entry.references++;
	allocations_add(&opened, &entry, &stale);
	pthread_mutex_unlock(&books);
}

static void opened_add(CUdeviceptr pointer)
{
	size_t bytes;
	CUdeviceptr base;
	unsigned current;

	if (card_current(&current) != CUDA_SUCCESS ||
		REAL(cuMemGetAddressRange_v2)(&base, &bytes, pointer) != CUDA_SUCCESS)
		return;
	struct allocation entry = {.handle = pointer,
		.bytes = linear_bytes(bytes),
		.owner = owner_of(context_owner(), current),
		.card = (uint16_t)card_of_pointer(pointer, current)};
	opened_hold(&entry);
}

#define OPEN(symbol)                                                                               \
	CUDA(symbol, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags))           \
	{                                                                                          \
		CUdeviceptr returned = 0;                                                          \
		if (!pointer)                                                                      \
			return REAL(symbol)(pointer, handle, flags);                               \
		CUresult result = SHARING(REAL(symbol)(&returned, handle, flags));                 \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		opened_add(returned);                                                              \
		*pointer = returned;                                                               \
		return result;                                                                     \
	}

OPEN(cuIpcOpenMemHandle)
OPEN(cuIpcOpenMemHandle_v2)

/* Before the driver closes it: afterwards, the address may already be another's. */
static bool opened_drop(CUdeviceptr pointer, struct allocation *entry)
{
	struct allocation stale;

	pthread_mutex_lock(&books);
	bool known = allocations_take(&opened, pointer, entry);
	if (known && --entry->references > 0)
		allocations_add(&opened, entry, &stale);
	else if (known)
		ledger_unimport(entry->card, entry->bytes);
	pthread_mutex_unlock(&books);
	return known;
}

CUDA(cuIpcCloseMemHandle, (CUdeviceptr pointer))
{
	struct allocation entry;
	bool known = opened_drop(pointer, &entry);
	CUresult result = REAL(cuIpcCloseMemHandle)(pointer);

	if (known && result != CUDA_SUCCESS)
		opened_hold(&entry);
	return result;
}

struct ended {
	uint64_t owner;
	uint64_t bytes[GPUSHARE_MAX_CARDS];
};

static bool ends_with(const struct allocation *entry, void *which)
{
	struct ended *ended = which;

	if (entry->owner != ended->owner)
		return false;
	ended->bytes[entry->card] += entry->bytes;
	return true;
}

void ipc_end_context(uint64_t context, unsigned card)
{
	struct ended ended = {.owner = owner_of(context, card)};

	allocations_take_all(&opened, ends_with, &ended);
	for (card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (ended.bytes[card])
			ledger_unimport(card, ended.bytes[card]);
}

void ipc_before_fork(void)
{
	pthread_mutex_lock(&books);
}

void ipc_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&books);
}

void ipc_after_fork_in_child(void)
{
	allocations_forget(&opened);
	pthread_mutex_unlock(&books);
}
