/* SPDX-License-Identifier: Apache-2.0
 *
 * The dynamic symbols of a library that the loader has mapped, read from its mapping. Looking up
 * all symbols of a driver this way takes a fraction of the time of as many dlsym, and needs no
 * libdl.so, which glibc before 2.34 has as a library of its own.
 */
#ifndef GPUSHARE_LIBRARY_H
#define GPUSHARE_LIBRARY_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct library {
	uintptr_t base;
	const ElfW(Phdr) * headers;
	unsigned header_count;
	const ElfW(Sym) * symbols;
	const char *names;
	const uint32_t *gnu_hash; /* DT_GNU_HASH, or null */
	const uint32_t *hash;	  /* DT_HASH, or null */
};

#pragma GCC visibility push(hidden)

/* The hash of a name in DT_GNU_HASH. */
uint32_t library_hash(const char *name);

/* Find the library that was loaded from the file at `path`, in the caller's namespace. */
bool library_find(struct library *library, const char *path);
/* Find the library that contains `address`. */
bool library_of(struct library *library, const void *address);

/* The address of a symbol that the library itself defines, or NULL. `hash` is that of the name. */
void *library_symbol(const struct library *library, const char *name, uint32_t hash);

/* Make symbols that the library defines absent: from now on, look-ups by dlsym and by the loader do
 * not find them. Begin makes the hash table writable, and returns false if it cannot. */
bool library_hide_begin(const struct library *library);
void library_hide(const struct library *library, const char *name, uint32_t hash);
void library_hide_end(const struct library *library);

#pragma GCC visibility pop

#endif
