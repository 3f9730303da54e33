/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking up a function by name, CUDA version and stream form, in the generated table. A driver
 * knows no name newer than itself. Driver 580 (on an H100) takes no version above its own; 470 to
 * 555 (without a card) take every version. Which of those between do is unknown.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum flavour { NONE, LEGACY, PER_THREAD };

struct entry {
	const char *name;
	void *function;
	int version;
	enum flavour flavour;
};

/* Only the symbols' addresses: their types do not matter here, nor does a second line for one. */
#define CUDA_SYMBOL(symbol, name, version, stream) extern char entry_##symbol __asm__(#symbol);
#include "table/cuda.inc"
#undef CUDA_SYMBOL

static struct entry entries[] = {
#define CUDA_SYMBOL(symbol, name, version, stream) {#name, &entry_##symbol, version, stream},
#include "table/cuda.inc"
#undef CUDA_SYMBOL
};

#define FIRST_STRICT 13000 /* the CUDA version of the first driver that refuses newer ones */
#define ENTRIES (sizeof(entries) / sizeof(*entries))

/* By name; the address keeps lines of one name in the table's rising order of version. */
static int entry_order(const void *a, const void *b)
{
	const struct entry *one = a, *other = b;
	int by_name = strcmp(one->name, other->name);

	if (by_name != 0)
		return by_name;
	return one->version != other->version ? (one->version < other->version ? -1 : 1) : 0;
}

static const struct entry *first_of(const char *name)
{
	size_t low = 0, high = ENTRIES;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (strcmp(entries[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ENTRIES && strcmp(entries[low].name, name) == 0 ? &entries[low] : NULL;
}

__attribute__((constructor)) static void sort_entries(void)
{
	qsort(entries, ENTRIES, sizeof(*entries), entry_order);
}

/* The newest line of the name, not above `version`: of its per-thread lines if those are requested
 * and the driver has any, of the others if not. */
static const struct entry *choose(
	const struct entry *first, int version, int driver, bool per_thread)
{
	const struct entry *plain = NULL, *threaded = NULL;
	bool has_threads = false;

	for (const struct entry *entry = first;
		entry < entries + ENTRIES && strcmp(entry->name, first->name) == 0; entry++) {
		has_threads |= entry->flavour == PER_THREAD && entry->version <= driver;
		if ((unsigned int)entry->version > (unsigned int)version || entry->version > driver)
			continue;
		if (entry->flavour == PER_THREAD)
			threaded = entry;
		else
			plain = entry;
	}
	return per_thread && has_threads ? threaded : plain;
}

static int driver_version(void)
{
	int version = 0;

	cuDriverGetVersion(&version);
	return version;
}

/* A negative version is taken for a large one. */
static bool is_taken(int version)
{
	const unsigned int driver = (unsigned int)driver_version();

	return driver < FIRST_STRICT || (unsigned int)version <= driver;
}

static CUdriverProcAddressQueryResult look_up(
	const char *symbol, void **function, int version, uint64_t flags)
{
	const struct entry *first = first_of(symbol);
	const struct entry *entry;
	const int driver = driver_version();

	/* `first` is the oldest line of its name. */
	if (!first || first->version > driver)
		return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	entry = choose(
		first, version, driver, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	if (!entry)
		return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	*function = entry->function;
	return CU_GET_PROC_ADDRESS_SUCCESS;
}

/* Five of NVIDIA's drivers (470 to 555), without a card, and an H100 with 580: what is not found is
 * no error of this form, which tells it by a null pointer and the status. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult result;

	REQUIRE(symbol && function && flags <= 3, CUDA_ERROR_INVALID_VALUE);
	*function = NULL;
	REQUIRE(is_taken(version), CUDA_ERROR_INVALID_VALUE);
	result = look_up(symbol, function, version, flags);
	if (status)
		*status = result;
	return CUDA_SUCCESS;
}

/* The first form has no status, and leaves the pointer as it is. */
CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	REQUIRE(symbol && function && flags <= 3 && is_taken(version), CUDA_ERROR_INVALID_VALUE);
	return look_up(symbol, function, version, flags) == CU_GET_PROC_ADDRESS_SUCCESS
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_NOT_FOUND;
}
