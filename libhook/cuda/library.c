/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries are of no context, and the driver loads them into each when it is first used there.
 * They are charged for the current card when they are loaded or, where there is no context yet,
 * when something of theirs is asked for; for each further card when it is asked for there. A
 * kernel's launch does not name its library: one on a card for which nothing was asked is measured,
 * as are the copies of a library in further contexts of one card.
 */
#include "library.h"

#include "cards.h"
#include "load.h"

/* What each takes where it is used: on the card, and as `owner` of managed memory. */
static struct allocations libraries;

/* A library's address, and within it one for each card: it is larger than that. */
static uint64_t handle_on(CUlibrary library, unsigned card)
{
	return (uintptr_t)library + card;
}

/* Before the driver is asked for something that may load `library` into the current context. */
static CUresult library_use(CUlibrary library)
{
	struct allocation entry;
	struct load load;
	CUdevice device;
	unsigned card;

	if (!allocations_find(&libraries, (uintptr_t)library, &entry) ||
		REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
		card_of_device(&card, device) != CUDA_SUCCESS ||
		load_is_charged(handle_on(library, card)))
		return CUDA_SUCCESS;
	const struct load_bytes bytes = {.device = entry.bytes, .managed = entry.owner};
	CUresult result = load_reserve(&load, bytes);
	return result == CUDA_SUCCESS ? load_settle(&load, result, handle_on(library, card))
				      : result;
}

/* Without a context there is no card to charge yet. */
static bool has_context(unsigned *card)
{
	CUdevice device;

	return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
	       card_of_device(card, device) == CUDA_SUCCESS;
}

static void library_note(CUlibrary library, struct load_bytes bytes)
{
	struct allocation stale;
	const struct allocation entry = {
		.handle = (uintptr_t)library, .bytes = bytes.device, .owner = bytes.managed};

	allocations_add(&libraries, &entry, &stale);
}

struct library_load {
	struct load_bytes bytes;
	struct load load;
	unsigned card;
	bool is_charged;
};

static CUresult library_reserve(struct library_load *loading, struct load_bytes bytes)
{
	loading->bytes = bytes;
	loading->is_charged = has_context(&loading->card);
	return loading->is_charged ? load_reserve(&loading->load, bytes) : CUDA_SUCCESS;
}

static CUresult library_settle(
	const struct library_load *loading, CUresult result, CUlibrary given, CUlibrary *library)
{
	const uint64_t handle = result == CUDA_SUCCESS ? handle_on(given, loading->card) : 0;

	if (result == CUDA_SUCCESS)
		library_note(given, loading->bytes);
	if (loading->is_charged)
		load_settle(&loading->load, result, handle);
	if (result == CUDA_SUCCESS)
		*library = given;
	return result;
}

CUDA(cuLibraryLoadData,
	(CUlibrary * library, const void *image, CUjit_option *options, void **option_values,
		unsigned int option_count, CUlibraryOption *library_options, void **library_values,
		unsigned int library_option_count))
{
	struct library_load loading = {.card = 0};
	CUlibrary given = NULL;

	if (!library)
		return REAL(cuLibraryLoadData)(library, image, options, option_values, option_count,
			library_options, library_values, library_option_count);
	CUresult result = library_reserve(&loading, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(loading.load,
		REAL(cuLibraryLoadData)(&given, image, options, option_values, option_count,
			library_options, library_values, library_option_count));
	return library_settle(&loading, result, given, library);
}

CUDA(cuLibraryLoadFromFile,
	(CUlibrary * library, const char *path, CUjit_option *options, void **option_values,
		unsigned int option_count, CUlibraryOption *library_options, void **library_values,
		unsigned int library_option_count))
{
	struct library_load loading = {.card = 0};
	CUlibrary given = NULL;

	if (!library)
		return REAL(cuLibraryLoadFromFile)(library, path, options, option_values,
			option_count, library_options, library_values, library_option_count);
	CUresult result = library_reserve(&loading, load_measure_file(path));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(loading.load,
		REAL(cuLibraryLoadFromFile)(&given, path, options, option_values, option_count,
			library_options, library_values, library_option_count));
	return library_settle(&loading, result, given, library);
}

CUDA(cuLibraryUnload, (CUlibrary library))
{
	struct loaded loaded[GPUSHARE_MAX_CARDS];
	struct allocation entry, stale;
	bool known = allocations_take(&libraries, (uintptr_t)library, &entry);

	for (unsigned card = 0; known && card < GPUSHARE_MAX_CARDS; card++)
		loaded[card] = load_take(handle_on(library, card));
	CUresult result = REAL(cuLibraryUnload)(library);
	for (unsigned card = 0; known && card < GPUSHARE_MAX_CARDS; card++)
		load_free(&loaded[card], result);
	if (known && result != CUDA_SUCCESS)
		allocations_add(&libraries, &entry, &stale);
	return result;
}

CUDA(cuLibraryGetModule, (CUmodule * module, CUlibrary library))
{
	CUresult result = library_use(library);

	return result == CUDA_SUCCESS ? REAL(cuLibraryGetModule)(module, library) : result;
}

CUDA(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))
{
	CUresult result = library_use(library);

	return result == CUDA_SUCCESS ? REAL(cuLibraryGetKernel)(kernel, library, name) : result;
}

CUDA(cuLibraryGetGlobal,
	(CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name))
{
	CUresult result = library_use(library);

	return result == CUDA_SUCCESS ? REAL(cuLibraryGetGlobal)(pointer, bytes, library, name)
				      : result;
}

CUDA(cuLibraryGetManaged,
	(CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name))
{
	CUresult result = library_use(library);

	return result == CUDA_SUCCESS ? REAL(cuLibraryGetManaged)(pointer, bytes, library, name)
				      : result;
}

CUDA(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))
{
	CUlibrary library;
	CUresult result = CUDA_SUCCESS;

	/* Since CUDA 12.5 a kernel tells its library. */
	if (REAL(cuKernelGetLibrary)(&library, kernel) == CUDA_SUCCESS)
		result = library_use(library);
	return result == CUDA_SUCCESS ? REAL(cuKernelGetFunction)(function, kernel) : result;
}

void libraries_after_fork_in_child(void)
{
	allocations_forget(&libraries);
}
