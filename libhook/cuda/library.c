/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries belong to no context, and the driver loads them into each when it first uses them. They
 * are charged for the current card when they are loaded or, without a context, when an object of
 * theirs is requested; for each further card when an object is requested there. A kernel's launch
 * does not name its library: a launch on a card for which nothing was requested is measured, as are
 * the copies of a library in further contexts of one card.
 */
#include "library.h"

#include "cards.h"
#include "module_cost.h"

/* The charge of each library where it is used: on the card, and as `owner` of managed memory. */
static struct allocations libraries;

/* A library's address plus the card: the object is larger than that. */
static uint64_t handle_on(CUlibrary library, unsigned card)
{
	return (uintptr_t)library + card;
}

/* Before the driver is called for an object that may load `library` into the current context. */
static CUresult library_use(CUlibrary library)
{
	struct allocation entry;
	struct module_cost cost;
	CUdevice device;
	unsigned card;

	if (!allocations_find(&libraries, (uintptr_t)library, &entry) ||
		REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
		card_of_device(&card, device) != CUDA_SUCCESS ||
		module_cost_is_charged(handle_on(library, card)))
		return CUDA_SUCCESS;
	const struct module_bytes bytes = {.device = entry.bytes, .managed = entry.owner};
	CUresult result = module_cost_reserve(&cost, bytes);
	return result == CUDA_SUCCESS ? module_cost_settle(&cost, result, handle_on(library, card))
				      : result;
}

/* Without a context, there is no card to charge yet. */
static bool has_context(unsigned *card)
{
	CUdevice device;

	return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
	       card_of_device(card, device) == CUDA_SUCCESS;
}

static void library_note(CUlibrary library, struct module_bytes bytes)
{
	struct allocation stale;
	const struct allocation entry = {
		.handle = (uintptr_t)library, .bytes = bytes.device, .owner = bytes.managed};

	allocations_add(&libraries, &entry, &stale);
}

struct library_load {
	struct module_bytes bytes;
	struct module_cost cost;
	unsigned card;
	bool is_charged;
};

static CUresult library_reserve(struct library_load *loading, struct module_bytes bytes)
{
	loading->bytes = bytes;
	loading->is_charged = has_context(&loading->card);
	return loading->is_charged ? module_cost_reserve(&loading->cost, bytes) : CUDA_SUCCESS;
}

static CUresult library_settle(
	const struct library_load *loading, CUresult result, CUlibrary returned, CUlibrary *library)
{
	const uint64_t handle = result == CUDA_SUCCESS ? handle_on(returned, loading->card) : 0;

	if (result == CUDA_SUCCESS)
		library_note(returned, loading->bytes);
	if (loading->is_charged)
		module_cost_settle(&loading->cost, result, handle);
	if (result == CUDA_SUCCESS)
		*library = returned;
	return result;
}

/* `measured` is what the image costs, `source` where it is. */
#define LOAD(symbol, source_type, source, measured)                                                \
	CUDA(symbol, (CUlibrary * library, source_type source, CUjit_option * options,             \
			     void **option_values, unsigned int option_count,                      \
			     CUlibraryOption *library_options, void **library_values,              \
			     unsigned int library_option_count))                                   \
	{                                                                                          \
		struct library_load loading = {.card = 0};                                         \
		CUlibrary returned = NULL;                                                         \
		if (!library)                                                                      \
			return REAL(symbol)(library, source, options, option_values, option_count, \
				library_options, library_values, library_option_count);            \
		CUresult result = library_reserve(&loading, measured);                             \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = RETRY_LOAD(loading.cost,                                                  \
			REAL(symbol)(&returned, source, options, option_values, option_count,      \
				library_options, library_values, library_option_count));           \
		return library_settle(&loading, result, returned, library);                        \
	}

LOAD(cuLibraryLoadData, const void *, image, module_cost_measure(image))
LOAD(cuLibraryLoadFromFile, const char *, path, module_cost_measure_file(path))

CUDA(cuLibraryUnload, (CUlibrary library))
{
	struct module_charge charge[GPUSHARE_MAX_CARDS];
	struct allocation entry, stale;
	bool known = allocations_take(&libraries, (uintptr_t)library, &entry);

	for (unsigned card = 0; known && card < GPUSHARE_MAX_CARDS; card++)
		charge[card] = module_cost_take(handle_on(library, card));
	CUresult result = REAL(cuLibraryUnload)(library);
	for (unsigned card = 0; known && card < GPUSHARE_MAX_CARDS; card++)
		module_cost_free(&charge[card], result);
	if (known && result != CUDA_SUCCESS)
		allocations_add(&libraries, &entry, &stale);
	return result;
}

#define GET(symbol, parameters, ...)                                                               \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		const CUresult result = library_use(library);                                      \
		return result == CUDA_SUCCESS ? REAL(symbol)(__VA_ARGS__) : result;                \
	}

GET(cuLibraryGetModule, (CUmodule * module, CUlibrary library), module, library)
GET(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name), kernel, library,
	name)
GET(cuLibraryGetGlobal, (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name),
	pointer, bytes, library, name)
GET(cuLibraryGetManaged,
	(CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name), pointer, bytes,
	library, name)

CUDA(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))
{
	CUlibrary library;
	CUresult result = CUDA_SUCCESS;

	/* Since CUDA 12.5, the library of a kernel can be queried. */
	if (REAL(cuKernelGetLibrary)(&library, kernel) == CUDA_SUCCESS)
		result = library_use(library);
	return result == CUDA_SUCCESS ? REAL(cuKernelGetFunction)(function, kernel) : result;
}

void libraries_after_fork_in_child(void)
{
	allocations_forget(&libraries);
}
