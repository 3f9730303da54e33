/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the program that a stream calls in its turn. They run in a thread that the first of
 * them starts. Work that is submitted to the stream afterwards waits, in the submitting call.
 */
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

struct call {
	CUstream stream;
	uint64_t position;
	CUhostFn function;
	void *data;
	struct call *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t submitted = PTHREAD_COND_INITIALIZER;
static pthread_cond_t returned = PTHREAD_COND_INITIALIZER;
static struct call *first, **last = &first;
static bool started;
static _Atomic uint64_t pending;
static _Thread_local bool calling __attribute__((tls_model("initial-exec")));

static void run_call(struct call *call)
{
	queue_wait(call->stream->context, call->position);
	calling = true;
	call->function(call->data);
	calling = false;
	pthread_mutex_lock(&lock);
	atomic_fetch_add(&call->stream->host_done, 1);
	atomic_fetch_sub(&pending, 1);
	pthread_cond_broadcast(&returned);
	pthread_mutex_unlock(&lock);
	free(call);
}

static void *run_calls(void *unused)
{
	(void)unused;
	for (;;) {
		struct call *call;

		pthread_mutex_lock(&lock);
		while (!first)
			pthread_cond_wait(&submitted, &lock);
		call = first;
		first = call->next;
		if (!first)
			last = &first;
		pthread_mutex_unlock(&lock);
		run_call(call);
	}
	return NULL;
}

static bool start_thread(void)
{
	pthread_t thread;

	if (!started && pthread_create(&thread, NULL, run_calls, NULL) == 0) {
		pthread_detach(thread);
		started = true;
	}
	return started;
}

static CUresult give(CUstream stream, CUhostFn function, void *data)
{
	struct call *call = calloc(1, sizeof(*call));
	bool running;

	REQUIRE(call, CUDA_ERROR_OUT_OF_MEMORY);
	*call = (struct call){stream, atomic_load(&stream->end_ns), function, data, NULL};
	pthread_mutex_lock(&lock);
	running = start_thread();
	if (running) {
		atomic_fetch_add(&stream->host_submitted, 1);
		atomic_fetch_add(&pending, 1);
		*last = call;
		last = &call->next;
		pthread_cond_signal(&submitted);
	}
	pthread_mutex_unlock(&lock);
	if (!running)
		free(call);
	return running ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool host_functions_are_pending(void)
{
	return atomic_load(&pending) != 0;
}

void host_functions_wait(CUstream stream, uint64_t count)
{
	/* A host function must not call the driver; if it does, it must not wait for itself. */
	if (calling || atomic_load_explicit(&stream->host_done, memory_order_acquire) >= count)
		return;
	pthread_mutex_lock(&lock);
	while (atomic_load(&stream->host_done) < count)
		pthread_cond_wait(&returned, &lock);
	pthread_mutex_unlock(&lock);
}

static CUresult launch(CUstream handle, enum stream_flavour flavour, CUhostFn function, void *data)
{
	IN_CALL();
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(function, CUDA_ERROR_INVALID_VALUE);
	return stream_captures(stream) ? capture_refuse(stream) : give(stream, function, data);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	return launch(stream, STREAM_LEGACY, function, data);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	return launch(stream, STREAM_PER_THREAD, function, data);
}
