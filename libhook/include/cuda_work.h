/* SPDX-License-Identifier: Apache-2.0
 *
 * More of the driver's binary interface, in addition to cuda_driver.h: the oldest and newest forms
 * of the functions that start work on a card, and the functions that begin and end a capture.
 * Layouts are those of cuda.h of CUDA 13.5; the first forms, with 32-bit addresses, are still
 * exported.
 */
#ifndef GPUSHARE_CUDA_WORK_H
#define GPUSHARE_CUDA_WORK_H

#include "cuda_driver.h"

typedef unsigned int CUdeviceptr_v1;

typedef struct CUDA_MEMCPY2D_v1 {
	unsigned int srcXInBytes;
	unsigned int srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr_v1 srcDevice;
	CUarray srcArray;
	unsigned int srcPitch;
	unsigned int dstXInBytes;
	unsigned int dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr_v1 dstDevice;
	CUarray dstArray;
	unsigned int dstPitch;
	unsigned int WidthInBytes;
	unsigned int Height;
} CUDA_MEMCPY2D_v1;

typedef struct CUDA_MEMCPY3D_v1 {
	unsigned int srcXInBytes;
	unsigned int srcY;
	unsigned int srcZ;
	unsigned int srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr_v1 srcDevice;
	CUarray srcArray;
	void *reserved0;
	unsigned int srcPitch;
	unsigned int srcHeight;
	unsigned int dstXInBytes;
	unsigned int dstY;
	unsigned int dstZ;
	unsigned int dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr_v1 dstDevice;
	CUarray dstArray;
	void *reserved1;
	unsigned int dstPitch;
	unsigned int dstHeight;
	unsigned int WidthInBytes;
	unsigned int Height;
	unsigned int Depth;
} CUDA_MEMCPY3D_v1;

typedef struct CUmemcpyAttributes {
	int srcAccessOrder;
	CUmemLocation srcLocHint;
	CUmemLocation dstLocHint;
	unsigned int flags;
} CUmemcpyAttributes;

typedef enum CUmemcpy3DOperandType {
	CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
	CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
} CUmemcpy3DOperandType;

/* Lengths are in elements for an array, otherwise in bytes. */
typedef struct CUmemcpy3DOperand {
	CUmemcpy3DOperandType type;
	union {
		struct {
			CUdeviceptr ptr;
			size_t rowLength;
			size_t layerHeight;
			CUmemLocation locHint;
		} ptr;
		struct {
			CUarray array;
			struct {
				size_t x, y, z;
			} offset;
		} array;
	} op;
} CUmemcpy3DOperand;

typedef struct CUDA_MEMCPY3D_BATCH_OP {
	CUmemcpy3DOperand src;
	CUmemcpy3DOperand dst;
	struct {
		size_t width, height, depth;
	} extent;
	int srcAccessOrder;
	unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;

/* Operands are 24 bytes each and are not interpreted here. */
typedef struct CUDA_FABRIC_COPY_BATCH_OP {
	uint64_t src[3];
	uint64_t dst[3];
	size_t size;
	unsigned int flags;
} CUDA_FABRIC_COPY_BATCH_OP;

typedef struct CUmemDecompressParams {
	size_t srcNumBytes;
	size_t dstNumBytes;
	uint32_t *dstActBytes;
	const void *src;
	void *dst;
	int algo;
	unsigned char padding[20];
} CUmemDecompressParams;

typedef struct CUDA_LAUNCH_PARAMS {
	CUfunction function;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* Opaque here. */
typedef struct CUstreamCigCaptureParams CUstreamCigCaptureParams;
typedef CUresult (*CUgraphRecaptureCallback)(void *data, CUgraphNode node,
	const CUgraphNodeParams *original, const CUgraphNodeParams *recaptured);

#pragma GCC visibility push(default)

/* launches; in the first form, grid and parameters belong to the function */
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUresult cuParamSetSize(CUfunction function, unsigned int bytes);
CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes);
CUresult cuLaunch(CUfunction function);
CUresult cuLaunchGrid(CUfunction function, int width, int height);
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);
CUresult cuLaunchCooperativeKernelMultiDevice(
	CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags);

/* copies, the first form */
CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int bytes);
CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int bytes);
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes);
CUresult cuMemcpyHtoDAsync(
	CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync(
	CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream);
CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *copy);
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *copy);
CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *copy);
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *copy, CUstream stream);
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *copy, CUstream stream);

/* copies of arrays of one dimension; offsets and sizes are bytes */
CUresult cuMemcpyDtoA(CUarray to, unsigned int to_offset, CUdeviceptr_v1 from, unsigned int bytes);
CUresult cuMemcpyAtoD(
	CUdeviceptr_v1 to, CUarray from, unsigned int from_offset, unsigned int bytes);
CUresult cuMemcpyHtoA(CUarray to, unsigned int to_offset, const void *from, unsigned int bytes);
CUresult cuMemcpyAtoH(void *to, CUarray from, unsigned int from_offset, unsigned int bytes);
CUresult cuMemcpyAtoA(CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset,
	unsigned int bytes);
CUresult cuMemcpyHtoAAsync(
	CUarray to, unsigned int to_offset, const void *from, unsigned int bytes, CUstream stream);
CUresult cuMemcpyAtoHAsync(
	void *to, CUarray from, unsigned int from_offset, unsigned int bytes, CUstream stream);
CUDA_WITH_PTDS(cuMemcpyDtoA_v2, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyHtoA_v2, (CUarray to, size_t to_offset, const void *from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t from_offset, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyAtoA_v2,
	(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes));
CUDA_WITH_PTSZ(cuMemcpyHtoAAsync_v2,
	(CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpyAtoHAsync_v2,
	(void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream));

/* batches of copies; since CUDA 13 without the index of the failed copy */
CUDA_WITH_PTSZ(
	cuMemcpyBatchAsync, (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
				    CUmemcpyAttributes *attributes, size_t *starts,
				    size_t attribute_count, size_t *failed, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemcpyBatchAsync_v2, (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
				       CUmemcpyAttributes *attributes, size_t *starts,
				       size_t attribute_count, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy3DBatchAsync, (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
					     unsigned long long flags, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy3DBatchAsync_v2,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemcpyWithAttributesAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes,
					     CUmemcpyAttributes *attributes, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy3DWithAttributesAsync,
	(CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream));
CUDA_WITH_PTSZ(cuFabricCpyBatchAsync, (size_t count, CUDA_FABRIC_COPY_BATCH_OP *copies,
					      unsigned long long flags, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemBatchDecompressAsync, (CUmemDecompressParams * pieces, size_t count,
					   unsigned int flags, size_t *failed, CUstream stream));

/* memset, the first form */
CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned int count);
CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned int count);
CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned int value, unsigned int count);
CUresult cuMemsetD2D8(CUdeviceptr_v1 to, unsigned int pitch, unsigned char value,
	unsigned int width, unsigned int height);
CUresult cuMemsetD2D16(CUdeviceptr_v1 to, unsigned int pitch, unsigned short value,
	unsigned int width, unsigned int height);
CUresult cuMemsetD2D32(CUdeviceptr_v1 to, unsigned int pitch, unsigned int value,
	unsigned int width, unsigned int height);

/* captures */
CUDA_WITH_PTSZ(
	cuStreamBeginRecaptureToGraph, (CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
					       CUgraphRecaptureCallback callback, void *data));
CUDA_WITH_PTSZ(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *parameters));
CUDA_WITH_PTSZ(cuStreamEndCaptureToCig, (CUstream stream));

/* graphs */

#pragma GCC visibility pop

_Static_assert(sizeof(CUDA_MEMCPY2D_v1) == 96 && sizeof(CUDA_MEMCPY3D_v1) == 144, "ABI");
_Static_assert(sizeof(CUmemcpyAttributes) == 24 && sizeof(CUmemcpy3DOperand) == 40, "ABI");
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "ABI");
_Static_assert(sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64, "ABI");
_Static_assert(sizeof(CUmemDecompressParams) == 64 && sizeof(CUDA_LAUNCH_PARAMS) == 56, "ABI");

#endif
