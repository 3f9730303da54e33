/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to start work on a card: call_SYMBOL() of every function that does. A library of
 * test_starts.py.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_work.h"
#include "simulator/device.h"

#define BYTES 4096
#define FURTHER(EACH)                                                                              \
	EACH(cuInit)                                                                               \
	EACH(cuDevicePrimaryCtxRetain)                                                             \
	EACH(cuCtxSetCurrent)                                                                      \
	EACH(cuModuleLoadData)                                                                     \
	EACH(cuModuleGetFunction)                                                                  \
	EACH(cuFuncSetBlockShape)                                                                  \
	EACH(cuParamSetSize)                                                                       \
	EACH(cuParamSetv)                                                                          \
	EACH(cuStreamCreate)                                                                       \
	EACH(cuMemAlloc_v2)                                                                        \
	EACH(cuMemAllocManaged)                                                                    \
	EACH(cuArrayCreate_v2)                                                                     \
	EACH(cuGraphCreate)                                                                        \
	EACH(cuGraphDestroy)                                                                       \
	EACH(cuGraphAddKernelNode)                                                                 \
	EACH(cuGraphExecDestroy)                                                                   \
	EACH(cuGraphInstantiateWithFlags)

static struct {
#define DECLARE(symbol) __typeof__(&symbol) symbol;
	FURTHER(DECLARE)
#define START(symbol, arguments) DECLARE(symbol)
#define NOT_HERE(symbol, arguments) DECLARE(symbol)
#include "starts.inc"
#undef START
#undef NOT_HERE
} cu;

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
static CUlaunchConfig config = {.gridDimX = 1,
	.gridDimY = 1,
	.gridDimZ = 1,
	.blockDimX = 1,
	.blockDimY = 1,
	.blockDimZ = 1};
static CUDA_LAUNCH_PARAMS launches = {.gridDimX = 1,
	.gridDimY = 1,
	.gridDimZ = 1,
	.blockDimX = 1,
	.blockDimY = 1,
	.blockDimZ = 1,
	.kernelParams = arguments};
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

#define CALL(symbol, given)                                                                        \
	CUresult call_##symbol(void)                                                               \
	{                                                                                          \
		return cu.symbol given;                                                            \
	}
#define START(symbol, given) CALL(symbol, given)
#define NOT_HERE(symbol, given) CALL(symbol, given)
#include "starts.inc"
#undef START
#undef NOT_HERE

static void find_functions(void *library)
{
#define FIND_ONE(symbol) *(void **)&cu.symbol = dlsym(library, #symbol);
#define START(symbol, given) FIND_ONE(symbol)
#define NOT_HERE(symbol, given) FIND_ONE(symbol)
	FURTHER(FIND_ONE)
#include "starts.inc"
#undef START
#undef NOT_HERE
}

/* The result of the first call that failed. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		CUresult result_ = (call);                                                         \
		if (result_ != CUDA_SUCCESS)                                                       \
			return result_;                                                            \
	} while (0)

static CUresult make_instance(void)
{
	const CUDA_KERNEL_NODE_PARAMS node = {.func = kernel,
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = arguments};
	CUgraph graph;
	CUgraphNode made = NULL;

	TRY(cu.cuGraphCreate(&graph, 0));
	for (int i = 0; i < 2; i++)
		TRY(cu.cuGraphAddKernelNode(&made, graph, &made, made ? 1 : 0, &node));
	TRY(cu.cuGraphInstantiateWithFlags(&instance, graph, 0));
	return cu.cuGraphDestroy(graph);
}

static CUresult make_memory(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = {
		.Width = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

	TRY(cu.cuMemAlloc_v2(&to, BYTES));
	TRY(cu.cuMemAlloc_v2(&from, BYTES));
	TRY(cu.cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
	TRY(cu.cuArrayCreate_v2(&array, &shape));
	flat.srcDevice = solid.srcDevice = box.src.op.ptr.ptr = from;
	flat.dstDevice = solid.dstDevice = box.dst.op.ptr.ptr = to;
	return CUDA_SUCCESS;
}

/* How long kernels and graphs made from now on take. */
CUresult starts_set_duration(uint64_t duration_ns)
{
	duration = duration_ns;
	if (instance)
		TRY(cu.cuGraphExecDestroy(instance));
	TRY(cu.cuParamSetv(kernel, 0, &duration, sizeof(duration)));
	return make_instance();
}

/* With the driver that is open, make on its first device what the calls need. */
CUresult starts_open(void *library)
{
	CUmodule module;

	find_functions(library);
	TRY(cu.cuInit(0));
	TRY(cu.cuDevicePrimaryCtxRetain(&context, 0));
	TRY(cu.cuCtxSetCurrent(context));
	TRY(cu.cuModuleLoadData(&module, image));
	TRY(cu.cuModuleGetFunction(&kernel, module, "spin"));
	TRY(cu.cuFuncSetBlockShape(kernel, 1, 1, 1));
	TRY(cu.cuParamSetSize(kernel, sizeof(duration)));
	TRY(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	config.hStream = launches.hStream = stream;
	launches.function = kernel;
	TRY(make_memory());
	return starts_set_duration(duration);
}

/* The time of its first card that the driver was ever given, as the machine has it: whatever stands
 * before the driver has no part in this. */
uint64_t starts_given_ns(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct sim_device *file = mmap(NULL, SIM_FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t sum = 0;

	close(fd);
	if (file == MAP_FAILED)
		abort();
	for (unsigned i = 0; i < SIM_CONTEXTS; i++)
		sum += atomic_load(&file->cards[0].contexts[i].submitted_ns);
	munmap(file, SIM_FILE_BYTES);
	return sum;
}
