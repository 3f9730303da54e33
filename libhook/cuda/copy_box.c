/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of rows and slices, and batches of copies. The driver refuses null pointers.
 */
#include "cuda_work.h"
#include "submit.h"

#define COPY(symbol, bytes) .kind = GATE_COPY, .what = &real_##symbol, .size = (bytes)
#define FLAT(copy) ((copy) ? (uint64_t)(copy)->WidthInBytes * (copy)->Height : 0)
#define SOLID(copy) ((copy) ? FLAT(copy) * (copy)->Depth : 0)

#define SYNCHRONOUS(name, type, bytes)                                                             \
	SUBMIT_PTDS_WAITED(name, (const type *copy), (copy), COPY(name, bytes))
#define ASYNCHRONOUS(name, type, bytes)                                                            \
	SUBMIT_PTSZ(name, (const type *copy, CUstream stream), (copy, stream), COPY(name, bytes),  \
		.stream = stream)
#define FIRST(name, type, bytes)                                                                   \
	SUBMIT(name, NULL_IS_LEGACY, (const type *copy), (copy), COPY(name, bytes))
#define FIRST_ASYNCHRONOUS(name, type, bytes)                                                      \
	SUBMIT(name, NULL_IS_LEGACY, (const type *copy, CUstream stream), (copy, stream),          \
		COPY(name, bytes), .stream = stream)

SYNCHRONOUS(cuMemcpy2D_v2, CUDA_MEMCPY2D, FLAT(copy))
SYNCHRONOUS(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, FLAT(copy))
SYNCHRONOUS(cuMemcpy3D_v2, CUDA_MEMCPY3D, SOLID(copy))
SYNCHRONOUS(cuMemcpy3DPeer, CUDA_MEMCPY3D, SOLID(copy))
ASYNCHRONOUS(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, FLAT(copy))
ASYNCHRONOUS(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, SOLID(copy))
ASYNCHRONOUS(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, SOLID(copy))
FIRST(cuMemcpy2D, CUDA_MEMCPY2D_v1, FLAT(copy))
FIRST(cuMemcpy2DUnaligned, CUDA_MEMCPY2D_v1, FLAT(copy))
FIRST(cuMemcpy3D, CUDA_MEMCPY3D_v1, SOLID(copy))
FIRST_ASYNCHRONOUS(cuMemcpy2DAsync, CUDA_MEMCPY2D_v1, FLAT(copy))
FIRST_ASYNCHRONOUS(cuMemcpy3DAsync, CUDA_MEMCPY3D_v1, SOLID(copy))

/* A batch is one unit of work, as large as everything that it copies. Boxes of arrays are in
 * elements: constant for one array, and so is what is learned. */
#define SUM(name, type, size)                                                                      \
	static uint64_t name(const type *pieces, size_t count)                                     \
	{                                                                                          \
		uint64_t sum = 0;                                                                  \
		for (size_t i = 0; pieces && i < count; i++)                                       \
			sum += size;                                                               \
		return sum;                                                                        \
	}

SUM(runs, size_t, pieces[i])
SUM(boxes, CUDA_MEMCPY3D_BATCH_OP,
	(uint64_t)pieces[i].extent.width *pieces[i].extent.height *pieces[i].extent.depth)
SUM(hops, CUDA_FABRIC_COPY_BATCH_OP, pieces[i].size)
SUM(compressed, CUmemDecompressParams, pieces[i].srcNumBytes)

#define MANY(name, parameters, arguments, bytes)                                                   \
	SUBMIT_PTSZ(name, parameters, arguments, COPY(name, bytes), .stream = stream)

MANY(cuMemcpyBatchAsync,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		size_t *failed, CUstream stream),
	(to, from, bytes, count, attributes, starts, attribute_count, failed, stream),
	runs(bytes, count))
MANY(cuMemcpyBatchAsync_v2,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		CUstream stream),
	(to, from, bytes, count, attributes, starts, attribute_count, stream), runs(bytes, count))
MANY(cuMemcpy3DBatchAsync,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
		CUstream stream),
	(count, copies, failed, flags, stream), boxes(copies, count))
MANY(cuMemcpy3DBatchAsync_v2,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
	(count, copies, flags, stream), boxes(copies, count))
MANY(cuMemcpy3DWithAttributesAsync,
	(CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream),
	(copy, flags, stream), boxes(copy, 1))
MANY(cuFabricCpyBatchAsync,
	(size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies, unsigned long long flags,
		CUstream stream),
	(count, copies, flags, stream), hops(copies, count))
MANY(cuMemBatchDecompressAsync,
	(CUmemDecompressParams * pieces, size_t count, unsigned int flags, size_t *failed,
		CUstream stream),
	(pieces, count, flags, failed, stream), compressed(pieces, count))
