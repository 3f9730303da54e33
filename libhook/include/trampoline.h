/* SPDX-License-Identifier: Apache-2.0
 *
 * A symbol of an interposer library that is not mediated: control passes to the real library with
 * all registers and the stack unchanged. The symbol is weak, so that a C function of the same name
 * replaces it; the trampoline also has a hidden name, which reveals whether it was replaced.
 *
 * The addresses are a table of distances, in the order of the trampolines: a table of pointers
 * would be relocated in every process that loads the library.
 */
#ifndef GPUSHARE_TRAMPOLINE_H
#define GPUSHARE_TRAMPOLINE_H

#if defined(__x86_64__)
#define TRAMPOLINE_JUMP(symbol) "\tjmp *real_" #symbol "(%rip)\n"
#define TRAMPOLINE_ENTER "8:\n"
#define TRAMPOLINE_EVICTED                                                                         \
	"\tmovq gate_line+40(%rip), %r11\n"                                                        \
	"\tcmpl $0, (%r11)\n"                                                                      \
	"\tjne 9f\n"
#define TRAMPOLINE_WAIT                                                                            \
	"9:\tleaq 8b(%rip), %r11\n"                                                                \
	"\tjmp evicted_detour\n"
#define TRAMPOLINE_LOOK(symbol)                                                                    \
	"\tmovq gate_line(%rip), %r11\n"                                                           \
	"\tcmpl $0, (%r11)\n"                                                                      \
	"\tjne 1f\n"
#define TRAMPOLINE_LOOK_AT_EACH(symbol)                                                            \
	"1:\tmovl gate_line+16(%rip), %r10d\n"                                                     \
	"\ttestl %r10d, %r10d\n"                                                                   \
	"\tje " #symbol "_gated\n"                                                                 \
	"\tmovq gate_line+8(%rip), %r11\n"                                                         \
	"2:\tcmpl $0, (%r11)\n"                                                                    \
	"\tjne " #symbol "_gated\n"                                                                \
	"\taddq $4096, %r11\n"                                                                     \
	"\tdecl %r10d\n"                                                                           \
	"\tjne 2b\n"
#elif defined(__aarch64__)
/* x16 is the register that a call between libraries may clobber (AAPCS64 6.1.1); hint 34 is `bti
 * c`. */
#define TRAMPOLINE_ENTER "8:\thint #34\n"
#define TRAMPOLINE_JUMP(symbol)                                                                    \
	"\tadrp x16, real_" #symbol "\n"                                                           \
	"\tldr x16, [x16, #:lo12:real_" #symbol "]\n"                                              \
	"\tbr x16\n"
#define TRAMPOLINE_EVICTED                                                                         \
	"\tadrp x16, gate_line\n"                                                                  \
	"\tldr x16, [x16, #:lo12:gate_line+40]\n"                                                  \
	"\tldr w16, [x16]\n"                                                                       \
	"\tcbnz w16, 9f\n"
#define TRAMPOLINE_WAIT                                                                            \
	"9:\tadr x16, 8b\n"                                                                        \
	"\tb evicted_detour\n"
#define TRAMPOLINE_LOOK(symbol)                                                                    \
	"\tadrp x16, gate_line\n"                                                                  \
	"\tldr x16, [x16, #:lo12:gate_line]\n"                                                     \
	"\tldr w16, [x16]\n"                                                                       \
	"\tcbnz w16, 1f\n"
#define TRAMPOLINE_LOOK_AT_EACH(symbol)                                                            \
	"1:\tadrp x16, gate_line\n"                                                                \
	"\tldr w17, [x16, #:lo12:gate_line+16]\n"                                                  \
	"\tcbz w17, " #symbol "_gated\n"                                                           \
	"\tadrp x16, gate_line\n"                                                                  \
	"\tldr x16, [x16, #:lo12:gate_line+8]\n"                                                   \
	"2:\tldr w9, [x16]\n"                                                                      \
	"\tcbnz w9, " #symbol "_gated\n"                                                           \
	"\tadd x16, x16, #4096\n"                                                                  \
	"\tsubs w17, w17, #1\n"                                                                    \
	"\tb.ne 2b\n"
#else
#error "no trampoline for this architecture"
#endif

#include <stdint.h>

/* Each is the distance from its own place to what it names. */
struct trampoline {
	int32_t exported; /* the library's function: the trampoline, or a function that replaces it
			   */
	int32_t own;	  /* the trampoline itself */
	int32_t real;	  /* where the address of the real library's function is */
};

#define TRAMPOLINE_TABLE(table)                                                                    \
	__asm__(".section .rodata." #table ",\"a\"\n"                                              \
		".p2align 2\n"                                                                     \
		".globl " #table "\n"                                                              \
		".hidden " #table "\n" #table ":\n"                                                \
		".text\n");                                                                        \
	__attribute__((visibility("hidden"))) extern const struct trampoline table[];

/* What the trampoline does: `code`, which ends in a jump. */
#define TRAMPOLINE_OF(table, symbol, code)                                                         \
	__attribute__((visibility("hidden"))) void (*real_##symbol)(void);                         \
	__asm__(".text\n"                                                                          \
		".p2align 5\n"                                                                     \
		".weak " #symbol "\n"                                                              \
		".type " #symbol ", %function\n"                                                   \
		".globl trampoline_" #symbol "\n"                                                  \
		".hidden trampoline_" #symbol "\n"                                                 \
		".type trampoline_" #symbol ", %function\n" #symbol ":\n"                          \
		"trampoline_" #symbol ":\n" TRAMPOLINE_ENTER code ".size " #symbol                 \
		", . - " #symbol "\n"                                                              \
		".section .rodata." #table ",\"a\"\n"                                              \
		".long " #symbol " - .\n"                                                          \
		".long trampoline_" #symbol " - .\n"                                               \
		".long real_" #symbol " - .\n"                                                     \
		".text\n");

#define TRAMPOLINE(table, symbol) TRAMPOLINE_OF(table, symbol, TRAMPOLINE_JUMP(symbol))

/* One that continues while the word that gate_line + 40 points to is 0, and otherwise waits in
 * evicted_detour (cuda/evicted.c) first. */
#define WAITING_TRAMPOLINE(table, symbol)                                                          \
	TRAMPOLINE_OF(table, symbol, TRAMPOLINE_EVICTED TRAMPOLINE_JUMP(symbol) TRAMPOLINE_WAIT)

/* What a distance of the table leads to. */
static inline void *trampoline_at(const int32_t *distance)
{
	uintptr_t address = (uintptr_t)distance + (uintptr_t)(intptr_t)*distance;

	/* What is there is not part of the table, whatever the compiler concludes. */
	__asm__("" : "+r"(address));
	return (void *)address;
}

/* A symbol that continues in the real library while the word that gate_line starts with is 0
 * (GPUSHARE_GATE_OPEN), and otherwise in `symbol`_gated. With several cards, it continues in the
 * real library while the words of all of them are 0: as many as the number at gate_line + 16, the
 * first at the address at gate_line + 8, each on a page of its own. The words are read like relaxed
 * atomics. Before that, it waits like a WAITING_TRAMPOLINE. */
#define GATE_TRAMPOLINE(symbol)                                                                    \
	__asm__(".text\n"                                                                          \
		".p2align 6\n"                                                                     \
		".globl " #symbol "\n"                                                             \
		".type " #symbol ", %function\n" #symbol                                           \
		":\n" TRAMPOLINE_ENTER TRAMPOLINE_EVICTED TRAMPOLINE_LOOK(symbol) TRAMPOLINE_JUMP( \
			symbol) TRAMPOLINE_LOOK_AT_EACH(symbol) TRAMPOLINE_JUMP(symbol)            \
			TRAMPOLINE_WAIT ".size " #symbol ", . - " #symbol "\n");

#endif
