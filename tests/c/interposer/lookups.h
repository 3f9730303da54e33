/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways in which programs find the driver's functions, by name: dlopen, global, deepbind,
 * dlmopen, absolute (the path in $LIBCUDA), dlvsym, procaddress, procaddress-per-thread,
 * procaddress-of-procaddress, procaddress-v1; linked, in a program compiled with -DLINKED.
 */
#ifndef TEST_LOOKUPS_H
#define TEST_LOOKUPS_H

typedef void *finder(const char *symbol);

/* How `lookup` finds an exported symbol. Neither returns without having found it. */
finder *lookup_named(const char *lookup);

/* `where` becomes the function `symbol`, found by `find`; linked, the program's own. */
#ifdef LINKED
#define FIND(where, find, symbol) ((void)(find), *(where) = symbol)
#else
#define FIND(where, find, symbol) (*(void **)(where) = (find)(#symbol))
#endif

#endif
