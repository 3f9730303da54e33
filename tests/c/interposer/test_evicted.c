/* SPDX-License-Identifier: Apache-2.0
 *
 * A trampoline of an evicted tenant waits, and then passes every argument on: those in registers of
 * both kinds, those on the stack, and the number of vector registers of a variadic call. The stub
 * of the daemon overwrites every register that a function may.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "channel/channel.h"
#include "cuda/evicted.h"
#include "expect.h"
#include "trampoline.h"

static _Atomic uint32_t evicted;
static _Atomic unsigned requests;

struct gate_line gate_line = {.evicted = &evicted};

_Static_assert(offsetof(struct gate_line, evicted) == 40, "as trampoline.h reads it");

void gate_watch_eviction(bool watch)
{
	atomic_store(&gate_line.evicted, watch ? &evicted : NULL);
}

static void overwrite_registers(void)
{
#if defined(__x86_64__)
	__asm__ volatile("mov $-1, %%rax; mov %%rax, %%rdi; mov %%rax, %%rsi; mov %%rax, %%rdx;"
			 "mov %%rax, %%rcx; mov %%rax, %%r8; mov %%rax, %%r9; mov %%rax, %%r10;"
			 "mov %%rax, %%r11; pcmpeqd %%xmm0, %%xmm0; movaps %%xmm0, %%xmm1;"
			 "movaps %%xmm0, %%xmm2; movaps %%xmm0, %%xmm3; movaps %%xmm0, %%xmm4;"
			 "movaps %%xmm0, %%xmm5; movaps %%xmm0, %%xmm6; movaps %%xmm0, %%xmm7" ::
				 : "rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11",
		"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "memory");
#elif defined(__aarch64__)
	__asm__ volatile("mov x0, #-1; mov x1, x0; mov x2, x0; mov x3, x0; mov x4, x0; mov x5, x0;"
			 "mov x6, x0; mov x7, x0; mov x8, x0; mov x16, x0; mov x17, x0;"
			 "movi v0.2d, #0; movi v1.2d, #0; movi v2.2d, #0; movi v3.2d, #0;"
			 "movi v4.2d, #0; movi v5.2d, #0; movi v6.2d, #0; movi v7.2d, #0" ::
				 : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x16",
		"x17", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "memory");
#endif
}

/* The daemon restores at once. */
void channel_ask_for_restore(void)
{
	atomic_fetch_add(&requests, 1);
	atomic_store(&evicted, 0);
	overwrite_registers();
}

TRAMPOLINE_TABLE(addresses)
WAITING_TRAMPOLINE(addresses, passed)
WAITING_TRAMPOLINE(addresses, variadic)

typedef double passed_type(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	uint64_t, uint64_t, double, double, double, double, double, double, double, double, double);
passed_type passed;
double variadic(int count, ...);

/* Each argument has a weight of its own. */
static double sum(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
	uint64_t g, uint64_t h, uint64_t i, double j, double k, double l, double m, double n,
	double o, double p, double q, double r)
{
	const uint64_t whole[] = {a, b, c, d, e, f, g, h, i};
	const double real[] = {j, k, l, m, n, o, p, q, r};
	double total = 0;

	for (int at = 0; at < 9; at++)
		total = total * 10 + (double)whole[at];
	for (int at = 0; at < 9; at++)
		total += real[at] * (at + 1);
	return total;
}

static double sum_of(int count, ...)
{
	va_list values;
	double total = 0;

	va_start(values, count);
	for (int at = 0; at < count; at++)
		total = total * 10 + va_arg(values, double);
	va_end(values);
	return total;
}

#define ARGUMENTS 1, 2, 3, 4, 5, 6, 7, 8, 9, .1, .2, .3, .4, .5, .6, .7, .8, .9

static void expect_all(unsigned wanted)
{
	const double expected = sum(ARGUMENTS);

	EXPECT(passed(ARGUMENTS) == expected);
	EXPECT_EQUAL(requests, wanted);
}

int main(void)
{
	real_passed = (void (*)(void))sum;
	real_variadic = (void (*)(void))sum_of;
	expect_all(0);
	atomic_store(&evicted, 7);
	expect_all(1);
	expect_all(1);
	atomic_store(&evicted, 1);
	EXPECT(variadic(9, 1., 2., 3., 4., 5., 6., 7., 8., 9.) == 123456789.);
	EXPECT_EQUAL(requests, 2);
	/* REAL() of a mediated function. */
	atomic_store(&evicted, 1);
	evicted_look();
	EXPECT_EQUAL(requests, 3);
	EXPECT(!is_evicted());
	puts("every argument has arrived");
	return 0;
}
