/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions in which a program waits for the card. There the driver releases what its pools hold
 * above their release thresholds (cuda.h, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), and the library
 * releases the charge. No more work will be submitted for a while: the last work gets its last
 * timing events, and is known to have finished before the program continues.
 */
#include "backing.h"
#include "interpose.h"
#include "timing_context_end.h"
#include "share/gate.h"

#define SYNCHRONIZE(symbol, parameters, ...)                                                       \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		enum timing_wait wait = WAIT_OTHER;                                                \
		if (!gate_is_open())                                                               \
			wait = timing_before_wait();                                               \
		CUresult result = REAL(symbol)(__VA_ARGS__);                                       \
		if (!gate_is_open())                                                               \
			timing_after_wait(wait);                                                   \
		backings_after_wait();                                                             \
		return result;                                                                     \
	}

SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), stream)
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), stream)
SYNCHRONIZE(cuEventSynchronize, (CUevent event), event)
SYNCHRONIZE(cuCtxSynchronize, (void))
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), context)
