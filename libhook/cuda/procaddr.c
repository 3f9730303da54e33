/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress, through which cudart gets all but one of its functions. The real one answers
 * first; where the function is one that we mediate, its address is replaced by ours.
 */
#include <stdatomic.h>
#include <string.h>

#include "channel/log.h"
#include "filter.h"
#include "symbols.h"

/* The newest version that the table knows, so the newest of which we know what a name means. */
static int table_version(void)
{
	static _Atomic int newest;

	if (newest == 0)
		for (size_t i = 0; i < symbol_count; i++)
			if (symbols[i].version > newest)
				newest = symbols[i].version;
	return newest;
}

/* The first of the table's lines for `name`: they are sorted by it. */
static size_t first_line(const char *name)
{
	size_t low = 0, high = symbol_count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (strcmp(symbols[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* What the driver gives for `name`, by the rule at the top of table/cuda.inc; a symbol that this
 * driver lacks cannot be its answer. NULL: nothing that the table knows. */
static const struct symbol *answer(const char *name, int version, uint64_t flags)
{
	const struct symbol *per_thread = NULL, *other = NULL;

	for (size_t i = first_line(name); i < symbol_count; i++) {
		const struct symbol *symbol = &symbols[i];
		if (strcmp(symbol->name, name) != 0)
			break;
		if (symbol->version > version || !driver_has(symbol))
			continue;
		if (symbol->stream == SYMBOL_PER_THREAD)
			per_thread = symbol;
		else
			other = symbol;
	}
	bool wanted = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	return wanted && per_thread ? per_thread : other;
}

/* What of ours stands before the function at `real`: a driver that answers to a name which the
 * table does not have (an exported name with its suffix) must not hand out what we mediate. */
static const struct symbol *mediated_at(const void *real)
{
	for (size_t i = 0; i < symbol_count; i++)
		if (symbol_is_mediated(&symbols[i]) &&
			memcmp(symbols[i].real, &real, sizeof real) == 0)
			return &symbols[i];
	return NULL;
}

/* Whether a program that is newer than our table is being given a function that is, too. Its
 * parameters may differ from those of the one that we know by that name. */
static bool is_newer(const char *name, const void *function, int version, uint64_t flags)
{
	void *known = NULL;

	if (version <= table_version())
		return false;
	if (REAL(cuGetProcAddress_v2)(name, &known, table_version(), flags, NULL) != CUDA_SUCCESS)
		return true;
	return known != function;
}

static bool is_classified(const char *name)
{
	for (size_t i = 0; i < symbol_count; i++)
		if (strcmp(symbols[i].name, name) == 0 || strcmp(symbols[i].symbol, name) == 0)
			return true;
	return false;
}

/* FNV-1a, never 0. Two names of one hash are told as one. */
static uint64_t hash_of(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return hash | 1;
}

/* The driver is newer than the table: what a name like that does nobody has looked at. Once for
 * each, and no more names than a driver adds in years. */
static void tell_unclassified(const char *name)
{
	enum { NAMES_TOLD = 64 };
	static _Atomic uint64_t told[NAMES_TOLD];
	const uint64_t hash = hash_of(name);

	for (unsigned i = 0; i < NAMES_TOLD; i++) {
		uint64_t other = 0;
		if (atomic_compare_exchange_strong(&told[i], &other, hash)) {
			log_line(LOG_WARNING,
				"unclassified driver call %s handed out; what it allocates is "
				"measured",
				name);
			return;
		}
		if (other == hash)
			return;
	}
}

/* Put our function in the place of the driver's answer. A mediated function of which we do not know
 * the newest form is not found: passed on it would be a door around the quota, and an older form
 * under a newer name would crash the program. */
static CUresult substitute(const char *name, void **function, int version, uint64_t flags)
{
	const struct symbol *symbol = answer(name, version, flags);

	if (!symbol) {
		symbol = mediated_at(*function);
		if (symbol)
			memcpy(function, &symbol->exported, sizeof(*function));
		else if (!is_classified(name))
			tell_unclassified(name);
		return CUDA_SUCCESS;
	}
	if (!symbol_is_mediated(symbol))
		return CUDA_SUCCESS;
	if (is_newer(name, *function, version, flags)) {
		log_line(LOG_ERROR, "%s of CUDA %d is newer than this gpushare, which refuses it",
			name, version);
		*function = NULL;
		return CUDA_ERROR_NOT_FOUND;
	}
	memcpy(function, &symbol->exported, sizeof(*function));
	return CUDA_SUCCESS;
}

CUDA(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags))
{
	CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);

	if (result != CUDA_SUCCESS || !*function)
		return result;
	return substitute(name, function, version, flags);
}

CUDA(cuGetProcAddress_v2, (const char *name, void **function, int version, uint64_t flags,
				  CUdriverProcAddressQueryResult *status))
{
	CUresult result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);

	if (result != CUDA_SUCCESS || !*function)
		return result;
	result = substitute(name, function, version, flags);
	if (result != CUDA_SUCCESS && status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return result;
}
