/* SPDX-License-Identifier: Apache-2.0
 *
 * An import is charged at the size that the program states, which the driver does not let it
 * exceed, from its import until it is destroyed and nothing in it is left (cuDestroyExternalMemory:
 * buffers and arrays in it are freed separately). This includes descriptors of memory that a
 * process of this container exported: a descriptor does not reveal its origin, and the memory is
 * then charged twice.
 *
 * Lock order: `books` is a leaf except for the tables' own locks.
 */
#include "external.h"

#include <pthread.h>
#include <stdbool.h>

#include "cards.h"
#include "charge.h"
#include "context.h"
#include "quota/ledger.h"

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

/* By a number of our own, because the driver may reuse a handle while buffers of the earlier import
 * are left. An import's owner is its context; its references are its objects (handles, buffers and
 * arrays), which have its number as owner. An import that ended with its context leaves objects
 * without an import behind, until their address is reused. */
static struct allocations imports;
static struct allocations objects;
static uint64_t last_import;

/* Add an object to `import`. */
static void object_add(uint64_t handle, uint64_t import)
{
	struct allocation object = {.handle = handle, .owner = import}, entry, stale;

	if (!allocations_take(&imports, import, &entry))
		return;
	entry.references++;
	allocations_add(&imports, &entry, &stale);
	allocations_add(&objects, &object, &stale);
}

static void import_drop(uint64_t import)
{
	struct allocation entry, stale;

	if (!allocations_take(&imports, import, &entry))
		return;
	if (--entry.references > 0)
		allocations_add(&imports, &entry, &stale);
	else
		ledger_release(entry.card, entry.kind, entry.bytes);
}

/* The import of an object; 0 if it has none. Call it before the driver frees the object:
 * afterwards, its address may already be another's. */
static uint64_t object_take(uint64_t handle)
{
	struct allocation object;

	pthread_mutex_lock(&books);
	bool known = allocations_take(&objects, handle, &object);
	pthread_mutex_unlock(&books);
	return known ? object.owner : 0;
}

static CUresult object_end(uint64_t handle, uint64_t import, CUresult result)
{
	struct allocation object = {.handle = handle, .owner = import}, stale;

	if (import == 0)
		return result;
	pthread_mutex_lock(&books);
	if (result == CUDA_SUCCESS)
		import_drop(import);
	else
		allocations_add(&objects, &object, &stale);
	pthread_mutex_unlock(&books);
	return result;
}

CUDA(cuImportExternalMemory,
	(CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description))
{
	struct charge charge;
	struct allocation stale;

	if (!memory || !description)
		return REAL(cuImportExternalMemory)(memory, description);
	const CUDA_EXTERNAL_MEMORY_HANDLE_DESC own = *description;
	CUresult result = charge_reserve_current(&charge, GPUSHARE_KIND_EXTERNAL, own.size);
	if (result != CUDA_SUCCESS)
		return result;
	CUexternalMemory returned = NULL;
	result = SHARING(REAL(cuImportExternalMemory)(&returned, &own));
	if (result != CUDA_SUCCESS) {
		ledger_release(charge.card, charge.kind, charge.bytes);
		return result;
	}
	pthread_mutex_lock(&books);
	struct allocation import = {.handle = ++last_import,
		.bytes = charge.bytes,
		.owner = charge.context,
		.card = (uint16_t)charge.card,
		.kind = GPUSHARE_KIND_EXTERNAL};
	allocations_add(&imports, &import, &stale);
	object_add((uintptr_t)returned, import.handle);
	pthread_mutex_unlock(&books);
	*memory = returned;
	return result;
}

CUDA(cuDestroyExternalMemory, (CUexternalMemory memory))
{
	uint64_t import = object_take((uintptr_t)memory);

	return object_end((uintptr_t)memory, import, REAL(cuDestroyExternalMemory)(memory));
}

static void add_within(uint64_t handle, CUexternalMemory memory)
{
	struct allocation object;

	pthread_mutex_lock(&books);
	if (allocations_find(&objects, (uintptr_t)memory, &object))
		object_add(handle, object.owner);
	pthread_mutex_unlock(&books);
}

CUDA(cuExternalMemoryGetMappedBuffer, (CUdeviceptr * pointer, CUexternalMemory memory,
					      const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description))
{
	CUresult result = REAL(cuExternalMemoryGetMappedBuffer)(pointer, memory, description);

	if (result == CUDA_SUCCESS)
		add_within(*pointer, memory);
	return result;
}

CUDA(cuExternalMemoryGetMappedMipmappedArray,
	(CUmipmappedArray * array, CUexternalMemory memory,
		const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description))
{
	CUresult result = REAL(cuExternalMemoryGetMappedMipmappedArray)(array, memory, description);

	if (result == CUDA_SUCCESS)
		add_within((uintptr_t)*array, memory);
	return result;
}

CUresult external_free_buffer(CUdeviceptr pointer, CUresult (*real)(CUdeviceptr pointer))
{
	uint64_t import = object_take(pointer);

	return object_end(pointer, import, real(pointer));
}

CUresult external_free_array(CUmipmappedArray array, CUresult (*real)(CUmipmappedArray array))
{
	uint64_t import = object_take((uintptr_t)array);

	return object_end((uintptr_t)array, import, real(array));
}

struct ended {
	uint64_t context;
	unsigned card;
	uint64_t bytes[GPUSHARE_MAX_CARDS];
};

static bool ends_with(const struct allocation *import, void *which)
{
	struct ended *ended = which;

	if (import->owner != ended->context || (!ended->context && import->card != ended->card))
		return false;
	ended->bytes[import->card] += import->bytes;
	return true;
}

void external_end_context(uint64_t context, unsigned card)
{
	struct ended ended = {.context = context, .card = card};

	allocations_take_all(&imports, ends_with, &ended);
	for (card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (ended.bytes[card])
			ledger_release(card, GPUSHARE_KIND_EXTERNAL, ended.bytes[card]);
}

void external_before_fork(void)
{
	pthread_mutex_lock(&books);
}

void external_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&books);
}

void external_after_fork_in_child(void)
{
	allocations_forget(&imports);
	allocations_forget(&objects);
	pthread_mutex_unlock(&books);
}
