/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the program, containing sizes that the program wrote: nothing is read before it is
 * known to be readable. An invalid image must not crash this library if the driver would return an
 * error.
 */
#ifndef GPUSHARE_EXTENT_H
#define GPUSHARE_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
	const unsigned char *at;
	uint64_t size; /* EXTENT_UNKNOWN: as far as it is readable */
	bool readable; /* everything in it was found to be readable */
};

#define EXTENT_UNKNOWN UINT64_MAX

/* Memory of which only the start is known. */
struct extent extent_from(const void *data);

/* Memory of this library, or memory that was found to be readable. */
struct extent extent_of(const void *data, size_t size);

/* The part of `whole` from `offset` on, `size` bytes or up to its end. */
struct extent extent_rest(const struct extent *whole, uint64_t offset, uint64_t size);

/* Exactly that range, all of it readable; false if it is not. */
bool extent_part(struct extent *part, const struct extent *whole, uint64_t offset, uint64_t size);

/* Whether that range, given by its two ends, is in `whole`. */
bool extent_holds(const struct extent *whole, uint64_t offset, uint64_t size);

bool extent_copy(void *to, const struct extent *whole, uint64_t offset, size_t size);

/* The text at the start: up to its NUL, or to the end of `whole`. */
struct extent extent_text(const struct extent *whole);

/* The string at `offset` of a readable extent; NULL if it is not terminated in it. */
const char *extent_string(const struct extent *strings, uint64_t offset);

#endif
