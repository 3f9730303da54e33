/* SPDX-License-Identifier: Apache-2.0 */
#include "evicted.h"

#include "channel/channel.h"
#include "share/clock.h"
#include "share/futex.h"

/* Between two requests of a process: gpushared may have been restarted, or there is no room yet. */
#define ASK_AGAIN_NS UINT64_C(1000000000)

static _Atomic uint32_t waiting;
static _Atomic uint64_t asked_ns;
static _Thread_local bool never_asks;

void evicted_watch(void)
{
	gate_watch_eviction(true);
}

void evicted_never_ask(void)
{
	never_asks = true;
}

/* One of the threads that wait asks for all of them. */
static void ask(bool is_first)
{
	const uint64_t now_ns = clock_ns();
	uint64_t last_ns = atomic_load(&asked_ns);

	if ((is_first || now_ns - last_ns >= ASK_AGAIN_NS) &&
		atomic_compare_exchange_strong(&asked_ns, &last_ns, now_ns))
		channel_ask_for_restore();
}

void evicted_wait(void)
{
	const _Atomic uint32_t *word = atomic_load(&gate_line.evicted);
	bool is_first = !never_asks && atomic_fetch_add(&waiting, 1) == 0;
	uint32_t seen;

	while ((seen = atomic_load(word)) != 0) {
		if (!never_asks)
			ask(is_first);
		is_first = false;
		futex_wait(word, seen, clock_ns() + ASK_AGAIN_NS, FUTEX_OF_ALL);
	}
	if (!never_asks)
		atomic_fetch_sub(&waiting, 1);
}

/* The driver refuses a child that was forked after cuInit, so there is nothing to wait for. */
void evicted_after_fork_in_child(void)
{
	gate_watch_eviction(false);
	atomic_store(&waiting, 0);
}

/* Where trampolines go that must wait: with the address to continue at in a register, and all
 * arguments where the caller has put them. */
#if defined(__x86_64__)
__asm__(".text\n"
	".p2align 4\n"
	".globl evicted_detour\n"
	".hidden evicted_detour\n"
	".type evicted_detour, %function\n"
	"evicted_detour:\n"
	"\tpushq %rdi\n"
	"\tpushq %rsi\n"
	"\tpushq %rdx\n"
	"\tpushq %rcx\n"
	"\tpushq %r8\n"
	"\tpushq %r9\n"
	"\tpushq %rax\n"
	"\tpushq %r10\n"
	"\tpushq %r11\n"
	"\tsubq $128, %rsp\n" /* with the return address, a multiple of 16 */
	"\tmovups %xmm0, (%rsp)\n"
	"\tmovups %xmm1, 16(%rsp)\n"
	"\tmovups %xmm2, 32(%rsp)\n"
	"\tmovups %xmm3, 48(%rsp)\n"
	"\tmovups %xmm4, 64(%rsp)\n"
	"\tmovups %xmm5, 80(%rsp)\n"
	"\tmovups %xmm6, 96(%rsp)\n"
	"\tmovups %xmm7, 112(%rsp)\n"
	"\tcall evicted_wait\n"
	"\tmovups (%rsp), %xmm0\n"
	"\tmovups 16(%rsp), %xmm1\n"
	"\tmovups 32(%rsp), %xmm2\n"
	"\tmovups 48(%rsp), %xmm3\n"
	"\tmovups 64(%rsp), %xmm4\n"
	"\tmovups 80(%rsp), %xmm5\n"
	"\tmovups 96(%rsp), %xmm6\n"
	"\tmovups 112(%rsp), %xmm7\n"
	"\taddq $128, %rsp\n"
	"\tpopq %r11\n"
	"\tpopq %r10\n"
	"\tpopq %rax\n"
	"\tpopq %r9\n"
	"\tpopq %r8\n"
	"\tpopq %rcx\n"
	"\tpopq %rdx\n"
	"\tpopq %rsi\n"
	"\tpopq %rdi\n"
	"\tjmp *%r11\n"
	".size evicted_detour, . - evicted_detour\n");
#elif defined(__aarch64__)
__asm__(".text\n"
	".p2align 4\n"
	".globl evicted_detour\n"
	".hidden evicted_detour\n"
	".type evicted_detour, %function\n"
	"evicted_detour:\n"
	"\tstp x29, x30, [sp, #-224]!\n"
	"\tmov x29, sp\n"
	"\tstp x0, x1, [sp, #16]\n"
	"\tstp x2, x3, [sp, #32]\n"
	"\tstp x4, x5, [sp, #48]\n"
	"\tstp x6, x7, [sp, #64]\n"
	"\tstp x8, x16, [sp, #80]\n"
	"\tstp q0, q1, [sp, #96]\n"
	"\tstp q2, q3, [sp, #128]\n"
	"\tstp q4, q5, [sp, #160]\n"
	"\tstp q6, q7, [sp, #192]\n"
	"\tbl evicted_wait\n"
	"\tldp x0, x1, [sp, #16]\n"
	"\tldp x2, x3, [sp, #32]\n"
	"\tldp x4, x5, [sp, #48]\n"
	"\tldp x6, x7, [sp, #64]\n"
	"\tldp x8, x16, [sp, #80]\n"
	"\tldp q0, q1, [sp, #96]\n"
	"\tldp q2, q3, [sp, #128]\n"
	"\tldp q4, q5, [sp, #160]\n"
	"\tldp q6, q7, [sp, #192]\n"
	"\tldp x29, x30, [sp], #224\n"
	"\tbr x16\n"
	".size evicted_detour, . - evicted_detour\n");
#endif
