/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects: memory of several cards that is bound to one stays for as long as it is bound.
 */
#ifndef GPUSHARE_MULTICAST_H
#define GPUSHARE_MULTICAST_H

#include <stdint.h>

/* The object of this piece's number is gone, and with it all binds. For who has the books. */
void multicast_end(uint64_t object);

/* In a forked child. */
void multicast_forget(void);

#endif
