/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads what a cubin declares. It is an ELF file of machine EM_CUDA: kernels are function symbols
 * marked as entries, their parameters are attributes in the section .nv.info.NAME, variables are
 * object symbols. Layouts as readelf shows them for ptxas output.
 */
#include "reader.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#ifndef EM_CUDA
#define EM_CUDA 190
#endif
#define STO_CUDA_MANAGED 0x04
#define STO_CUDA_ENTRY 0x10
#define EIFMT_SVAL 4
#define EIATTR_KPARAM_INFO 0x17

struct cubin {
	struct extent file;
	struct extent sections;
	struct extent names; /* of sections */
	uint64_t section_count;
	uint16_t section_bytes;
};

static bool section_at(Elf64_Shdr *section, const struct cubin *cubin, uint64_t index)
{
	return index < cubin->section_count &&
	       extent_copy(
		       section, &cubin->sections, index * cubin->section_bytes, sizeof(*section));
}

static bool section_part(struct extent *part, const struct cubin *cubin, const Elf64_Shdr *section)
{
	return section->sh_type != SHT_NOBITS &&
	       extent_part(part, &cubin->file, section->sh_offset, section->sh_size);
}

static bool section_named(Elf64_Shdr *section, const struct cubin *cubin, const char *name)
{
	for (uint64_t i = 0; section_at(section, cubin, i); i++) {
		const char *own = extent_string(&cubin->names, section->sh_name);
		if (own && strcmp(own, name) == 0)
			return true;
	}
	return false;
}

/* Counts that are too large for the header are in the first section (the ELF specification, e_shnum
 * and e_shstrndx). */
static bool cubin_open(struct cubin *cubin, const struct extent *file)
{
	Elf64_Ehdr header;
	Elf64_Shdr first, names;
	uint64_t bytes;

	if (!extent_copy(&header, file, 0, sizeof(header)) ||
		header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_CUDA ||
		header.e_shentsize < sizeof(first) ||
		!extent_copy(&first, file, header.e_shoff, sizeof(first)))
		return false;
	*cubin = (struct cubin){.file = *file,
		.section_count = header.e_shnum ? header.e_shnum : first.sh_size,
		.section_bytes = header.e_shentsize};
	return !__builtin_mul_overflow(cubin->section_count, cubin->section_bytes, &bytes) &&
	       extent_part(&cubin->sections, file, header.e_shoff, bytes) &&
	       section_at(&names, cubin,
		       header.e_shstrndx == SHN_XINDEX ? first.sh_link : header.e_shstrndx) &&
	       section_part(&cubin->names, cubin, &names);
}

static bool begins_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The sections that the driver loads onto the card. Shared and local memory have sections too,
 * which describe what a launch needs. */
static CUresult declare_sections(struct declared_bytes *declared, const struct cubin *cubin)
{
	Elf64_Shdr section;

	for (uint64_t i = 0; section_at(&section, cubin, i); i++) {
		const char *name = extent_string(&cubin->names, section.sh_name);
		if (!name || !(section.sh_flags & SHF_ALLOC))
			continue;
		if (section.sh_type != SHT_NOBITS &&
			!extent_holds(&cubin->file, section.sh_offset, section.sh_size))
			return CUDA_ERROR_INVALID_IMAGE;
		if (section.sh_flags & SHF_EXECINSTR)
			declared->code = sum(declared->code, section.sh_size);
		else if (begins_with(name, ".nv.global"))
			declared->globals = sum(declared->globals, section.sh_size);
		else if (begins_with(name, ".nv.constant"))
			declared->constants = sum(declared->constants, section.sh_size);
	}
	return CUDA_SUCCESS;
}

/* Attributes are a format byte, a kind byte, and either a 16-bit value or that many bytes. */
static void read_parameters(struct kernel *kernel, const struct extent *attributes)
{
	const unsigned char *at = attributes->at;
	uint64_t left = attributes->size;

	while (left >= 4) {
		uint16_t value, ordinal, offset;
		uint32_t packed;
		memcpy(&value, at + 2, sizeof(value));
		const uint64_t step = 4 + (at[0] == EIFMT_SVAL ? (uint64_t)value : 0);
		if (step > left)
			return;
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
		at += step;
		left -= step;
	}
}

static CUresult add_kernel(struct image *image, const struct cubin *cubin, const char *name)
{
	char info[NAME_BYTES + 16];
	Elf64_Shdr section;
	struct extent attributes;
	struct kernel *kernel = image_add_kernel(image, name, strlen(name));

	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	snprintf(info, sizeof(info), ".nv.info.%s", kernel->name);
	if (section_named(&section, cubin, info) && section_part(&attributes, cubin, &section))
		read_parameters(kernel, &attributes);
	return CUDA_SUCCESS;
}

static bool is_variable(const Elf64_Sym *symbol)
{
	return ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_shndx != SHN_UNDEF;
}

static CUresult read_symbol(struct reader *reader, const struct cubin *cubin,
	const Elf64_Sym *symbol, const struct extent *names)
{
	const bool managed = symbol->st_other & STO_CUDA_MANAGED;

	if (is_variable(symbol) && managed)
		reader->declared.managed = sum(reader->declared.managed, symbol->st_size);
	if (!reader->image)
		return CUDA_SUCCESS;
	const char *name = extent_string(names, symbol->st_name);
	if (!name)
		return CUDA_ERROR_INVALID_IMAGE;
	if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && (symbol->st_other & STO_CUDA_ENTRY))
		return add_kernel(reader->image, cubin, name);
	if (is_variable(symbol) && ELF64_ST_BIND(symbol->st_info) == STB_GLOBAL) {
		struct variable *variable =
			image_add_variable(reader->image, name, strlen(name), symbol->st_size);
		if (!variable)
			return CUDA_ERROR_OUT_OF_MEMORY;
		variable->managed = managed;
	}
	return CUDA_SUCCESS;
}

static CUresult read_symbols(struct reader *reader, const struct cubin *cubin)
{
	Elf64_Shdr section = {.sh_type = SHT_NULL}, strings;
	struct extent symbols, names;
	CUresult result = CUDA_SUCCESS;

	for (uint64_t i = 0; section_at(&section, cubin, i); i++)
		if (section.sh_type == SHT_SYMTAB)
			break;
	if (section.sh_type != SHT_SYMTAB || !section_part(&symbols, cubin, &section) ||
		!section_at(&strings, cubin, section.sh_link) ||
		!section_part(&names, cubin, &strings))
		return CUDA_ERROR_INVALID_IMAGE;
	for (uint64_t at = 0; result == CUDA_SUCCESS && at + sizeof(Elf64_Sym) <= symbols.size;
		at += sizeof(Elf64_Sym)) {
		Elf64_Sym symbol;
		extent_copy(&symbol, &symbols, at, sizeof(symbol));
		result = read_symbol(reader, cubin, &symbol, &names);
	}
	return result;
}

CUresult cubin_read(struct reader *reader, const struct extent *data)
{
	struct cubin cubin;
	struct declared_bytes *declared = &reader->declared;

	if (!cubin_open(&cubin, data))
		return CUDA_ERROR_INVALID_IMAGE;
	CUresult result = declare_sections(declared, &cubin);
	if (result == CUDA_SUCCESS)
		result = read_symbols(reader, &cubin);
	/* They are stored in the other sections. */
	declared->globals -=
		declared->managed < declared->globals ? declared->managed : declared->globals;
	return result;
}
