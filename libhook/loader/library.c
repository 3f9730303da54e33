/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct wanted {
	struct library *library;
	const char *path;
	const struct stat *file; /* instead of `path`: the library may be loaded by another */
	uintptr_t address;	 /* instead of both */
};

/* glibc replaces the addresses in a mapped dynamic section by absolute ones, other loaders do
 * not. */
static const void *absolute(uintptr_t base, ElfW(Addr) address)
{
	return (const void *)(address < base ? base + address : address);
}

static bool read_dynamic(struct library *library, const ElfW(Dyn) * entry)
{
	const uintptr_t base = library->base;

	for (; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			library->symbols = absolute(base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			library->names = absolute(base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_GNU_HASH)
			library->gnu_hash = absolute(base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_HASH)
			library->hash = absolute(base, entry->d_un.d_ptr);
	}
	return library->symbols && library->names && (library->gnu_hash || library->hash);
}

static bool contains(const struct dl_phdr_info *info, uintptr_t address)
{
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		if (header->p_type == PT_LOAD &&
			address - info->dlpi_addr - header->p_vaddr < header->p_memsz)
			return true;
	}
	return false;
}

static bool is_wanted(const struct wanted *wanted, const struct dl_phdr_info *info)
{
	struct stat file;

	if (wanted->address)
		return contains(info, wanted->address);
	if (!wanted->file)
		return strcmp(info->dlpi_name, wanted->path) == 0;
	return stat(info->dlpi_name, &file) == 0 && file.st_dev == wanted->file->st_dev &&
	       file.st_ino == wanted->file->st_ino;
}

static int visit(struct dl_phdr_info *info, size_t bytes, void *data)
{
	const struct wanted *wanted = data;

	(void)bytes;
	if (!is_wanted(wanted, info))
		return 0;
	*wanted->library = (struct library){.base = info->dlpi_addr,
		.headers = info->dlpi_phdr,
		.header_count = info->dlpi_phnum};
	for (unsigned i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return read_dynamic(wanted->library,
				(const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
	return 0;
}

bool library_find(struct library *library, const char *path)
{
	struct wanted wanted = {.library = library, .path = path};
	struct stat file;

	if (dl_iterate_phdr(visit, &wanted))
		return true;
	if (stat(path, &file) != 0)
		return false;
	wanted.file = &file;
	return dl_iterate_phdr(visit, &wanted);
}

bool library_of(struct library *library, const void *address)
{
	struct wanted wanted = {.library = library, .address = (uintptr_t)address};

	return dl_iterate_phdr(visit, &wanted);
}

/* Whether the entry at `index` defines `name`. */
static bool defines(const struct library *library, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &library->symbols[index];

	return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 &&
	       strcmp(library->names + symbol->st_name, name) == 0;
}

uint32_t library_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

/* The layout is described at https://flapenguin.me/elf-dt-gnu-hash: a Bloom filter, buckets, and
 * chains of hashes whose lowest bit is set in the last of a bucket. */
struct gnu_hash {
	const ElfW(Addr) * filter;
	const uint32_t *buckets;
	const uint32_t *chain; /* from the symbol `first` on */
	uint32_t words, bucket_count, first, shift;
};

static struct gnu_hash gnu_hash_of(const struct library *library)
{
	const uint32_t *table = library->gnu_hash;
	struct gnu_hash hash = {.bucket_count = table[0],
		.first = table[1],
		.words = table[2],
		.shift = table[3],
		.filter = (const void *)&table[4]};

	hash.buckets = (const void *)&hash.filter[hash.words];
	hash.chain = &hash.buckets[hash.bucket_count];
	return hash;
}

static uint32_t find_by_gnu_hash(const struct library *library, const char *name, uint32_t hash)
{
	enum { WORD_BITS = 8 * sizeof(ElfW(Addr)) };
	const struct gnu_hash table = gnu_hash_of(library);
	const ElfW(Addr) word = table.filter[hash / WORD_BITS % table.words];

	if (!(word >> hash % WORD_BITS & word >> (hash >> table.shift) % WORD_BITS & 1))
		return STN_UNDEF;
	uint32_t index = table.buckets[hash % table.bucket_count];
	if (index < table.first)
		return STN_UNDEF;
	for (;; index++) {
		const uint32_t other = table.chain[index - table.first];
		if ((other | 1) == (hash | 1) && defines(library, index, name))
			return index;
		if (other & 1)
			return STN_UNDEF;
	}
}

/* As in the System V ABI, "Hash Table". */
static uint32_t find_by_hash(const struct library *library, const char *name)
{
	const uint32_t *table = library->hash;
	const uint32_t bucket_count = table[0];
	const uint32_t *buckets = &table[2], *chain = &buckets[bucket_count];
	uint32_t hash = 0;

	for (const char *letter = name; *letter; letter++) {
		hash = (hash << 4) + (unsigned char)*letter;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	uint32_t index = buckets[hash % bucket_count];
	while (index != STN_UNDEF && !defines(library, index, name))
		index = chain[index];
	return index;
}

/* STN_UNDEF: the library does not define it. */
static uint32_t find(const struct library *library, const char *name, uint32_t hash)
{
	return library->gnu_hash ? find_by_gnu_hash(library, name, hash)
				 : find_by_hash(library, name);
}

void *library_symbol(const struct library *library, const char *name, uint32_t hash)
{
	const uint32_t index = find(library, name, hash);

	return index == STN_UNDEF ? NULL
				  : (void *)(library->base + library->symbols[index].st_value);
}

/* Give the segment of the hash table its own permissions, and `more`. */
static bool protect(const struct library *library, int more)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const uintptr_t table = (uintptr_t)library->gnu_hash - library->base;

	for (unsigned i = 0; i < library->header_count; i++) {
		const ElfW(Phdr) *header = &library->headers[i];
		if (header->p_type != PT_LOAD || table - header->p_vaddr >= header->p_memsz)
			continue;
		const uintptr_t begin = (library->base + header->p_vaddr) & ~(page - 1);
		const uintptr_t end = library->base + header->p_vaddr + header->p_memsz;
		const int own = (header->p_flags & PF_R ? PROT_READ : 0) |
				(header->p_flags & PF_W ? PROT_WRITE : 0);
		/* Beside code only if it was linked so, and code is never writable. */
		return !(header->p_flags & PF_X) &&
		       mprotect((void *)begin, end - begin, own | more) == 0;
	}
	return false;
}

bool library_hide_begin(const struct library *library)
{
	return library->gnu_hash && protect(library, PROT_WRITE);
}

/* A look-up compares the hash in the chain first. The symbol table itself is larger, and each page
 * of it that is written costs a copy. */
void library_hide(const struct library *library, const char *name, uint32_t hash)
{
	const uint32_t index = find_by_gnu_hash(library, name, hash);
	const struct gnu_hash table = gnu_hash_of(library);

	if (index != STN_UNDEF)
		*(uint32_t *)&table.chain[index - table.first] ^= 2; /* 1 is the end's */
}

void library_hide_end(const struct library *library)
{
	protect(library, 0);
}
