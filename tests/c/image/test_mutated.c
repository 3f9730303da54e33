/* SPDX-License-Identifier: Apache-2.0
 *
 * Images with bytes changed at random: whatever they say of sizes and places, reading them ends.
 * Of known size they lie in a heap block of their own, and AddressSanitizer sees what is read
 * beside it. Of unknown size they end where a page that cannot be read begins; then an image may
 * point at whatever else is mapped, which sanitizers do not allow, so that is for the plain build.
 */
#include "expect.h"
#include "image/image.h"
#include "made.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 4000

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Values on which sums overflow, or which point before the beginning or just past the end. */
static uint64_t telling(size_t bytes)
{
	const uint64_t values[] = {0, 1, UINT64_MAX, UINT64_MAX - 63, INT64_MAX, UINT32_MAX, 0xffff,
		bytes, bytes - 1, bytes + 1, any(), any() % (bytes + 64)};

	return values[any() % (sizeof(values) / sizeof(values[0]))];
}

static void mutate(unsigned char *image, size_t bytes)
{
	for (uint64_t changes = 1 + any() % 4; changes > 0; changes--) {
		static const size_t widths[] = {1, 2, 4, 8};
		size_t width = widths[any() % 4];
		size_t at = any() % bytes;
		uint64_t value = telling(bytes);
		memcpy(image + at, &value, width < bytes - at ? width : bytes - at);
	}
}

static void read_both_ways(const void *data, size_t bytes, bool sized)
{
	struct image image = {.kernels = NULL};
	struct declared_bytes declared;
	const unsigned capability = (unsigned)(any() % 2) * 75;

	if (sized) {
		image_read_sized(&image, data, bytes);
		image_measure_sized(&declared, data, bytes, capability);
	} else {
		image_read(&image, data);
		image_measure(&declared, data, capability);
	}
	image_free(&image);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* A copy whose last byte is the last that can be read. */
static void read_at_the_edge(const unsigned char *mutant, size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t pages = (bytes + page - 1) / page * page;
	unsigned char *map = mmap(
		NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(map != MAP_FAILED);
	EXPECT_EQUAL(mprotect(map + pages, page, PROT_NONE), 0);
	memcpy(map + pages - bytes, mutant, bytes);
	read_both_ways(map + pages - bytes, bytes, false);
	munmap(map, pages + page);
}

static void whatever_an_image_says_reading_it_ends(const unsigned char *image, size_t bytes)
{
	for (int round = 0; round < ROUNDS; round++) {
		size_t left = round % 4 ? bytes : 1 + any() % bytes; /* some are cut off */
		unsigned char *mutant = malloc(left);
		EXPECT(mutant);
		memcpy(mutant, image, left);
		if (round)
			mutate(mutant, left);
		read_both_ways(mutant, left, true);
		if (!SANITIZED)
			read_at_the_edge(mutant, left);
		free(mutant);
	}
}

int main(void)
{
	static unsigned char made[MADE_BYTES], fat[MADE_BYTES];
	const char ptx[] =
		PTX_HEAD ".global .align 4 .b8 t[4][0x100];\n.const .u32 c[] = {1, 2};\n"
			 ".global .attribute(.managed) .u64 m;\n/* \" */ .file 1 \"a\\\"b\"\n"
			 ".visible .entry k(.param .u64 a, .param .align 8 .b8 b[24]) .maxntid 32 "
			 "{ ret; }\n";
	size_t bytes = made_cubin(made, 1);
	const struct made_entry entries[] = {{MADE_CUBIN, 75, made, bytes, 0, 0},
		{MADE_CUBIN, 80, made, 64, MADE_COMPRESSED, 4096},
		{MADE_PTX, 75, ptx, sizeof(ptx), 0, 0}};

	whatever_an_image_says_reading_it_ends(made, bytes);
	whatever_an_image_says_reading_it_ends(fat, made_fatbin(fat, entries, 3));
	whatever_an_image_says_reading_it_ends((const unsigned char *)ptx, sizeof(ptx));
	return 0;
}
