/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver's binary interface that gpushare's libraries use: what the interposer
 * library mediates and the simulator implements. Every function has the name under which it is
 * exported (cuMemAlloc_v2), never the name that cuda.h maps onto it, because a library that
 * replaces the driver is bound by symbol. Layouts and values are those of the ABI, CUDA 11.8 to 13;
 * the sizes asserted at the end hold on 64-bit Linux.
 */
#ifndef GPUSHARE_CUDA_DRIVER_H
#define GPUSHARE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef enum CUresult {
#define CUDA_RESULT(name, value, since, words) name = (value),
#include "../table/cuda_result.inc"
#undef CUDA_RESULT
} CUresult;

typedef enum CUdevice_attribute {
#define CUDA_DEVICE_ATTRIBUTE(name, value) name = (value),
#include "../table/device_attribute.inc"
#undef CUDA_DEVICE_ATTRIBUTE
} CUdevice_attribute;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUgraphExec_st *CUgraphExec;

typedef struct CUuuid {
	char bytes[16];
} CUuuid;

typedef void (*CUhostFn)(void *data);

/* The handles of a context's default streams; a null stream is one or the other, depending on the
 * form of the function. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

enum {
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

typedef enum CUdriverProcAddressQueryResult {
	CU_GET_PROC_ADDRESS_SUCCESS = 0,
	CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
	CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} CUdriverProcAddressQueryResult;

typedef enum CUmemorytype {
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
	CU_MEMORYTYPE_ARRAY = 3,
	CU_MEMORYTYPE_UNIFIED = 4,
} CUmemorytype;

enum {
	CU_EVENT_BLOCKING_SYNC = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_EVENT_INTERPROCESS = 4,
	CU_STREAM_NON_BLOCKING = 1,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_MEM_ATTACH_GLOBAL = 1,
	CU_MEM_ATTACH_HOST = 2,
};

typedef enum CUlimit {
	CU_LIMIT_STACK_SIZE = 0,
	CU_LIMIT_PRINTF_FIFO_SIZE = 1,
	CU_LIMIT_MALLOC_HEAP_SIZE = 2,
	CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
	CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
	CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
	CU_LIMIT_MAX = 10,
} CUlimit;

typedef enum CUpointer_attribute {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_MAPPED = 13,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
} CUpointer_attribute;

typedef enum CUjitInputType {
	CU_JIT_INPUT_CUBIN = 0,
	CU_JIT_INPUT_PTX = 1,
} CUjitInputType;

typedef enum CUmemLocationType {
	CU_MEM_LOCATION_TYPE_INVALID = 0,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST = 2,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
	CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6, /* since 13.1 */
} CUmemLocationType;

typedef enum CUmemAllocationType {
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType {
	CU_MEM_HANDLE_TYPE_NONE = 0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
} CUmemAllocationHandleType;

typedef enum CUmem_advise {
	CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
} CUmem_advise;

typedef enum CUmemAccess_flags {
	CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
} CUmemAccess_flags;

typedef enum CUmemPool_attribute {
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
	CU_MEMPOOL_ATTR_ALLOCATION_TYPE = 9, /* since CUDA 13 */
	CU_MEMPOOL_ATTR_LOCATION_ID = 11,
	CU_MEMPOOL_ATTR_LOCATION_TYPE = 12,
} CUmemPool_attribute;

typedef enum CUstreamCaptureStatus {
	CU_STREAM_CAPTURE_STATUS_NONE = 0,
	CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
	CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
} CUstreamCaptureStatus;

typedef enum CUstreamCaptureMode {
	CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
} CUstreamCaptureMode;

typedef enum CUgraphNodeType {
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_MEMCPY = 1,
	CU_GRAPH_NODE_TYPE_MEMSET = 2,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_EMPTY = 5,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
} CUgraphNodeType;

typedef enum CUgraphMem_attribute {
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
} CUgraphMem_attribute;

enum {
	CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
	CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
	CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
};

typedef enum CUgraphChildGraphNodeOwnership {
	CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE = 1,
} CUgraphChildGraphNodeOwnership;

typedef enum CUarray_format {
	CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
	CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
	CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
	CU_AD_FORMAT_SIGNED_INT8 = 0x08,
	CU_AD_FORMAT_SIGNED_INT16 = 0x09,
	CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
	CU_AD_FORMAT_HALF = 0x10,
	CU_AD_FORMAT_FLOAT = 0x20,
	CU_AD_FORMAT_NV12 = 0xb0,
	CU_AD_FORMAT_UNORM_INT8X1 = 0xc0,
	CU_AD_FORMAT_UNORM_INT8X2 = 0xc1,
	CU_AD_FORMAT_UNORM_INT8X4 = 0xc2,
	CU_AD_FORMAT_UNORM_INT16X1 = 0xc3,
	CU_AD_FORMAT_UNORM_INT16X2 = 0xc4,
	CU_AD_FORMAT_UNORM_INT16X4 = 0xc5,
	CU_AD_FORMAT_SNORM_INT8X1 = 0xc6,
	CU_AD_FORMAT_SNORM_INT8X2 = 0xc7,
	CU_AD_FORMAT_SNORM_INT8X4 = 0xc8,
	CU_AD_FORMAT_SNORM_INT16X1 = 0xc9,
	CU_AD_FORMAT_SNORM_INT16X2 = 0xca,
	CU_AD_FORMAT_SNORM_INT16X4 = 0xcb,
} CUarray_format;

enum {
	CUDA_ARRAY3D_LAYERED = 0x01,
	CUDA_ARRAY3D_CUBEMAP = 0x04,
	CUDA_ARRAY3D_SPARSE = 0x40,
	CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

/* Enumerations whose values neither library uses: only their size matters. */
typedef int CUjit_option;
typedef int CUlibraryOption;
typedef int CUmodule_loading_mode;
typedef int CUmemAllocationGranularity_flags;

typedef struct CUmemLocation {
	CUmemLocationType type;
	int id; /* of a locality domain: the device in the first byte, the domain in the second */
} CUmemLocation;

typedef struct CUmemAllocationProp {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmulticastObjectProp {
	unsigned int numDevices;
	size_t size;
	unsigned long long handleTypes;
	unsigned long long flags;
} CUmulticastObjectProp;

typedef struct CUmemAccessDesc {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemPoolProps {
	CUmemAllocationType allocType;
	CUmemAllocationHandleType handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct CUmemPoolPtrExportData {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

typedef struct CUipcMemHandle {
	char reserved[64];
} CUipcMemHandle;

typedef enum CUexternalMemoryHandleType {
	CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
	CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32 = 2,
} CUexternalMemoryHandleType;

typedef struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
	CUexternalMemoryHandleType type;
	union {
		int fd;
		void *win32[2];
	} handle;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
	unsigned long long offset;
	unsigned long long size;
	unsigned int flags;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

enum { CU_GREEN_CTX_DEFAULT_STREAM = 1 };

typedef enum CUdevResourceType {
	CU_DEV_RESOURCE_TYPE_INVALID = 0,
	CU_DEV_RESOURCE_TYPE_SM = 1,
} CUdevResourceType;

/* In CUDA 12, only the first word. */
typedef struct CUdevSmResource {
	unsigned int smCount;
	unsigned int minSmPartitionSize;
	unsigned int smCoscheduledAlignment;
	unsigned int flags;
	unsigned int localityDomainId;
} CUdevSmResource;

typedef struct CUdevResource {
	CUdevResourceType type;
	unsigned char internal[92];
	union {
		CUdevSmResource sm;
		unsigned char oversize[40];
	};
	struct CUdevResource *nextResource;
} CUdevResource;

typedef struct CUDA_MEMCPY2D {
	size_t srcXInBytes;
	size_t srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} CUDA_MEMCPY2D;

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER differ only in that the two reserved words are contexts. */
typedef struct CUDA_MEMCPY3D {
	size_t srcXInBytes;
	size_t srcY;
	size_t srcZ;
	size_t srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *srcContext;
	size_t srcPitch;
	size_t srcHeight;
	size_t dstXInBytes;
	size_t dstY;
	size_t dstZ;
	size_t dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *dstContext;
	size_t dstPitch;
	size_t dstHeight;
	size_t WidthInBytes;
	size_t Height;
	size_t Depth;
} CUDA_MEMCPY3D;

typedef struct CUDA_ARRAY_DESCRIPTOR {
	size_t Width;
	size_t Height;
	CUarray_format Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct CUDA_ARRAY3D_DESCRIPTOR {
	size_t Width;
	size_t Height;
	size_t Depth;
	CUarray_format Format;
	unsigned int NumChannels;
	unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* CUDA 1's, of cuArrayCreate and cuArray3DCreate. */
typedef struct CUDA_ARRAY_DESCRIPTOR_v1 {
	unsigned int Width;
	unsigned int Height;
	CUarray_format Format;
	unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
	unsigned int Width;
	unsigned int Height;
	unsigned int Depth;
	CUarray_format Format;
	unsigned int NumChannels;
	unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef union CUlaunchAttributeValue {
	char pad[64];
	int cooperative;
	int priority;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute {
	int id;
	char pad[4];
	CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

typedef struct CUDA_KERNEL_NODE_PARAMS {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern; /* from here on: _v2 of the structure only */
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEM_ALLOC_NODE_PARAMS {
	CUmemPoolProps poolProps;
	const CUmemAccessDesc *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr; /* out */
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct CUDA_MEM_FREE_NODE_PARAMS {
	CUdeviceptr dptr;
} CUDA_MEM_FREE_NODE_PARAMS;

typedef struct CUDA_CHILD_GRAPH_NODE_PARAMS {
	CUgraph graph;
	CUgraphChildGraphNodeOwnership ownership; /* since 12.9; zero before */
} CUDA_CHILD_GRAPH_NODE_PARAMS;

typedef struct CUgraphEdgeData {
	unsigned char from_port;
	unsigned char to_port;
	unsigned char type;
	unsigned char reserved[5];
} CUgraphEdgeData;

typedef struct CUgraphNodeParams {
	CUgraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		CUDA_CHILD_GRAPH_NODE_PARAMS graph;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUDA_MEM_FREE_NODE_PARAMS free;
	};
	long long reserved2;
} CUgraphNodeParams;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS {
	uint64_t flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

/* Opaque to both libraries. */
typedef struct CUctxCreateParams CUctxCreateParams;
typedef struct CUgraphExecUpdateResultInfo CUgraphExecUpdateResultInfo;
typedef struct CUexecAffinityParam CUexecAffinityParam;
typedef struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

#define CUDA_WITH_PTSZ(name, parameters)                                                           \
	CUresult name parameters;                                                                  \
	CUresult name##_ptsz parameters
#define CUDA_WITH_PTDS(name, parameters)                                                           \
	CUresult name parameters;                                                                  \
	CUresult name##_ptds parameters

#pragma GCC visibility push(default)

/* initialisation, errors, looking up */
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **words);
CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status);
CUresult cuGetExportTable(const void **table, const CUuuid *id);

/* devices */
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device);
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value);

/* contexts */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active);
CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinity_count,
	unsigned int flags, CUdevice device);
CUresult cuCtxCreate_v4(
	CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetFlags(unsigned int *flags);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuCtxSetLimit(CUlimit limit, size_t value);
CUresult cuCtxGetLimit(size_t *value, CUlimit limit);
CUresult cuCtxAttach(CUcontext *context, unsigned int flags);
CUresult cuCtxDetach(CUcontext context);

/* memory */
CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemAlloc(unsigned int *pointer, unsigned int bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAllocPitch(unsigned int *pointer, unsigned int *pitch, unsigned int width_bytes,
	unsigned int height, unsigned int element_bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
	unsigned int element_bytes);
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags);
CUresult cuMemFree(unsigned int pointer);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);
CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUresult cuMemFreeHost(void *pointer);
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags);
CUresult cuMemGetHandleForAddressRange(
	void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer);
CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
CUresult cuImportExternalMemory(
	CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description);
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description);
CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
	const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description);
CUresult cuDestroyExternalMemory(CUexternalMemory memory);
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);
CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device);
CUresult cuMemAdvise_v2(
	CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location);
CUDA_WITH_PTSZ(
	cuMemPrefetchAsync, (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream));
CUDA_WITH_PTSZ(cuMemPrefetchAsync_v2, (CUdeviceptr pointer, size_t bytes, CUmemLocation location,
					      unsigned int flags, CUstream stream));
CUDA_WITH_PTSZ(cuMemPrefetchBatchAsync,
	(CUdeviceptr * pointers, size_t *bytes, size_t count, CUmemLocation *locations,
		size_t *location_starts, size_t location_count, unsigned long long flags,
		CUstream stream));
CUDA_WITH_PTSZ(cuMemDiscardAndPrefetchBatchAsync,
	(CUdeviceptr * pointers, size_t *bytes, size_t count, CUmemLocation *locations,
		size_t *location_starts, size_t location_count, unsigned long long flags,
		CUstream stream));

/* memory that streams order, and its pools */
CUDA_WITH_PTSZ(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(cuMemAllocFromPoolAsync,
	(CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream));
CUDA_WITH_PTSZ(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream));
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemGetDefaultMemPool(
	CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes_to_keep);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location);
CUresult cuMemPoolExportToShareableHandle(void *exported, CUmemoryPool pool,
	CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *exported,
	CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *exported, CUdeviceptr pointer);
CUresult cuMemPoolImportPointer(
	CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *exported);

/* virtual memory management */
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
	CUdeviceptr wanted, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
CUresult cuMemSetAccess(
	CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult cuMemGetAccess(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer);
CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *exported, CUmemAllocationHandleType type);
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
	CUmemAllocationGranularity_flags option);
CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer);

/* green contexts */
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type);
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *count,
	const CUdevResource *input, CUdevResource *remaining, unsigned int flags,
	unsigned int least);
CUresult cuDevResourceGenerateDesc(
	CUdevResourceDesc *description, CUdevResource *resources, unsigned int count);
CUresult cuGreenCtxCreate(
	CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);

/* multicast */
CUresult cuMulticastCreate(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags);
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags);
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags);
CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes);
CUresult cuMulticastGetGranularity(
	size_t *bytes, const CUmulticastObjectProp *properties, int option);

/* copies */
CUDA_WITH_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyPeer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				     CUcontext from_context, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes));
CUDA_WITH_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy));
CUDA_WITH_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy));
CUDA_WITH_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy));
CUDA_WITH_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D *copy));
CUDA_WITH_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
					  CUcontext from_context, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream));
CUDA_WITH_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *copy, CUstream stream));
CUDA_WITH_PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count));
CUDA_WITH_PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count));
CUDA_WITH_PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned int value, size_t count));
CUDA_WITH_PTDS(cuMemsetD2D8_v2,
	(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height));
CUDA_WITH_PTDS(cuMemsetD2D16_v2,
	(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height));
CUDA_WITH_PTDS(cuMemsetD2D32_v2,
	(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height));
CUDA_WITH_PTSZ(
	cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream));
CUDA_WITH_PTSZ(
	cuMemsetD32Async, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream));
CUDA_WITH_PTSZ(cuMemsetD2D8Async, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
					  size_t height, CUstream stream));
CUDA_WITH_PTSZ(cuMemsetD2D16Async, (CUdeviceptr to, size_t pitch, unsigned short value,
					   size_t width, size_t height, CUstream stream));
CUDA_WITH_PTSZ(cuMemsetD2D32Async, (CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
					   size_t height, CUstream stream));

/* arrays */
CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor);
CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(
	CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);
CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int number);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);

/* streams and events */
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUDA_WITH_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext *context));
CUDA_WITH_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags));
CUDA_WITH_PTSZ(cuStreamQuery, (CUstream stream));
CUDA_WITH_PTSZ(cuStreamSynchronize, (CUstream stream));
CUDA_WITH_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status));
CUDA_WITH_PTSZ(cuStreamBeginCapture, (CUstream stream));
CUDA_WITH_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode));
CUDA_WITH_PTSZ(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
		const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode));
CUDA_WITH_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *graph));
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);
CUDA_WITH_PTSZ(cuEventRecord, (CUevent event, CUstream stream));
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);

/* modules, libraries, functions */
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count,
	CUjit_option *options, void **option_values);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetLoadingMode(CUmodule_loading_mode *mode);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleGetGlobal_v2(
	CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name);
CUresult cuLinkCreate_v2(
	unsigned int option_count, CUjit_option *options, void **option_values, CUlinkState *state);
CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes,
	const char *name, unsigned int option_count, CUjit_option *options, void **option_values);
CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *bytes);
CUresult cuLinkDestroy(CUlinkState state);
CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
	void **option_values, unsigned int option_count, CUlibraryOption *library_options,
	void **library_values, unsigned int library_option_count);
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
	void **option_values, unsigned int option_count, CUlibraryOption *library_options,
	void **library_values, unsigned int library_option_count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUresult cuLibraryGetGlobal(
	CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name);
CUresult cuLibraryGetManaged(
	CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel);
CUresult cuKernelGetName(const char **name, CUkernel kernel);
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes);
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes);

/* launches */
CUDA_WITH_PTSZ(cuLaunchKernel,
	(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		unsigned int block_x, unsigned int block_y, unsigned int block_z,
		unsigned int shared_bytes, CUstream stream, void **parameters, void **extra));
CUDA_WITH_PTSZ(cuLaunchKernelEx,
	(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra));
CUDA_WITH_PTSZ(cuLaunchCooperativeKernel,
	(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
		unsigned int block_x, unsigned int block_y, unsigned int block_z,
		unsigned int shared_bytes, CUstream stream, void **parameters));
CUDA_WITH_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data));
CUDA_WITH_PTSZ(cuGraphLaunch, (CUgraphExec graph, CUstream stream));
CUDA_WITH_PTSZ(cuGraphUpload, (CUgraphExec graph, CUstream stream));

/* graphs */
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddEmptyNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUdeviceptr pointer);
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraphNodeParams *parameters);
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphInstantiateWithFlags(
	CUgraphExec *instance, CUgraph graph, unsigned long long flags);
CUresult cuGraphInstantiate_v2(
	CUgraphExec *instance, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes);
CUDA_WITH_PTSZ(cuGraphInstantiateWithParams,
	(CUgraphExec * instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters));
CUresult cuGraphInstantiate(
	CUgraphExec *instance, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes);
CUresult cuGraphExecDestroy(CUgraphExec instance);
CUresult cuGraphExecUpdate(
	CUgraphExec instance, CUgraph graph, CUgraphNode *error_node, int *update_result);
CUresult cuGraphExecUpdate_v2(
	CUgraphExec instance, CUgraph graph, CUgraphExecUpdateResultInfo *update_result);

#pragma GCC visibility pop

_Static_assert(sizeof(CUdevResource) == 144, "ABI");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104 &&
		       sizeof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC) == 88,
	"ABI");
_Static_assert(sizeof(CUresult) == 4 && sizeof(CUmemLocation) == 8, "ABI");
_Static_assert(sizeof(CUmemAllocationProp) == 32 && sizeof(CUmemAccessDesc) == 12, "ABI");
_Static_assert(sizeof(CUmemPoolProps) == 88 && sizeof(CUmulticastObjectProp) == 32, "ABI");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200, "ABI");
_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "ABI");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "ABI");
_Static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "ABI");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "ABI");
_Static_assert(sizeof(CUgraphNodeParams) == 256 && sizeof(CUgraphEdgeData) == 8, "ABI");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "ABI");

#endif
