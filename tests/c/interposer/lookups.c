/* SPDX-License-Identifier: Apache-2.0 */
#include "lookups.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

static void *library;
static void *(*found_dlsym)(void *, const char *);
static __typeof__(&cuGetProcAddress) look_up_v1;
static __typeof__(&cuGetProcAddress_v2) look_up;
static uint64_t look_up_flags;

#define FIRST_PER_THREAD 7000

static _Noreturn void die(const char *what)
{
	const char *why = dlerror();

	fprintf(stderr, "%s: %s\n", what, why ? why : "not found");
	exit(2);
}

static void *opened(void *handle)
{
	if (!handle)
		die("dlopen");
	return handle;
}

static void *by_dlsym(const char *symbol)
{
	void *address = dlsym(library, symbol);

	if (!address)
		die(symbol);
	return address;
}

static void *by_dlvsym(const char *symbol)
{
	void *address = found_dlsym(library, symbol);

	if (!address)
		die(symbol);
	return address;
}

/* What cuGetProcAddress is asked for to answer an exported symbol. */
static const struct asked {
	const char *symbol;
	const char *name;
	int version;
	enum { NONE, LEGACY, PER_THREAD } stream;
} table[] = {
#define CUDA_SYMBOL(symbol, name, version, stream) {#symbol, #name, version, stream},
#include "table/cuda.inc"
#undef CUDA_SYMBOL
};

static const struct asked *asked_for(const char *symbol)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (strcmp(table[i].symbol, symbol) == 0)
			return &table[i];
	die(symbol);
}

/* Of a name that has a per-thread form, that flag finds nothing older than it. */
static uint64_t flags_of(const struct asked *asked)
{
	if (asked->stream == PER_THREAD)
		return CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	return asked->stream == LEGACY && asked->version < FIRST_PER_THREAD ? 0 : look_up_flags;
}

static void *by_look_up(const char *symbol)
{
	const struct asked *asked = asked_for(symbol);
	CUdriverProcAddressQueryResult status;
	void *address = NULL;

	if (look_up(asked->name, &address, asked->version, flags_of(asked), &status) !=
			CUDA_SUCCESS ||
		status != CU_GET_PROC_ADDRESS_SUCCESS)
		die(symbol);
	return address;
}

static void *by_look_up_v1(const char *symbol)
{
	const struct asked *asked = asked_for(symbol);
	void *address = NULL;

	if (look_up_v1(asked->name, &address, asked->version, flags_of(asked)) != CUDA_SUCCESS)
		die(symbol);
	return address;
}

/* As the CUDA runtime does: one dlsym, then everything through what it found. */
static finder *by_procaddress(uint64_t flags, int depth)
{
	*(void **)&look_up = by_dlsym("cuGetProcAddress_v2");
	look_up_flags = flags;
	while (depth-- > 0)
		*(void **)&look_up = by_look_up("cuGetProcAddress_v2");
	return by_look_up;
}

finder *lookup_named(const char *lookup)
{
	const char *name = "libcuda.so.1";

	if (strcmp(lookup, "absolute") == 0)
		library = opened(dlopen(getenv("LIBCUDA"), RTLD_NOW));
	else if (strcmp(lookup, "dlmopen") == 0)
		library = opened(dlmopen(LM_ID_NEWLM, name, RTLD_NOW));
	else if (strcmp(lookup, "deepbind") == 0)
		library = opened(dlopen(name, RTLD_NOW | RTLD_DEEPBIND));
	else if (strcmp(lookup, "global") == 0) {
		opened(dlopen(name, RTLD_NOW | RTLD_GLOBAL));
		library = RTLD_DEFAULT;
	} else
		library = opened(dlopen(name, RTLD_NOW | RTLD_LOCAL));

	if (strcmp(lookup, "dlvsym") == 0) {
		*(void **)&found_dlsym = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
		return found_dlsym ? by_dlvsym : (die(lookup), NULL);
	}
	if (strcmp(lookup, "procaddress") == 0)
		return by_procaddress(0, 0);
	if (strcmp(lookup, "procaddress-per-thread") == 0)
		return by_procaddress(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 0);
	if (strcmp(lookup, "procaddress-of-procaddress") == 0)
		return by_procaddress(0, 2);
	if (strcmp(lookup, "procaddress-v1") == 0) {
		*(void **)&look_up_v1 = by_dlsym("cuGetProcAddress");
		return by_look_up_v1;
	}
	static const char *const plain[] = {
		"dlopen", "global", "deepbind", "dlmopen", "absolute", "linked"};
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (strcmp(lookup, plain[i]) == 0)
			return by_dlsym;
	die(lookup);
}
