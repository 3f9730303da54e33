/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a contiguous range of bytes, and of one-dimensional arrays. The speed of each function
 * is learned separately: copies between cards and host are slower than within a card. A synchronous
 * copy is counted like the others.
 */
#include "cuda_work.h"
#include "submit.h"

#define COPY(symbol, bytes) .kind = GATE_COPY, .what = &real_##symbol, .size = (bytes)

/* Synchronous: the newer form, with its per-thread variant, and the first form. */
#define SYNCHRONOUS(name, parameters, arguments)                                                   \
	SUBMIT_PTDS_WAITED(name, parameters, arguments, COPY(name, bytes))
#define FIRST(name, parameters, arguments)                                                         \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, COPY(name, bytes))
#define ASYNCHRONOUS(name, parameters, arguments)                                                  \
	SUBMIT_PTSZ(name, parameters, arguments, COPY(name, bytes), .stream = stream)
#define FIRST_ASYNCHRONOUS(name, parameters, arguments)                                            \
	SUBMIT(name, NULL_IS_LEGACY, parameters, arguments, COPY(name, bytes), .stream = stream)

SYNCHRONOUS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
SYNCHRONOUS(cuMemcpyPeer,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes),
	(to, to_context, from, from_context, bytes))
SYNCHRONOUS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
SYNCHRONOUS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
/* Within a card the call does not wait (CUDA driver API, "API synchronization behavior"). */
SUBMIT_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes),
	COPY(cuMemcpyDtoD_v2, bytes))
SYNCHRONOUS(cuMemcpyDtoA_v2, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
	(to, to_offset, from, bytes))
SYNCHRONOUS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
	(to, from, from_offset, bytes))
SYNCHRONOUS(cuMemcpyHtoA_v2, (CUarray to, size_t to_offset, const void *from, size_t bytes),
	(to, to_offset, from, bytes))
SYNCHRONOUS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t from_offset, size_t bytes),
	(to, from, from_offset, bytes))
SYNCHRONOUS(cuMemcpyAtoA_v2,
	(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
	(to, to_offset, from, from_offset, bytes))

FIRST(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned int bytes), (to, from, bytes))
FIRST(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
FIRST(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes))
FIRST(cuMemcpyDtoA, (CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes),
	(to, to_offset, from, bytes))
FIRST(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes),
	(to, from, from_offset, bytes))
FIRST(cuMemcpyHtoA, (CUarray to, unsigned int to_offset, const void *from, unsigned int bytes),
	(to, to_offset, from, bytes))
FIRST(cuMemcpyAtoH, (void *to, CUarray from, unsigned int from_offset, unsigned int bytes),
	(to, from, from_offset, bytes))
FIRST(cuMemcpyAtoA,
	(CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset,
		unsigned int bytes),
	(to, to_offset, from, from_offset, bytes))

ASYNCHRONOUS(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	(to, from, bytes, stream))
ASYNCHRONOUS(cuMemcpyPeerAsync,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes, CUstream stream),
	(to, to_context, from, from_context, bytes, stream))
ASYNCHRONOUS(cuMemcpyHtoDAsync_v2,
	(CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
	(to, from, bytes, stream))
ASYNCHRONOUS(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
	(to, from, bytes, stream))
ASYNCHRONOUS(cuMemcpyDtoDAsync_v2,
	(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	(to, from, bytes, stream))
ASYNCHRONOUS(cuMemcpyHtoAAsync_v2,
	(CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
	(to, to_offset, from, bytes, stream))
ASYNCHRONOUS(cuMemcpyAtoHAsync_v2,
	(void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream),
	(to, from, from_offset, bytes, stream))
ASYNCHRONOUS(cuMemcpyWithAttributesAsync,
	(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
		CUstream stream),
	(to, from, bytes, attributes, stream))

FIRST_ASYNCHRONOUS(cuMemcpyHtoDAsync,
	(CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream),
	(to, from, bytes, stream))
FIRST_ASYNCHRONOUS(cuMemcpyDtoHAsync,
	(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
	(to, from, bytes, stream))
FIRST_ASYNCHRONOUS(cuMemcpyDtoDAsync,
	(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
	(to, from, bytes, stream))
FIRST_ASYNCHRONOUS(cuMemcpyHtoAAsync,
	(CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream),
	(to, to_offset, from, bytes, stream))
FIRST_ASYNCHRONOUS(cuMemcpyAtoHAsync,
	(void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream),
	(to, from, from_offset, bytes, stream))
