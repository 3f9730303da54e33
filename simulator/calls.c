/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include "driver.h"
#include "share/futex.h"

#define LINES 64

/* One line for each of a few threads: calls of different threads do not slow each other down. */
static struct {
	_Alignas(64) _Atomic uint64_t count;
} in_progress[LINES];
static _Atomic uint32_t closed; /* futex */
static _Thread_local uint32_t depth __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t line __attribute__((tls_model("initial-exec"))); /* plus 1 */

static uint32_t own_line(void)
{
	static _Atomic uint32_t threads;

	if (line == 0)
		line = atomic_fetch_add(&threads, 1) % LINES + 1;
	return line - 1;
}

/* The count is raised before `closed` is read, and calls_close does it the other way round: one of
 * the two sees the other. */
bool call_begin(void)
{
	if (driver_status() != CUDA_SUCCESS)
		return false;
	if (depth++ > 0)
		return true;
	const uint32_t own = own_line();

	atomic_fetch_add(&in_progress[own].count, 1);
	while (__builtin_expect(atomic_load(&closed) != 0, 0)) {
		atomic_fetch_sub(&in_progress[own].count, 1);
		while (atomic_load(&closed))
			futex_wait(&closed, 1, UINT64_MAX, FUTEX_OF_PROCESS);
		atomic_fetch_add(&in_progress[own].count, 1);
	}
	return true;
}

void call_end(const bool *counted)
{
	if (*counted && --depth == 0)
		atomic_fetch_sub_explicit(&in_progress[own_line()].count, 1, memory_order_release);
}

void calls_close(void)
{
	atomic_store(&closed, 1);
}

void calls_open(void)
{
	atomic_store(&closed, 0);
	futex_wake_all(&closed, FUTEX_OF_PROCESS);
}

bool calls_are_in_progress(void)
{
	for (uint32_t i = 0; i < LINES; i++) {
		if (atomic_load(&in_progress[i].count) != 0)
			return true;
	}
	return false;
}
