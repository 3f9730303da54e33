/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a fat binary: a header, then entries, each an image for one architecture with a header of
 * its own. Layout as written by fatbinary of the CUDA toolkit (tests/c/image creates some).
 */
#include "reader.h"

enum { FAT_PTX = 1, FAT_CUBIN = 2 };
#define FAT_COMPRESSED UINT64_C(0xa000) /* LZ4 or Zstandard */

struct fat_header {
	uint32_t magic;
	uint16_t version;
	uint16_t header_bytes;
	uint64_t bytes; /* of what follows */
};

struct fat_entry {
	uint16_t kind;
	uint16_t version;
	uint32_t header_bytes;
	uint64_t bytes; /* of the payload as stored */
	uint32_t compressed_bytes;
	uint32_t reserved;
	uint16_t minor, major;
	uint32_t architecture; /* 10 * major + minor */
	uint32_t name_offset, name_bytes;
	uint64_t flags;
};

#define DECOMPRESSED_OFFSET 56 /* of an entry's header, if that is long enough */

/* A cubin runs on cards of its own major number whose minor number is not lower; PTX on all cards
 * that are not older. */
static bool applicable(const struct fat_entry *entry, unsigned capability)
{
	if (entry->kind != FAT_PTX && entry->kind != FAT_CUBIN)
		return false;
	if (capability == 0)
		return true;
	if (entry->architecture > capability)
		return false;
	return entry->kind == FAT_PTX || entry->architecture / 10 == capability / 10;
}

static uint64_t total(const struct declared_bytes *declared)
{
	return sum(sum(declared->globals, declared->managed),
		sum(declared->constants, declared->code));
}

static CUresult read_payload(
	struct reader *reader, const struct fat_entry *entry, const struct extent *payload)
{
	return entry->kind == FAT_CUBIN ? cubin_read(reader, payload) : ptx_read(reader, payload);
}

/* The declarations of one entry, if they are known without decompressing it. */
static CUresult measure_entry(struct declared_bytes *declared, const struct fat_entry *entry,
	const struct extent *header, const struct extent *payload)
{
	struct reader reader = {.image = NULL};
	CUresult result = CUDA_SUCCESS;

	if (!(entry->flags & FAT_COMPRESSED))
		result = read_payload(&reader, entry, payload);
	else if (entry->kind == FAT_CUBIN &&
		 !extent_copy(&reader.declared.code, header, DECOMPRESSED_OFFSET, sizeof(uint64_t)))
		reader.declared.code = entry->bytes;
	*declared = reader.declared;
	return result;
}

/* False at the end, or at the first invalid entry. */
static bool next_entry(struct fat_entry *entry, struct extent *header, struct extent *payload,
	const struct extent *entries, uint64_t *offset)
{
	uint64_t begin;

	if (!extent_copy(entry, entries, *offset, sizeof(*entry)) ||
		entry->header_bytes < sizeof(*entry) ||
		__builtin_add_overflow(*offset, entry->header_bytes, &begin))
		return false;
	*header = extent_rest(entries, *offset, entry->header_bytes);
	*payload = extent_rest(entries, begin, entry->bytes);
	return !__builtin_add_overflow(begin, entry->bytes, offset);
}

CUresult fatbin_read(struct reader *reader, const struct extent *data)
{
	struct fat_header fat;
	struct fat_entry entry;
	struct extent header, payload;
	uint64_t offset = 0;
	CUresult result = CUDA_ERROR_NO_BINARY_FOR_GPU;

	if (!extent_copy(&fat, data, 0, sizeof(fat)))
		return CUDA_ERROR_INVALID_IMAGE;
	struct extent entries = extent_rest(data, fat.header_bytes, fat.bytes);
	while (next_entry(&entry, &header, &payload, &entries, &offset)) {
		struct declared_bytes declared;
		if (!applicable(&entry, reader->capability))
			continue;
		if (reader->image && !(entry.flags & FAT_COMPRESSED))
			return read_payload(reader, &entry, &payload);
		if (reader->image ||
			measure_entry(&declared, &entry, &header, &payload) != CUDA_SUCCESS)
			continue;
		result = CUDA_SUCCESS;
		if (total(&declared) > total(&reader->declared))
			reader->declared = declared;
	}
	return result;
}
