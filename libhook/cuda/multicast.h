/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects: memory of several cards that is bound to one is retained for as long as it is
 * bound.
 */
#ifndef GPUSHARE_MULTICAST_H
#define GPUSHARE_MULTICAST_H

#include <stdint.h>

/* The object with this number is gone, and with it all binds. With the lock of physical_refs. */
void multicast_end(uint64_t object);

/* In a forked child. */
void multicast_forget(void);

#endif
