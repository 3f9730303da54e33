/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's checkpoint API, as cuda.h of CUDA 13.0 declares it. The structures have 64 bytes in
 * every version; what a version does not know must be 0.
 */
#ifndef GPUSHARE_CUDA_CHECKPOINT_H
#define GPUSHARE_CUDA_CHECKPOINT_H

#include "cuda_driver.h"

typedef enum CUprocessState {
	CU_PROCESS_STATE_RUNNING = 0,
	CU_PROCESS_STATE_LOCKED = 1,
	CU_PROCESS_STATE_CHECKPOINTED = 2,
	CU_PROCESS_STATE_FAILED = 3, /* cannot be corrected */
} CUprocessState;

typedef struct CUcheckpointLockArgs {
	unsigned int timeoutMs; /* 0: none */
	unsigned int reserved0;
	uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct CUcheckpointCheckpointArgs {
	uint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct CUcheckpointGpuPair {
	CUuuid oldUuid;
	CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct CUcheckpointRestoreArgs {
	CUcheckpointGpuPair *gpuPairs; /* CUDA 13.0 */
	unsigned int gpuPairsCount;
	unsigned int reserved0;
	uint64_t reserved1[6];
} CUcheckpointRestoreArgs;

typedef struct CUcheckpointUnlockArgs {
	uint64_t reserved[8];
} CUcheckpointUnlockArgs;

_Static_assert(sizeof(CUcheckpointLockArgs) == 64 && sizeof(CUcheckpointCheckpointArgs) == 64 &&
		       sizeof(CUcheckpointRestoreArgs) == 64 &&
		       sizeof(CUcheckpointUnlockArgs) == 64,
	"as in cuda.h");

#pragma GCC visibility push(default)
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread);
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *arguments);
CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *arguments);
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *arguments);
CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *arguments);
#pragma GCC visibility pop

#endif
