/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads what a cubin declares. It is an ELF file of machine EM_CUDA: kernels are function symbols
 * marked as entries, their parameters are attributes in the section .nv.info.NAME, variables are
 * object symbols. Layouts as cuobjdump and nvdisasm show them.
 */
#include "image.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#ifndef EM_CUDA
#define EM_CUDA 190
#endif
#define STO_CUDA_ENTRY 0x10
#define EIFMT_SVAL 4
#define EIATTR_KPARAM_INFO 0x17

#define FAT_PTX 1
#define FAT_CUBIN 2
#define FAT_COMPRESSED 0xa000u /* LZ4 or Zstandard */

static const Elf64_Shdr *section_at(const unsigned char *elf, unsigned int index)
{
	const Elf64_Ehdr *header = (const void *)elf;

	return (const void *)(elf + header->e_shoff + (size_t)index * header->e_shentsize);
}

static const Elf64_Shdr *section_named(const unsigned char *elf, const char *name)
{
	const Elf64_Ehdr *header = (const void *)elf;
	const char *names = (const char *)elf + section_at(elf, header->e_shstrndx)->sh_offset;

	for (unsigned int i = 0; i < header->e_shnum; i++) {
		if (strcmp(names + section_at(elf, i)->sh_name, name) == 0)
			return section_at(elf, i);
	}
	return NULL;
}

/* Attributes are a format byte, a kind byte, and either a 16-bit value or that many bytes. */
static void read_parameters(const unsigned char *elf, struct kernel *kernel)
{
	char name[NAME_BYTES + 16];
	const Elf64_Shdr *section;
	const unsigned char *at, *end;

	snprintf(name, sizeof(name), ".nv.info.%s", kernel->name);
	section = section_named(elf, name);
	if (!section)
		return;
	at = elf + section->sh_offset;
	end = at + section->sh_size;
	while (at + 4 <= end) {
		uint16_t value, ordinal, offset;
		uint32_t packed;

		memcpy(&value, at + 2, sizeof(value));
		if (at[0] == EIFMT_SVAL && at[1] == EIATTR_KPARAM_INFO && value >= 12) {
			memcpy(&ordinal, at + 8, sizeof(ordinal));
			memcpy(&offset, at + 10, sizeof(offset));
			memcpy(&packed, at + 12, sizeof(packed));
			if (ordinal < PARAMETERS) {
				kernel->parameters[ordinal] =
					(struct parameter){offset, packed >> 18};
				if (kernel->parameter_count <= ordinal)
					kernel->parameter_count = ordinal + 1u;
			}
		}
		at += 4 + (at[0] == EIFMT_SVAL ? value : 0);
	}
}

CUresult cubin_read(struct image *image, const unsigned char *elf)
{
	const Elf64_Ehdr *header = (const void *)elf;
	const Elf64_Shdr *symbols = NULL;
	const char *names;

	if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_CUDA)
		return CUDA_ERROR_INVALID_IMAGE;
	for (unsigned int i = 0; i < header->e_shnum && !symbols; i++) {
		if (section_at(elf, i)->sh_type == SHT_SYMTAB)
			symbols = section_at(elf, i);
	}
	if (!symbols)
		return CUDA_ERROR_INVALID_IMAGE;
	names = (const char *)elf + section_at(elf, symbols->sh_link)->sh_offset;
	for (size_t i = 0; i < symbols->sh_size / sizeof(Elf64_Sym); i++) {
		const Elf64_Sym *symbol =
			(const Elf64_Sym *)(const void *)(elf + symbols->sh_offset) + i;
		const char *name = names + symbol->st_name;

		if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
			(symbol->st_other & STO_CUDA_ENTRY)) {
			struct kernel *kernel = image_add_kernel(image, name, strlen(name));

			if (!kernel)
				return CUDA_ERROR_OUT_OF_MEMORY;
			read_parameters(elf, kernel);
		} else if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT &&
			   ELF64_ST_BIND(symbol->st_info) == STB_GLOBAL && symbol->st_shndx != 0) {
			if (!image_add_variable(image, name, strlen(name), symbol->st_size))
				return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	return CUDA_SUCCESS;
}

struct fat_header {
	uint32_t magic;
	uint16_t version;
	uint16_t header_bytes;
	uint64_t bytes;
};

struct fat_entry {
	uint16_t kind;
	uint16_t version;
	uint32_t header_bytes;
	uint64_t bytes;
	uint32_t reserved[6];
	uint64_t flags;
};

/* The first entry that can be read; compressed ones are left to the real driver. */
CUresult fatbin_read(struct image *image, const unsigned char *fat)
{
	const struct fat_header *header = (const void *)fat;
	const unsigned char *at = fat + header->header_bytes;
	const unsigned char *end = at + header->bytes;

	while (at + sizeof(struct fat_entry) <= end) {
		const struct fat_entry *entry = (const void *)at;
		const unsigned char *payload = at + entry->header_bytes;

		if (entry->header_bytes == 0)
			break;
		if (!(entry->flags & FAT_COMPRESSED) && entry->kind == FAT_CUBIN)
			return cubin_read(image, payload);
		if (!(entry->flags & FAT_COMPRESSED) && entry->kind == FAT_PTX)
			return ptx_read(image, (const char *)payload);
		at = payload + entry->bytes;
	}
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
