/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of copies, one after another in the given order. The attributes that state where and when
 * a source may be read make no difference: bytes move when the call is made.
 */
#include "array.h"
#include "copy.h"
#include "cuda_work.h"

static CUresult copy_runs(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
	size_t count, CUstream stream, enum stream_flavour flavour)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = copy_run(to[i], from[i], bytes[i], stream, flavour, false);
	return result;
}

/* Between addresses only. */
static CUresult copy_operands(
	const CUDA_MEMCPY3D_BATCH_OP *copy, CUstream stream, enum stream_flavour flavour)
{
	REQUIRE(copy->src.type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
			copy->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER,
		CUDA_ERROR_NOT_SUPPORTED);
	return copy_box(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
				.srcDevice = copy->src.op.ptr.ptr,
				.srcPitch = copy->src.op.ptr.rowLength,
				.srcHeight = copy->src.op.ptr.layerHeight,
				.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
				.dstDevice = copy->dst.op.ptr.ptr,
				.dstPitch = copy->dst.op.ptr.rowLength,
				.dstHeight = copy->dst.op.ptr.layerHeight,
				.WidthInBytes = copy->extent.width,
				.Height = copy->extent.height,
				.Depth = copy->extent.depth},
		stream, flavour, false);
}

static CUresult copy_boxes(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count, CUstream stream,
	enum stream_flavour flavour)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = copy_operands(&copies[i], stream, flavour);
	return result;
}

#define BOTH(name, parameters, ignored, call)                                                      \
	CUresult name parameters                                                                   \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_LEGACY;                                 \
		ignored;                                                                           \
		return call;                                                                       \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_PER_THREAD;                             \
		ignored;                                                                           \
		return call;                                                                       \
	}

BOTH(cuMemcpyBatchAsync,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		size_t *failed, CUstream stream),
	((void)attributes, (void)starts, (void)attribute_count, (void)failed),
	copy_runs(to, from, bytes, count, stream, flavour))
BOTH(cuMemcpyBatchAsync_v2,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		CUstream stream),
	((void)attributes, (void)starts, (void)attribute_count),
	copy_runs(to, from, bytes, count, stream, flavour))
BOTH(cuMemcpy3DBatchAsync,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
		CUstream stream),
	((void)failed, (void)flags), copy_boxes(copies, count, stream, flavour))
BOTH(cuMemcpy3DBatchAsync_v2,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
	(void)flags, copy_boxes(copies, count, stream, flavour))
BOTH(cuMemcpyWithAttributesAsync,
	(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
		CUstream stream),
	(void)attributes, copy_run(to, from, bytes, stream, flavour, false))
BOTH(cuMemcpy3DWithAttributesAsync,
	(CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream), (void)flags,
	copy_operands(copy, stream, flavour))
