/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

bool stream_is_captured(CUstream stream, enum null_stream null_stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result;

	/* The legacy default stream is never captured. */
	if (stream == CU_STREAM_LEGACY || (!stream && null_stream == NULL_IS_LEGACY))
		return false;
	result = null_stream == NULL_IS_LEGACY ? REAL(cuStreamIsCapturing)(stream, &status)
					       : REAL(cuStreamIsCapturing_ptsz)(stream, &status);
	return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void stream_wait(CUstream stream, enum null_stream null_stream)
{
	if (null_stream == NULL_IS_LEGACY)
		REAL(cuStreamSynchronize)(stream);
	else
		REAL(cuStreamSynchronize_ptsz)(stream);
}
