/* SPDX-License-Identifier: Apache-2.0
 *
 * Work in its order: launches, events, waits, host functions. Elapsed times are the card's; they
 * are compared with what the work takes at least, never with the test's own clock.
 */
#include "made.h"

#include "expect.h"

#include <pthread.h>

#define MS UINT64_C(1000000)

static void a_kernel_takes_the_time_that_its_launch_says(void)
{
	CUevent start, end;
	float elapsed;

	EXPECT_EQUAL(cuEventCreate(&start, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventCreate(&end, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(start, NULL), CUDA_SUCCESS);
	for (int i = 0; i < 5; i++)
		EXPECT_EQUAL(launch_ns(NULL, 4 * MS), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(end, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventSynchronize(end), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventElapsedTime(&elapsed, start, end), CUDA_SUCCESS);
	EXPECT(elapsed >= 20.0F);
	EXPECT_EQUAL(cuEventDestroy_v2(start), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(end), CUDA_SUCCESS);
}

static void what_is_not_done_is_not_ready(void)
{
	CUstream stream;
	CUevent event;

	EXPECT_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventQuery(event), CUDA_SUCCESS); /* never recorded */
	EXPECT_EQUAL(launch_ns(stream, 100000 * MS), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	EXPECT_EQUAL(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	EXPECT_EQUAL(cuStreamQuery(CU_STREAM_LEGACY), CUDA_SUCCESS); /* given nothing */
}

/* After the test above its context has minutes of work: from here on in one of its own. */
static CUcontext fresh_context(void)
{
	CUcontext context;

	EXPECT_EQUAL(cuCtxCreate_v2(&context, 0, 1), CUDA_SUCCESS);
	return context;
}

static int found_done;

static void note_query(void *event)
{
	/* Called when the work before it is done: its event says so. */
	found_done += cuEventQuery(event) == CUDA_SUCCESS;
}

static void a_host_function_runs_after_the_work_before_it(void)
{
	CUevent event;

	EXPECT_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(NULL, 5 * MS), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(event, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLaunchHostFunc(NULL, note_query, event), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLaunchHostFunc(NULL, note_query, event), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(found_done, 2);
	EXPECT_EQUAL(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

static void more_events_than_markers_all_keep_their_moment(void)
{
	enum { EVENTS = 3 * SIM_MARKERS };
	static CUevent events[EVENTS];
	float elapsed;

	for (int i = 0; i < EVENTS; i++) {
		EXPECT_EQUAL(cuEventCreate(&events[i], 0), CUDA_SUCCESS);
		EXPECT_EQUAL(launch_ns(NULL, 1000), CUDA_SUCCESS);
		EXPECT_EQUAL(cuEventRecord(events[i], NULL), CUDA_SUCCESS);
	}
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	for (int i = 1; i < EVENTS; i++) {
		EXPECT_EQUAL(cuEventElapsedTime(&elapsed, events[i - 1], events[i]), CUDA_SUCCESS);
		EXPECT(elapsed >= 0.001F);
	}
	for (int i = 0; i < EVENTS; i++)
		EXPECT_EQUAL(cuEventDestroy_v2(events[i]), CUDA_SUCCESS);
}

static void a_full_queue_makes_the_next_launch_wait(void)
{
	CUevent first;
	uint64_t launched = 0;

	EXPECT_EQUAL(cuEventCreate(&first, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(NULL, 1 * MS), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(first, NULL), CUDA_SUCCESS);
	while (cuEventQuery(first) == CUDA_ERROR_NOT_READY && launched < 100000) {
		EXPECT_EQUAL(launch_ns(NULL, 10000), CUDA_SUCCESS);
		launched++;
	}
	/* The 1024th after the first could not be given before the first had ended. */
	EXPECT(launched <= 1024);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(first), CUDA_SUCCESS);
}

static void a_graph_takes_the_time_of_all_its_kernels(void)
{
	uint64_t duration_ns = 3 * MS;
	void *parameters[] = {&duration_ns};
	const CUDA_KERNEL_NODE_PARAMS node = {.kern = timed_kernel(),
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = parameters};
	CUgraphNode first, second, empty;
	CUgraphExec instance;
	CUevent start, end;
	size_t count = 0;
	float elapsed;
	CUgraph graph;

	EXPECT_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &node), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddEmptyNode(&empty, graph, &first, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddKernelNode_v2(&second, graph, &empty, 1, &node), CUDA_SUCCESS);
	duration_ns = 0; /* the nodes have their own by now */
	EXPECT_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 3);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventCreate(&start, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventCreate(&end, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(start, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(end, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventSynchronize(end), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventElapsedTime(&elapsed, start, end), CUDA_SUCCESS);
	EXPECT(elapsed >= 6.0F);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(start), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(end), CUDA_SUCCESS);
}

static void *launch_many(void *context)
{
	EXPECT_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	for (int i = 0; i < 200; i++) {
		CUdeviceptr pointer;

		EXPECT_EQUAL(launch_ns(NULL, 100), CUDA_SUCCESS);
		EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 3000), CUDA_SUCCESS);
		EXPECT_EQUAL(cuMemsetD8Async(pointer, 1, 3000, NULL), CUDA_SUCCESS);
		EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	}
	return NULL;
}

static void threads_share_a_context(CUcontext context)
{
	size_t before = free_bytes();
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		EXPECT_EQUAL(pthread_create(&threads[i], NULL, launch_many, context), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

void test_streams(void)
{
	CUcontext context;

	a_kernel_takes_the_time_that_its_launch_says();
	what_is_not_done_is_not_ready();
	context = fresh_context();
	a_host_function_runs_after_the_work_before_it();
	more_events_than_markers_all_keep_their_moment();
	a_full_queue_makes_the_next_launch_wait();
	a_graph_takes_the_time_of_all_its_kernels();
	threads_share_a_context(context);
	EXPECT_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
}
