/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of copies, one after another in the given order. The attributes that state where and when
 * a source may be read make no difference: bytes move when the call is made.
 */
#include "array.h"
#include "copy.h"
#include "cuda_work.h"

/* A batch needs a stream other than the legacy default one. */
static CUresult stream_for_batch(CUstream handle, enum stream_flavour flavour)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(handle != CU_STREAM_LEGACY && (handle || flavour == STREAM_PER_THREAD),
		CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

/* Each range of copies has attributes, the first range starting at 0. */
static bool attributes_valid(const CUmemcpyAttributes *attributes, const size_t *starts,
	size_t range_count, size_t count)
{
	if (!attributes || !starts || range_count == 0 || range_count > count || starts[0] != 0)
		return false;
	for (size_t i = 1; i < range_count; i++) {
		if (starts[i] <= starts[i - 1] || starts[i] >= count)
			return false;
	}
	return true;
}

struct runs {
	const CUdeviceptr *to, *from;
	const size_t *bytes;
	size_t count;
};

/* *failed: the index of the failed copy, or SIZE_MAX if it was none in particular. */
static CUresult copy_runs(
	const struct runs *runs, size_t *failed, CUstream stream, enum stream_flavour flavour)
{
	CUresult result = stream_for_batch(stream, flavour);

	*failed = SIZE_MAX;
	REQUIRE(runs->to && runs->from && runs->bytes && runs->count > 0, CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < runs->count && result == CUDA_SUCCESS; i++) {
		result = copy_run(
			runs->to[i], runs->from[i], runs->bytes[i], stream, flavour, false);
		if (result != CUDA_SUCCESS)
			*failed = i;
	}
	return result;
}

/* The lengths of a copy that involves an array are in its elements, otherwise in bytes. */
static size_t unit_of(const CUDA_MEMCPY3D_BATCH_OP *copy)
{
	if (copy->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return copy->src.op.array.array->element_bytes;
	if (copy->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return copy->dst.op.array.array->element_bytes;
	return 1;
}

static bool operand_valid(const CUmemcpy3DOperand *operand)
{
	if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return operand->op.array.array && array_valid(operand->op.array.array);
	return operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER && operand->op.ptr.ptr;
}

static void set_source(CUDA_MEMCPY3D *box, const CUmemcpy3DOperand *from, size_t unit)
{
	if (from->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
		box->srcMemoryType = CU_MEMORYTYPE_ARRAY;
		box->srcArray = from->op.array.array;
		box->srcXInBytes = from->op.array.offset.x * unit;
		box->srcY = from->op.array.offset.y;
		box->srcZ = from->op.array.offset.z;
	} else {
		box->srcDevice = from->op.ptr.ptr;
		box->srcPitch = from->op.ptr.rowLength * unit;
		box->srcHeight = from->op.ptr.layerHeight;
	}
}

static void set_destination(CUDA_MEMCPY3D *box, const CUmemcpy3DOperand *to, size_t unit)
{
	if (to->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
		box->dstMemoryType = CU_MEMORYTYPE_ARRAY;
		box->dstArray = to->op.array.array;
		box->dstXInBytes = to->op.array.offset.x * unit;
		box->dstY = to->op.array.offset.y;
		box->dstZ = to->op.array.offset.z;
	} else {
		box->dstDevice = to->op.ptr.ptr;
		box->dstPitch = to->op.ptr.rowLength * unit;
		box->dstHeight = to->op.ptr.layerHeight;
	}
}

static CUresult copy_operands(
	const CUDA_MEMCPY3D_BATCH_OP *copy, CUstream stream, enum stream_flavour flavour)
{
	CUDA_MEMCPY3D box = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .dstMemoryType = CU_MEMORYTYPE_UNIFIED};
	size_t unit;

	REQUIRE(operand_valid(&copy->src) && operand_valid(&copy->dst), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(copy->extent.width && copy->extent.height && copy->extent.depth,
		CUDA_ERROR_INVALID_VALUE);
	unit = unit_of(copy);
	set_source(&box, &copy->src, unit);
	set_destination(&box, &copy->dst, unit);
	box.WidthInBytes = copy->extent.width * unit;
	box.Height = copy->extent.height;
	box.Depth = copy->extent.depth;
	return copy_box(&box, stream, flavour, false);
}

static CUresult copy_boxes(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t count, size_t *failed,
	unsigned long long flags, CUstream stream, enum stream_flavour flavour)
{
	CUresult result = stream_for_batch(stream, flavour);

	*failed = SIZE_MAX;
	REQUIRE(copies && count > 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		result = copy_operands(&copies[i], stream, flavour);
		if (result != CUDA_SUCCESS)
			*failed = i;
	}
	return result;
}

#define BOTH(name, parameters, body)                                                               \
	CUresult name parameters                                                                   \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_LEGACY;                                 \
		body                                                                               \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_PER_THREAD;                             \
		body                                                                               \
	}

BOTH(cuMemcpyBatchAsync,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		size_t *failed, CUstream stream),
	size_t unused;
	REQUIRE(attributes_valid(attributes, starts, attribute_count, count),
		CUDA_ERROR_INVALID_VALUE);
	return copy_runs(&(struct runs){to, from, bytes, count}, failed ? failed : &unused, stream,
		flavour);)
BOTH(cuMemcpyBatchAsync_v2,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
		CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
		CUstream stream),
	size_t unused;
	REQUIRE(attributes_valid(attributes, starts, attribute_count, count),
		CUDA_ERROR_INVALID_VALUE);
	return copy_runs(&(struct runs){to, from, bytes, count}, &unused, stream, flavour);)
BOTH(cuMemcpy3DBatchAsync,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
		CUstream stream),
	size_t unused;
	return copy_boxes(copies, count, failed ? failed : &unused, flags, stream, flavour);)
BOTH(cuMemcpy3DBatchAsync_v2,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
	size_t unused;
	return copy_boxes(copies, count, &unused, flags, stream, flavour);)
/* A single copy may be in any stream. */
BOTH(cuMemcpyWithAttributesAsync,
	(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
		CUstream stream),
	REQUIRE(attributes, CUDA_ERROR_INVALID_VALUE);
	return copy_run(to, from, bytes, stream, flavour, false);)
BOTH(cuMemcpy3DWithAttributesAsync,
	(CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream),
	REQUIRE(copy &&flags == 0, CUDA_ERROR_INVALID_VALUE);
	return copy_operands(copy, stream, flavour);)
