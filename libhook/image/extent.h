/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the program's, with sizes in it that the program wrote: nothing is read before it is
 * known to be there. What lies beyond cannot crash us where the driver would return an error.
 */
#ifndef GPUSHARE_EXTENT_H
#define GPUSHARE_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
	const unsigned char *at;
	uint64_t size; /* EXTENT_UNKNOWN: for as long as it can be read */
	bool readable; /* all of it, as was found before */
};

#define EXTENT_UNKNOWN UINT64_MAX

/* Memory of which only the beginning is known. */
struct extent extent_from(const void *data);

/* Memory of our own, or that was found to be readable. */
struct extent extent_of(const void *data, size_t size);

/* What lies in `whole` from `offset` on, `size` bytes or as far as it goes. */
struct extent extent_rest(const struct extent *whole, uint64_t offset, uint64_t size);

/* Exactly that stretch, all of it readable; false if it is not. */
bool extent_part(struct extent *part, const struct extent *whole, uint64_t offset, uint64_t size);

/* Whether that stretch is in `whole`, by its two ends. */
bool extent_holds(const struct extent *whole, uint64_t offset, uint64_t size);

bool extent_copy(void *to, const struct extent *whole, uint64_t offset, size_t size);

/* The text at the beginning: up to its NUL, or to where `whole` ends. */
struct extent extent_text(const struct extent *whole);

/* The string at `offset` of a readable extent; NULL if it has no end in it. */
const char *extent_string(const struct extent *strings, uint64_t offset);

#endif
