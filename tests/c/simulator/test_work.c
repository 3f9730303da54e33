/* SPDX-License-Identifier: Apache-2.0
 *
 * The less common ways of starting work: each takes the card time that it should, and moves what it
 * should.
 */
#include "made.h"

#include <pthread.h>
#include <string.h>

#include "cuda_work.h"
#include "expect.h"

#define MICROSECOND UINT64_C(1000)

static CUfunction function(void)
{
	return (CUfunction)(void *)timed_kernel();
}

/* Card time that was ever given to the contexts of a card. */
static uint64_t submitted_ns(unsigned int card)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < SIM_CONTEXTS; i++)
		sum += atomic_load(&device->cards[card].contexts[i].submitted_ns);
	return sum;
}

static void the_first_form_of_a_launch_keeps_its_arguments_with_the_function(void)
{
	uint64_t duration_ns = 70 * MICROSECOND, before = submitted_ns(0);

	EXPECT_EQUAL(cuLaunchGrid(function(), 1, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuFuncSetBlockShape(function(), 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuFuncSetBlockShape(function(), 32, 2, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuParamSetv(function(), 0, &duration_ns, 4097), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuParamSetv(function(), 0, &duration_ns, sizeof(duration_ns)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuParamSetSize(function(), sizeof(duration_ns)), CUDA_SUCCESS);
	duration_ns = 0; /* the function has its own */
	EXPECT_EQUAL(cuLaunch(function()), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLaunchGrid(function(), 4, 4), CUDA_SUCCESS);
	EXPECT_EQUAL(submitted_ns(0) - before, 140 * MICROSECOND);
	EXPECT_EQUAL(cuParamSeti(function(), 0, 20000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuParamSeti(function(), 4, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLaunchGridAsync(function(), 1, 1, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
	EXPECT_EQUAL(submitted_ns(0) - before, 160 * MICROSECOND);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* A stream of a further context, on the second card. */
static CUstream stream_elsewhere(CUcontext *elsewhere)
{
	CUstream stream;
	CUcontext current;

	EXPECT_EQUAL(cuCtxGetCurrent(&current), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevicePrimaryCtxRetain(elsewhere, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(*elsewhere), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(current), CUDA_SUCCESS);
	return stream;
}

static void one_call_launches_on_several_cards_or_on_none(void)
{
	uint64_t duration_ns = 30 * MICROSECOND;
	void *parameters[] = {&duration_ns};
	CUcontext elsewhere;
	CUstream here;
	CUDA_LAUNCH_PARAMS launches[2];

	EXPECT_EQUAL(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	launches[0] = (CUDA_LAUNCH_PARAMS){.function = function(),
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.hStream = here,
		.kernelParams = parameters};
	launches[1] = launches[0];
	launches[1].hStream = stream_elsewhere(&elsewhere);
	const uint64_t first = submitted_ns(0), second = submitted_ns(1);
	EXPECT_EQUAL(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(submitted_ns(0) - first, duration_ns);
	EXPECT_EQUAL(submitted_ns(1) - second, duration_ns);
	launches[1].hStream = here;
	EXPECT_EQUAL(
		cuLaunchCooperativeKernelMultiDevice(launches, 2, 0), CUDA_ERROR_INVALID_DEVICE);
	launches[1].hStream = NULL;
	EXPECT_EQUAL(
		cuLaunchCooperativeKernelMultiDevice(launches, 2, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(submitted_ns(0) - first, duration_ns);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(here), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
}

static void bytes_come_through_arrays_of_one_dimension(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = {
		.Width = 256, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	unsigned char out[64], in[64] = {0};
	CUarray one, other;
	CUdeviceptr buffer;

	memset(out, 0x7e, sizeof(out));
	EXPECT_EQUAL(cuArrayCreate_v2(&one, &shape), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayCreate_v2(&other, &shape), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&buffer, 64), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyHtoA_v2(one, 128, out, 64), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyAtoA_v2(other, 0, one, 128, 64), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyAtoD_v2(buffer, other, 0, 64), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoA_v2(one, 512, buffer, 64), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyAtoHAsync_v2_ptsz(in, one, 512, 64, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in, out, 64), 0);
	EXPECT_EQUAL(cuMemcpyHtoAAsync_v2(one, 0, NULL, 64, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuArrayDestroy(one), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayDestroy(other), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(buffer), CUDA_SUCCESS);
}

static void a_batch_copies_all_and_names_what_it_could_not(void)
{
	unsigned char out[2][32], in[2][32] = {{0}};
	CUmemcpyAttributes attributes = {.srcAccessOrder = 1};
	size_t starts = 0, failed = 7, bytes[2] = {32, 32};
	CUdeviceptr buffer, from[2], to[2];
	CUstream stream;

	memset(out, 0x3c, sizeof(out));
	EXPECT_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&buffer, 64), CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		from[i] = (CUdeviceptr)(uintptr_t)out[i];
		to[i] = buffer + (CUdeviceptr)i * 32;
	}
	EXPECT_EQUAL(cuMemcpyBatchAsync_v2(to, from, bytes, 2, &attributes, &starts, 1, stream),
		CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyBatchAsync_v2(to, from, bytes, 2, &attributes, &starts, 1, NULL),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemcpyBatchAsync_v2(to, from, bytes, 2, NULL, NULL, 0, stream),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemcpyWithAttributesAsync(
			     (CUdeviceptr)(uintptr_t)in, buffer, 64, &attributes, NULL),
		CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in, out, 64), 0);
	to[1] = buffer + ((CUdeviceptr)1 << 30);
	EXPECT_EQUAL(
		cuMemcpyBatchAsync_ptsz(to, from, bytes, 2, &attributes, &starts, 1, &failed, NULL),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(failed, 1);
	EXPECT_EQUAL(cuMemFree_v2(buffer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static void a_box_is_copied_by_the_elements_of_its_array(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = {
		.Width = 16, .Height = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	uint32_t out[4][8], in[4][8] = {{0}};
	CUDA_MEMCPY3D_BATCH_OP copies[2] = {{.extent = {8, 4, 1}, .srcAccessOrder = 1},
		{.extent = {8, 4, 1}, .srcAccessOrder = 1}};
	CUstream stream;
	CUarray array;

	for (int i = 0; i < 32; i++)
		out[i / 8][i % 8] = (uint32_t)i;
	EXPECT_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayCreate_v2(&array, &shape), CUDA_SUCCESS);
	copies[0].src.type = copies[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	copies[0].dst.type = copies[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	copies[0].src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)out;
	copies[1].dst.op.ptr.ptr = (CUdeviceptr)(uintptr_t)in;
	copies[0].dst.op.array.array = copies[1].src.op.array.array = array;
	copies[0].dst.op.array.offset.x = copies[1].src.op.array.offset.x = 4;
	EXPECT_EQUAL(cuMemcpy3DBatchAsync_v2(2, copies, 0, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in, out, sizeof(in)), 0);
	EXPECT_EQUAL(cuMemcpy3DWithAttributesAsync(&copies[1], 0, NULL), CUDA_SUCCESS);
	copies[1].extent.depth = 0;
	EXPECT_EQUAL(cuMemcpy3DBatchAsync(2, copies, NULL, 0, stream), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static CUDA_KERNEL_NODE_PARAMS kernel_of(void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function(),
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = parameters};
}

static uint64_t launched_ns(CUgraphExec instance)
{
	const uint64_t before = submitted_ns(0);

	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	return submitted_ns(0) - before;
}

static void a_kernel_node_keeps_its_parameters_and_an_instance_its_own(void)
{
	uint64_t duration_ns = 10 * MICROSECOND;
	void *parameters[] = {&duration_ns};
	CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(parameters), told;
	CUgraph graph, other;
	CUgraphNode node, second, error_node;
	CUgraphExec instance;
	int update_result;

	EXPECT_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel), CUDA_SUCCESS);
	duration_ns = 25 * MICROSECOND;
	EXPECT_EQUAL(cuGraphKernelNodeGetParams_v2(node, &told), CUDA_SUCCESS);
	EXPECT_EQUAL(*(uint64_t *)told.kernelParams[0], 10 * MICROSECOND);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(launched_ns(instance), 10 * MICROSECOND);
	EXPECT_EQUAL(cuGraphExecKernelNodeSetParams(instance, node, &kernel), CUDA_SUCCESS);
	EXPECT_EQUAL(launched_ns(instance), 25 * MICROSECOND);
	duration_ns = 40 * MICROSECOND;
	EXPECT_EQUAL(cuGraphKernelNodeSetParams(node, &kernel), CUDA_SUCCESS);
	EXPECT_EQUAL(launched_ns(instance), 25 * MICROSECOND);
	EXPECT_EQUAL(cuGraphClone(&other, graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecUpdate(instance, other, &error_node, &update_result), CUDA_SUCCESS);
	EXPECT_EQUAL(launched_ns(instance), 40 * MICROSECOND);
	EXPECT_EQUAL(cuGraphAddKernelNode_v2(&second, other, NULL, 0, &kernel), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecUpdate(instance, other, &error_node, &update_result),
		CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	EXPECT_EQUAL(update_result, 2); /* the topology has changed */
	EXPECT_EQUAL(launched_ns(instance), 40 * MICROSECOND);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(other), CUDA_SUCCESS);
}

struct asked {
	CUcontext context;
	CUevent event;
	CUstreamCaptureMode mode;
	CUresult result;
};

static void *ask(void *argument)
{
	struct asked *asked = argument;

	EXPECT_EQUAL(cuThreadExchangeStreamCaptureMode(&asked->mode), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(asked->context), CUDA_SUCCESS);
	asked->result = cuEventQuery(asked->event);
	return NULL;
}

static CUresult asked_by_another_thread(CUevent event, CUstreamCaptureMode mode)
{
	struct asked asked = {.event = event, .mode = mode};
	pthread_t thread;

	EXPECT_EQUAL(cuCtxGetCurrent(&asked.context), CUDA_SUCCESS);
	EXPECT_EQUAL(pthread_create(&thread, NULL, ask, &asked), 0);
	EXPECT_EQUAL(pthread_join(thread, NULL), 0);
	return asked.result;
}

static void a_relaxed_thread_asks_for_events_while_others_capture(void)
{
	CUstream stream, other;
	CUevent event;
	CUgraph graph;

	EXPECT_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(event, other), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	EXPECT_EQUAL(asked_by_another_thread(event, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	EXPECT_EQUAL(asked_by_another_thread(event, CU_STREAM_CAPTURE_MODE_GLOBAL),
		CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT_EQUAL(cuEventDestroy_v2(event), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(other), CUDA_SUCCESS);
}

void test_work(void)
{
	the_first_form_of_a_launch_keeps_its_arguments_with_the_function();
	one_call_launches_on_several_cards_or_on_none();
	bytes_come_through_arrays_of_one_dimension();
	a_batch_copies_all_and_names_what_it_could_not();
	a_box_is_copied_by_the_elements_of_its_array();
	a_kernel_node_keeps_its_parameters_and_an_instance_its_own();
	a_relaxed_thread_asks_for_events_while_others_capture();
}
