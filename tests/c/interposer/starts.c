/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to start work on a card: call_SYMBOL() of every function that does. A library of
 * test_starts.py.
 */
#include "cuda_work.h"

#define BYTES 4096
#define ONE_THREAD                                                                                 \
	.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			    ".visible .entry spin(.param .u64 spin_duration_ns)\n{\n\tret;\n}\n";

static CUcontext context;
static CUfunction kernel;
static CUstream stream;
static CUgraphExec instance;
static CUdeviceptr to, from, managed;
static CUarray array;
static unsigned char host[BYTES];
static uint64_t duration = 1000;
static void *arguments[] = {&duration};
static size_t bytes = BYTES, zero, failed;
static CUmemLocation card = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
static CUmemcpyAttributes attributes = {.srcAccessOrder = 1};
static CUlaunchConfig config = {ONE_THREAD};
static CUDA_LAUNCH_PARAMS launches = {ONE_THREAD, .kernelParams = arguments};
static CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	.dstMemoryType = CU_MEMORYTYPE_DEVICE,
	.srcPitch = 256,
	.dstPitch = 256,
	.WidthInBytes = 256,
	.Height = 16};
static CUDA_MEMCPY3D solid = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	.dstMemoryType = CU_MEMORYTYPE_DEVICE,
	.srcPitch = 256,
	.srcHeight = 4,
	.dstPitch = 256,
	.dstHeight = 4,
	.WidthInBytes = 256,
	.Height = 4,
	.Depth = 4};
static CUDA_MEMCPY2D_v1 first_flat = {.WidthInBytes = 256, .Height = 16};
static CUDA_MEMCPY3D_v1 first_solid = {.WidthInBytes = 256, .Height = 4, .Depth = 4};
static CUDA_MEMCPY3D_BATCH_OP box = {.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
	.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
	.extent = {.width = 256, .height = 4, .depth = 4},
	.srcAccessOrder = 1};
static CUDA_FABRIC_COPY_BATCH_OP hop = {.size = BYTES};
static CUmemDecompressParams piece = {.srcNumBytes = BYTES};

#define START(symbol, given)                                                                       \
	CUresult call_##symbol(void)                                                               \
	{                                                                                          \
		return symbol given;                                                               \
	}
#define NOT_HERE(symbol, given) START(symbol, given)
#include "starts.inc"

/* The result of the first call that failed. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		CUresult result_ = (call);                                                         \
		if (result_ != CUDA_SUCCESS)                                                       \
			return result_;                                                            \
	} while (0)

static CUresult make_instance(void)
{
	const CUDA_KERNEL_NODE_PARAMS node = {
		.func = kernel, ONE_THREAD, .kernelParams = arguments};
	CUgraph graph;
	CUgraphNode made = NULL;

	TRY(cuGraphCreate(&graph, 0));
	for (int i = 0; i < 2; i++)
		TRY(cuGraphAddKernelNode(&made, graph, &made, made ? 1 : 0, &node));
	TRY(cuGraphInstantiateWithFlags(&instance, graph, 0));
	return cuGraphDestroy(graph);
}

static CUresult make_memory(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = {
		.Width = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	TRY(cuMemAlloc_v2(&to, BYTES));
	TRY(cuMemAlloc_v2(&from, BYTES));
	TRY(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
	TRY(cuArrayCreate_v2(&array, &shape));
	flat.srcDevice = solid.srcDevice = box.src.op.ptr.ptr = from;
	flat.dstDevice = solid.dstDevice = box.dst.op.ptr.ptr = to;
	return CUDA_SUCCESS;
}

/* How long kernels and graphs made from now on take. */
CUresult starts_set_duration(uint64_t duration_ns)
{
	duration = duration_ns;
	if (instance)
		TRY(cuGraphExecDestroy(instance));
	TRY(cuParamSetv(kernel, 0, &duration, sizeof(duration)));
	return make_instance();
}

/* With the driver that is open to all, make on its first device what the calls need. */
CUresult starts_open(void)
{
	CUmodule module;

	TRY(cuInit(0));
	TRY(cuDevicePrimaryCtxRetain(&context, 0));
	TRY(cuCtxSetCurrent(context));
	TRY(cuModuleLoadData(&module, image));
	TRY(cuModuleGetFunction(&kernel, module, "spin"));
	TRY(cuFuncSetBlockShape(kernel, 1, 1, 1));
	TRY(cuParamSetSize(kernel, sizeof(duration)));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	config.hStream = launches.hStream = stream;
	launches.function = kernel;
	TRY(make_memory());
	return starts_set_duration(duration);
}
