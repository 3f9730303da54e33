/* SPDX-License-Identifier: Apache-2.0 */
#include "extent.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE UINT64_C(4096) /* or a multiple: then a page is checked more than once */

/* The kernel copies the mask before it checks `how`, which is invalid: EFAULT or EINVAL, and
 * nothing changes. Every seccomp filter allows this call. */
static bool page_readable(uintptr_t address)
{
	int saved = errno;
	const uintptr_t word = address / PAGE * PAGE;
	bool readable = syscall(SYS_rt_sigprocmask, ~0, word, NULL, sizeof(uint64_t)) != 0 &&
			errno != EFAULT;

	errno = saved;
	return readable;
}

/* The number of readable bytes from `from` on, at most `size`. */
static uint64_t readable_bytes(const unsigned char *from, uint64_t size)
{
	const uintptr_t begin = (uintptr_t)from;
	uint64_t readable = 0;

	while (readable < size && begin + readable >= begin && page_readable(begin + readable))
		readable += PAGE - (begin + readable) % PAGE;
	return readable < size ? readable : size;
}

struct extent extent_from(const void *data)
{
	return (struct extent){.at = data, .size = EXTENT_UNKNOWN};
}

struct extent extent_of(const void *data, size_t size)
{
	return (struct extent){.at = data, .size = size, .readable = true};
}

static bool within(const struct extent *whole, uint64_t offset, uint64_t size)
{
	uint64_t end;

	return !__builtin_add_overflow(offset, size, &end) && end <= whole->size &&
	       end <= (uint64_t)PTRDIFF_MAX - (uintptr_t)whole->at; /* program addresses are low */
}

struct extent extent_rest(const struct extent *whole, uint64_t offset, uint64_t size)
{
	if (!within(whole, offset, 0))
		return (struct extent){.at = whole->at, .size = 0};
	struct extent rest = {whole->at + offset, size, whole->readable};
	if (whole->size != EXTENT_UNKNOWN && size > whole->size - offset)
		rest.size = whole->size - offset;
	return rest;
}

bool extent_part(struct extent *part, const struct extent *whole, uint64_t offset, uint64_t size)
{
	if (!within(whole, offset, size))
		return false;
	*part = (struct extent){whole->at + offset, size, true};
	return whole->readable || readable_bytes(part->at, size) == size;
}

bool extent_holds(const struct extent *whole, uint64_t offset, uint64_t size)
{
	struct extent end;

	return size == 0 || (within(whole, offset, size) && extent_part(&end, whole, offset, 1) &&
				    extent_part(&end, whole, offset + size - 1, 1));
}

bool extent_copy(void *to, const struct extent *whole, uint64_t offset, size_t size)
{
	struct extent part;

	if (!extent_part(&part, whole, offset, size))
		return false;
	memcpy(to, part.at, size);
	return true;
}

struct extent extent_text(const struct extent *whole)
{
	struct extent text = {whole->at, 0, true};

	while (text.size < whole->size) {
		const unsigned char *from = whole->at + text.size;
		uint64_t step = PAGE - (uintptr_t)from % PAGE;
		if (step > whole->size - text.size)
			step = whole->size - text.size;
		if (!whole->readable && !page_readable((uintptr_t)from))
			break;
		const unsigned char *end = memchr(from, 0, step);
		if (end) {
			text.size += (uint64_t)(end - from);
			break;
		}
		text.size += step;
	}
	return text;
}

const char *extent_string(const struct extent *strings, uint64_t offset)
{
	if (offset >= strings->size || !memchr(strings->at + offset, 0, strings->size - offset))
		return NULL;
	return (const char *)strings->at + offset;
}
