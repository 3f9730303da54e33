/* SPDX-License-Identifier: Apache-2.0 */
#include "made.h"

#include <elf.h>
#include <string.h>

enum { TEXT = 1, CONSTANT, GLOBAL, SHARED, ATTRIBUTES, SYMBOLS, STRINGS, NAMES, SECTIONS };

static const char names[] = "\0.text.k\0.nv.constant3\0.nv.global\0.nv.shared.k\0.nv.info.k\0"
			    ".symtab\0.strtab\0.shstrtab";
static const char strings[] = "\0k\0table\0shared";

/* Where `name` stands in a table of strings. */
static uint32_t place(const char *table, size_t bytes, const char *name)
{
	for (size_t at = 1; at < bytes; at += strlen(table + at) + 1)
		if (strcmp(table + at, name) == 0)
			return (uint32_t)at;
	return 0;
}

static void add(unsigned char *elf, size_t *end, Elf64_Shdr *section, const void *bytes)
{
	section->sh_offset = *end;
	if (section->sh_type == SHT_NOBITS)
		return;
	if (bytes)
		memcpy(elf + *end, bytes, section->sh_size);
	*end += (section->sh_size + 7) / 8 * 8;
}

static Elf64_Shdr section(const char *name, uint32_t type, uint64_t flags, uint64_t bytes)
{
	return (Elf64_Shdr){.sh_name = place(names, sizeof(names), name),
		.sh_type = type,
		.sh_flags = flags,
		.sh_size = bytes};
}

size_t made_cubin(unsigned char *to, uint64_t scale)
{
	static const unsigned char attributes[] = {/* the first, 8 bytes at 0; the second, 4 at 8 */
		4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8 << 2, 0, 4, 0x17, 12, 0, 0, 0, 0, 0,
		1, 0, 8, 0, 0, 0, 4 << 2, 0};
	const Elf64_Sym symbols[] = {
		{.st_name = 0},
		{place(strings, sizeof(strings), "k"), ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0x10,
			TEXT, 0, MADE_CODE},
		{place(strings, sizeof(strings), "table"), ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 0,
			GLOBAL, 0, MADE_GLOBALS * scale},
		{place(strings, sizeof(strings), "shared"), ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
			4, GLOBAL, MADE_GLOBALS * scale, MADE_MANAGED},
	};
	Elf64_Shdr sections[SECTIONS] = {
		[TEXT] = section(".text.k", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, MADE_CODE),
		[CONSTANT] = section(".nv.constant3", SHT_PROGBITS, SHF_ALLOC, MADE_CONSTANTS),
		[GLOBAL] = section(".nv.global", SHT_NOBITS, SHF_ALLOC | SHF_WRITE,
			MADE_GLOBALS * scale + MADE_MANAGED),
		[SHARED] = section(".nv.shared.k", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 49152),
		[ATTRIBUTES] = section(".nv.info.k", SHT_LOPROC, 0, sizeof(attributes)),
		[SYMBOLS] = section(".symtab", SHT_SYMTAB, 0, sizeof(symbols)),
		[STRINGS] = section(".strtab", SHT_STRTAB, 0, sizeof(strings)),
		[NAMES] = section(".shstrtab", SHT_STRTAB, 0, sizeof(names)),
	};
	static const void *const contents[SECTIONS] = {
		[ATTRIBUTES] = attributes, [STRINGS] = strings, [NAMES] = names};
	Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1, 0x41},
		.e_type = ET_EXEC,
		.e_machine = 190,
		.e_ehsize = sizeof(header),
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = SECTIONS,
		.e_shstrndx = NAMES};
	size_t end = sizeof(header);

	memset(to, 0, MADE_BYTES);
	sections[SYMBOLS].sh_link = STRINGS;
	for (size_t i = 1; i < SECTIONS; i++)
		add(to, &end, &sections[i], i == SYMBOLS ? symbols : contents[i]);
	header.e_shoff = end;
	memcpy(to, &header, sizeof(header));
	memcpy(to + end, sections, sizeof(sections));
	return end + sizeof(sections);
}

static void put(unsigned char *to, uint64_t value, size_t bytes)
{
	memcpy(to, &value, bytes);
}

size_t made_fatbin(unsigned char *to, const struct made_entry *entries, size_t count)
{
	size_t end = 16;

	memset(to, 0, MADE_BYTES);
	for (size_t i = 0; i < count; i++) {
		unsigned char *entry = to + end;
		put(entry, entries[i].kind, 2);
		put(entry + 2, 0x101, 2);
		put(entry + 4, 64, 4);
		put(entry + 8, entries[i].bytes, 8);
		put(entry + 28, entries[i].architecture, 4);
		put(entry + 40, 0x11 | entries[i].flags, 8);
		put(entry + 56, entries[i].decompressed_bytes, 8);
		memcpy(entry + 64, entries[i].payload, entries[i].bytes);
		end += 64 + entries[i].bytes;
	}
	put(to, 0xba55ed50, 4);
	put(to + 4, 1, 2);
	put(to + 6, 16, 2);
	put(to + 8, end - 16, 8);
	return end;
}
