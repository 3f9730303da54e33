/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a contiguous range of bytes. The bytes move when the call is made, which is a moment
 * that stream order allows because no kernel computes; the card time of the copy is added to the
 * stream, and synchronous calls wait for it.
 */
#include "copy.h"

#include <string.h>

void *copy_contents(CUdeviceptr pointer, size_t bytes, bool writing)
{
	return memory_is_device(pointer) ? memory_contents(pointer, bytes, writing)
					 : (void *)pointer;
}

uint64_t copy_duration(CUcontext context, size_t bytes, bool over_link)
{
	const struct sim_profile *profile = card_profile(context->card);
	uint64_t speed =
		over_link ? profile->link_bytes_per_second : profile->memory_bytes_per_second;

	return duration_scaled(
		(uint64_t)((unsigned __int128)bytes * 1000000000u / (speed ? speed : 1)));
}

CUresult copy_finish(CUstream stream, size_t bytes, bool over_link, bool wait)
{
	queue_submit(stream, copy_duration(stream->context, bytes, over_link));
	if (wait)
		stream_drain(stream);
	return CUDA_SUCCESS;
}

CUresult copy_capture(CUstream stream, size_t bytes, bool over_link, bool wait)
{
	return wait ? capture_refuse(stream)
		    : capture_work(stream, CU_GRAPH_NODE_TYPE_MEMCPY,
			      copy_duration(stream->context, bytes, over_link));
}

CUresult copy_run(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle,
	enum stream_flavour flavour, bool wait)
{
	IN_CALL();
	bool over_link = !memory_is_device(to) || !memory_is_device(from);
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	void *target, *source;

	if (status != CUDA_SUCCESS || bytes == 0)
		return status;
	if (stream_captures(stream))
		return copy_capture(stream, bytes, over_link, wait);
	target = copy_contents(to, bytes, true);
	source = copy_contents(from, bytes, false);
	REQUIRE(target && source, CUDA_ERROR_INVALID_VALUE);
	/* Bytes that an earlier host function may still write or read. */
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	memmove(target, source, bytes);
	return copy_finish(stream, bytes, over_link, wait);
}

/* A pointer that the caller declares to be a device pointer. */
static CUresult device_run(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device,
	size_t bytes, CUstream handle, enum stream_flavour flavour, bool wait)
{
	if (bytes > 0) {
		REQUIRE(!to_device || memory_is_device(to), CUDA_ERROR_INVALID_VALUE);
		REQUIRE(!from_device || memory_is_device(from), CUDA_ERROR_INVALID_VALUE);
	}
	return copy_run(to, from, bytes, handle, flavour, wait);
}

#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
#define BOTH(name, suffix, parameters, call)                                                       \
	CUresult name parameters                                                                   \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_LEGACY;                                 \
		return call;                                                                       \
	}                                                                                          \
	CUresult name##suffix parameters                                                           \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_PER_THREAD;                             \
		return call;                                                                       \
	}

BOTH(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
	copy_run(to, from, bytes, NULL, flavour, true))
BOTH(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes),
	device_run(to, true, HOST(from), false, bytes, NULL, flavour, true))
BOTH(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes),
	device_run(HOST(to), false, from, true, bytes, NULL, flavour, true))
/* Within the card, a synchronous copy does not wait either. */
BOTH(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
	device_run(to, true, from, true, bytes, NULL, flavour, false))
BOTH(cuMemcpyPeer, _ptds,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes),
	((void)to_context, (void)from_context,
		device_run(to, true, from, true, bytes, NULL, flavour, true)))
BOTH(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	copy_run(to, from, bytes, stream, flavour, false))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
	device_run(to, true, HOST(from), false, bytes, stream, flavour, false))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
	device_run(HOST(to), false, from, true, bytes, stream, flavour, false))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	device_run(to, true, from, true, bytes, stream, flavour, false))
BOTH(cuMemcpyPeerAsync, _ptsz,
	(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
		size_t bytes, CUstream stream),
	((void)to_context, (void)from_context,
		device_run(to, true, from, true, bytes, stream, flavour, false)))
