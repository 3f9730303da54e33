/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <unistd.h>

/* One less, if there is any: of several concurrent calls, each takes its own. */
static bool count_down(_Atomic uint32_t *count)
{
	uint32_t left = atomic_load_explicit(count, memory_order_relaxed);

	while (left > 0) {
		if (atomic_compare_exchange_weak(count, &left, left - 1))
			return true;
	}
	return false;
}

CUresult fault_next(const struct sim_card *card)
{
	struct sim_faults *faults = &device->faults[card_place(card)];

	/* Of a new context; in an existing one, the call did not get this far. */
	if (fault_of_card(card) != CUDA_SUCCESS)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (atomic_load_explicit(&faults->allocations, memory_order_relaxed) == 0)
		return CUDA_SUCCESS;
	if (faults->process != 0 && faults->process != (uint32_t)getpid())
		return CUDA_SUCCESS;
	if (count_down(&faults->after) || !count_down(&faults->allocations))
		return CUDA_SUCCESS;
	return (CUresult)faults->error;
}

CUresult fault_of_events(const struct sim_card *card)
{
	const struct sim_faults *faults = &device->faults[card_place(card)];

	if (fault_of_card(card) != CUDA_SUCCESS)
		return fault_of_card(card);
	return (CUresult)atomic_load_explicit(&faults->event_error, memory_order_relaxed);
}

/* NVML_COMPUTEMODE_*, and CU_COMPUTEMODE_*: a third one, for one thread, is long gone. */
enum { MODE_PROHIBITED = 2, MODE_EXCLUSIVE_PROCESS = 3 };

bool compute_mode_forbids(struct sim_card *card)
{
	uint32_t mode = atomic_load(&device->faults[card_place(card)].compute_mode);
	uint32_t own = tag_process(process_tag());

	if (mode != MODE_EXCLUSIVE_PROCESS || card->shares[own].mps_client)
		return mode == MODE_PROHIBITED;
	card_reap(card);
	for (uint32_t i = 0; i < atomic_load(&device->processes_high); i++) {
		if (i != own && card->shares[i].contexts > 0 && !card->shares[i].mps_client)
			return true;
	}
	return false;
}
