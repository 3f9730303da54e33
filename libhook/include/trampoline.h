/* SPDX-License-Identifier: Apache-2.0
 *
 * A symbol of a filter library that nobody mediates: control goes on into the real library, with
 * every register and the stack as the caller left them. The symbol is weak, so that a C function of
 * the same name takes its place; the trampoline keeps a second, hidden name by which that shows.
 */
#ifndef GPUSHARE_TRAMPOLINE_H
#define GPUSHARE_TRAMPOLINE_H

#if defined(__x86_64__)
#define TRAMPOLINE_JUMP(symbol) "\tjmp *real_" #symbol "(%rip)\n"
#define TRAMPOLINE_LOOK(symbol)                                                                    \
	"\tmovq gate_word(%rip), %r11\n"                                                           \
	"\tcmpl $0, (%r11)\n"                                                                      \
	"\tjne " #symbol "_gated\n"
#elif defined(__aarch64__)
/* x16 is the register that a call may lose on its way between libraries (AAPCS64 6.1.1);
 * hint 34 is `bti c`. */
#define TRAMPOLINE_JUMP(symbol)                                                                    \
	"\thint #34\n"                                                                             \
	"\tadrp x16, real_" #symbol "\n"                                                           \
	"\tldr x16, [x16, #:lo12:real_" #symbol "]\n"                                              \
	"\tbr x16\n"
#define TRAMPOLINE_LOOK(symbol)                                                                    \
	"\thint #34\n"                                                                             \
	"\tadrp x16, gate_word\n"                                                                  \
	"\tldr x16, [x16, #:lo12:gate_word]\n"                                                     \
	"\tldr w16, [x16]\n"                                                                       \
	"\tcbnz w16, " #symbol "_gated\n"
#else
#error "no trampoline for this architecture"
#endif

#define TRAMPOLINE(symbol)                                                                         \
	__attribute__((visibility("hidden"))) void (*real_##symbol)(void);                         \
	__asm__(".text\n"                                                                          \
		".p2align 4\n"                                                                     \
		".weak " #symbol "\n"                                                              \
		".type " #symbol ", %function\n"                                                   \
		".globl trampoline_" #symbol "\n"                                                  \
		".hidden trampoline_" #symbol "\n"                                                 \
		".type trampoline_" #symbol ", %function\n" #symbol ":\n"                          \
		"trampoline_" #symbol ":\n" TRAMPOLINE_JUMP(symbol) ".size " #symbol               \
								    ", . - " #symbol "\n");

/* A symbol that goes on into the real library while the word at gate_word is 0, which is
 * GPUSHARE_GATE_OPEN, and else into `symbol`_gated. The words are read as relaxed atomics are. */
#define GATE_TRAMPOLINE(symbol)                                                                    \
	__asm__(".text\n"                                                                          \
		".p2align 6\n"                                                                     \
		".globl " #symbol "\n"                                                             \
		".type " #symbol ", %function\n" #symbol ":\n" TRAMPOLINE_LOOK(symbol)             \
			TRAMPOLINE_JUMP(symbol) ".size " #symbol ", . - " #symbol "\n");

#endif
