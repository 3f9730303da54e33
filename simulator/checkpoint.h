/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints: another process takes this one off its cards and puts it back. The caller's side
 * (checkpoint.c) writes a request into the device file; a thread of the process
 * (checkpoint_thread.c) carries it out, because the memory must become the process's own.
 */
#ifndef GPUSHARE_SIMULATOR_CHECKPOINT_H
#define GPUSHARE_SIMULATOR_CHECKPOINT_H

#include "cuda_checkpoint.h"
#include "device.h"

enum checkpoint_operation {
	CHECKPOINT_LOCK = 1,
	CHECKPOINT_CHECKPOINT = 2,
	CHECKPOINT_RESTORE = 3,
	CHECKPOINT_UNLOCK = 4,
};

/* The name of the thread, by which other processes find it. */
#define CHECKPOINT_THREAD "cuda-restore"

/* The first version with the API; and with restoring onto other cards. */
#define CHECKPOINT_CUDA 12080
#define CHECKPOINT_PAIRS_CUDA 13000

/* Start the thread; if it cannot be started, the process cannot be checkpointed. */
void checkpoint_serve(void);

/* checkpoint_memory.c. Whether the API takes this process at all. */
CUresult checkpoint_supported(void);
/* Copy the cards' memory to the host and give it back to the cards. */
CUresult checkpoint_evict(void);
/* The reverse. CUDA_ERROR_OUT_OF_MEMORY without room, with nothing changed. */
CUresult checkpoint_return(void);

/* checkpoint_move.c: make the cards of the request the process's own, before its memory returns. */
CUresult checkpoint_move(const struct sim_checkpoint *request);

/* Whether this process holds memory or a context on the card, or did when it was checkpointed. */
static inline bool checkpoint_concerns(const struct sim_card *card)
{
	const struct sim_share *own = &card->shares[tag_process(process_tag())];

	return own->contexts > 0 || own->evicted_contexts > 0;
}

#endif
