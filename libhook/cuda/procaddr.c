/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress, through which cudart gets all but one of its functions. The real one is called
 * first; if the function is mediated, its address is replaced.
 */
#include <stdatomic.h>
#include <string.h>

#include "channel/log.h"
#include "interpose.h"
#include "symbols.h"

/* Drivers before CUDA 12 have only the older form, which returns no status. */
static CUresult look_up(const char *name, void **function, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	if (driver_defines(real_cuGetProcAddress_v2))
		return REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
	CUresult result = REAL(cuGetProcAddress)(name, function, version, flags);
	if (status)
		*status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
						 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return result;
}

/* The newest version in the table, and so the newest for which the meaning of a name is known. */
static int table_version(void)
{
	static _Atomic int newest;

	if (newest == 0)
		for (size_t i = 0; i < symbol_count; i++)
			if (symbols[i].version > newest)
				newest = symbols[i].version;
	return newest;
}

/* The first of the table's lines for `name`: they are sorted by name. */
static size_t first_line(const char *name)
{
	size_t low = 0, high = symbol_count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (symbol_compare(&symbols[middle], name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The driver's result for `name`, by the rule at the top of table/cuda.inc; a symbol that this
 * driver lacks cannot be its result. NULL: nothing in the table. */
static const struct symbol *answer(const char *name, int version, uint64_t flags)
{
	const struct symbol *per_thread = NULL, *other = NULL;

	for (size_t i = first_line(name); i < symbol_count; i++) {
		const struct symbol *symbol = &symbols[i];
		if (symbol_compare(symbol, name) != 0)
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

/* The library's function for the real function at `real`: a driver that accepts a name which the
 * table does not have (an exported name with its suffix) must not return a mediated function. */
static const struct symbol *mediated_at(const void *real)
{
	for (size_t i = 0; i < symbol_count; i++)
		if (symbol_is_mediated(&symbols[i]) &&
			memcmp(symbol_real(&symbols[i]), &real, sizeof real) == 0)
			return &symbols[i];
	return NULL;
}

/* Whether a program that is newer than the table receives a function that is newer, too. Its
 * parameters may differ from those of the function that the table has under that name. */
static bool is_newer(const char *name, const void *function, int version, uint64_t flags)
{
	void *known = NULL;

	if (version <= table_version())
		return false;
	if (look_up(name, &known, table_version(), flags, NULL) != CUDA_SUCCESS)
		return true;
	return known != function;
}

static bool is_classified(const char *name)
{
	for (size_t i = 0; i < symbol_count; i++)
		if (symbol_compare(&symbols[i], name) == 0 || strcmp(symbols[i].symbol, name) == 0)
			return true;
	return false;
}

/* FNV-1a, never 0. Two names with the same hash are reported as one. */
static uint64_t hash_of(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return hash | 1;
}

/* The driver is newer than the table: the function of this name is unclassified. Reported once per
 * name, for no more names than a driver adds in years. */
static void log_unclassified(const char *name)
{
	enum { NAMES_REPORTED = 64 };
	static _Atomic uint64_t reported[NAMES_REPORTED];
	const uint64_t hash = hash_of(name);

	for (unsigned i = 0; i < NAMES_REPORTED; i++) {
		uint64_t other = 0;
		if (atomic_compare_exchange_strong(&reported[i], &other, hash)) {
			log_line(LOG_WARNING,
				"driver function %s is unknown to gpushare and was not interposed; "
				"its allocations are measured",
				name);
			return;
		}
		if (other == hash)
			return;
	}
}

/* The library's function in place of the driver's, `function`. NULL: the newest form of a mediated
 * function is unknown. Passed through, it would bypass the quota, and an older form under a newer
 * name would crash the program. */
static void *substitute(const char *name, void *function, int version, uint64_t flags)
{
	const struct symbol *symbol = answer(name, version, flags);

	if (!symbol) {
		symbol = mediated_at(function);
		if (symbol)
			return symbol_exported(symbol);
		if (!is_classified(name))
			log_unclassified(name);
		return function;
	}
	if (!symbol_is_mediated(symbol))
		return function;
	if (!is_newer(name, function, version, flags))
		return symbol_exported(symbol);
	log_line(LOG_ERROR, "refused %s of CUDA %d: it is newer than this version of gpushare",
		name, version);
	return NULL;
}

/* What is refused is answered like a name that the driver does not have: by the first form with an
 * error and the pointer as it was, by the second with success, a null pointer and the status. */
CUDA(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags))
{
	void *found = NULL;

	if (!function)
		return REAL(cuGetProcAddress)(name, function, version, flags);
	CUresult result = REAL(cuGetProcAddress)(name, &found, version, flags);

	if (result != CUDA_SUCCESS)
		return result;
	if (found && !(found = substitute(name, found, version, flags)))
		return CUDA_ERROR_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
}

CUDA(cuGetProcAddress_v2, (const char *name, void **function, int version, uint64_t flags,
				  CUdriverProcAddressQueryResult *status))
{
	CUresult result = look_up(name, function, version, flags, status);

	if (result != CUDA_SUCCESS || !*function)
		return result;
	*function = substitute(name, *function, version, flags);
	if (!*function && status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}
