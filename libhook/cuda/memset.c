/* SPDX-License-Identifier: Apache-2.0
 *
 * Setting memory to a value, in elements of one, two or four bytes.
 */
#include "cuda_work.h"
#include "submit.h"

#define FILL(bytes) .kind = GATE_FILL, .size = (uint64_t)(bytes)

#define FILLS(bits, type)                                                                          \
	SUBMIT_PTDS(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count),              \
		(to, value, count), FILL((bits / 8) * count))                                      \
	SUBMIT_PTSZ(cuMemsetD##bits##Async,                                                        \
		(CUdeviceptr to, type value, size_t count, CUstream stream),                       \
		(to, value, count, stream), FILL((bits / 8) * count), .stream = stream)            \
	SUBMIT(cuMemsetD##bits, NULL_IS_LEGACY,                                                    \
		(CUdeviceptr_v1 to, type value, unsigned int count), (to, value, count),           \
		FILL((bits / 8) * (uint64_t)count))                                                \
	SUBMIT_PTDS(cuMemsetD2D##bits##_v2,                                                        \
		(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),           \
		(to, pitch, value, width, height), FILL((bits / 8) * width * height))              \
	SUBMIT_PTSZ(cuMemsetD2D##bits##Async,                                                      \
		(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,            \
			CUstream stream),                                                          \
		(to, pitch, value, width, height, stream), FILL((bits / 8) * width * height),      \
		.stream = stream)                                                                  \
	SUBMIT(cuMemsetD2D##bits, NULL_IS_LEGACY,                                                  \
		(CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width,            \
			unsigned int height),                                                      \
		(to, pitch, value, width, height), FILL((bits / 8) * (uint64_t)width * height))

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
