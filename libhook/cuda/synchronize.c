/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a program waits for the card. There the driver gives back what its pools hold above their
 * release thresholds (cuda.h, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), and so do we. And no more work
 * will come for a while: what was given so far gets its last markers, and is seen to have ended
 * before the program goes on.
 */
#include "backing.h"
#include "filter.h"
#include "marker_end.h"
#include "share/gate.h"

#define SYNCHRONIZE(symbol, parameters, ...)                                                       \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		if (!gate_is_open())                                                               \
			markers_before_wait();                                                     \
		CUresult result = REAL(symbol)(__VA_ARGS__);                                       \
		if (!gate_is_open())                                                               \
			markers_after_wait();                                                      \
		backings_after_wait();                                                             \
		return result;                                                                     \
	}

SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), stream)
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), stream)
SYNCHRONIZE(cuEventSynchronize, (CUevent event), event)
SYNCHRONIZE(cuCtxSynchronize, (void))
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), context)
