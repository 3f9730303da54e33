/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that another API created, imported by a descriptor. There is no such API here: any file is
 * accepted, and the import takes of the card the bytes that its description states, until it is
 * destroyed and its last buffer is freed. A file that is large enough holds the contents.
 */
#include "external.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXTERNAL_KIND UINT64_C(0x45585445524e4131)

struct CUextMemory_st {
	uint64_t kind; /* 0: destroyed; its buffers keep it alive */
	CUcontext context;
	uint64_t bytes;
	int fd;
	struct region *buffers;
	CUexternalMemory next;
};

static CUexternalMemory all;

static bool external_valid(CUexternalMemory memory)
{
	return memory && memory->kind == EXTERNAL_KIND;
}

static bool take(CUcontext context, uint64_t bytes)
{
	bool fits;

	card_lock(context->card);
	fits = card_reserve(context->card, bytes);
	card_unlock(context->card);
	return fits;
}

/* Nothing is left of it when it is destroyed and has no buffers. */
static void end_unused(CUexternalMemory memory)
{
	if (memory->kind != 0 || memory->buffers)
		return;
	for (CUexternalMemory *link = &all; *link; link = &(*link)->next) {
		if (*link == memory) {
			*link = memory->next;
			break;
		}
	}
	card_lock(memory->context->card);
	card_release(memory->context->card, memory->bytes);
	card_unlock(memory->context->card);
	close(memory->fd);
	free(memory);
}

CUresult cuImportExternalMemory(
	CUexternalMemory *result, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUexternalMemory memory;
	struct stat file;

	REQUIRE_CONTEXT(context);
	REQUIRE(result && description && description->size > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
		CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(fstat(description->handle.fd, &file) == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_FAULT(context->card);
	memory = calloc(1, sizeof(*memory));
	REQUIRE(memory, CUDA_ERROR_OUT_OF_MEMORY);
	if (!take(context, description->size)) {
		free(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*memory = (struct CUextMemory_st){.kind = EXTERNAL_KIND,
		.context = context,
		.bytes = description->size,
		.fd = description->handle.fd /* ours from now on */};
	space_take();
	memory->next = all;
	all = memory;
	space_drop();
	*result = memory;
	return CUDA_SUCCESS;
}

/* Map the file behind the addresses, if it is large enough. */
static bool back(const struct region *region, int fd, uint64_t offset)
{
	struct stat file;

	if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) ||
		(uint64_t)file.st_size < offset + region->bytes ||
		offset % (uint64_t)sysconf(_SC_PAGESIZE) != 0)
		return true;
	return mmap((void *)(region->base + space_shadow()), region->bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset) != MAP_FAILED;
}

static CUresult map(CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description,
	CUdeviceptr *pointer)
{
	uint64_t units = (description->size + UNIT_BYTES - 1) / UNIT_BYTES;
	struct region *region = NULL;

	if (space_ready() && units < UINT32_MAX)
		region = region_new(REGION_EXTERNAL, (uint32_t)units, 1);
	REQUIRE(region, CUDA_ERROR_OUT_OF_MEMORY);
	region->bytes = description->size;
	if (!back(region, memory->fd, description->offset)) {
		region_free(region);
		return CUDA_ERROR_MAP_FAILED;
	}
	region->context = memory->context;
	region->external = memory;
	region->next = memory->buffers;
	if (memory->buffers)
		memory->buffers->previous = region;
	memory->buffers = region;
	*pointer = region->base;
	return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(pointer && description && external_valid(memory) && description->flags == 0 &&
			description->size > 0 && description->offset < memory->bytes &&
			description->size <= memory->bytes - description->offset,
		CUDA_ERROR_INVALID_VALUE);
	space_take();
	result = map(memory, description, pointer);
	space_drop();
	return result;
}

void external_give(struct region *region)
{
	CUexternalMemory memory = region->external;

	mmap((void *)(region->base + space_shadow()), region->units * UNIT_BYTES,
		PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		0);
	region->written = false;
	if (region->previous)
		region->previous->next = region->next;
	else
		memory->buffers = region->next;
	if (region->next)
		region->next->previous = region->previous;
	region_free(region);
	end_unused(memory);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	REQUIRE_DRIVER();
	REQUIRE(external_valid(memory), CUDA_ERROR_INVALID_HANDLE);
	space_take();
	memory->kind = 0;
	end_unused(memory);
	space_drop();
	return CUDA_SUCCESS;
}

void external_forget_context(CUcontext context)
{
	space_take();
	for (CUexternalMemory memory = all, next; memory; memory = next) {
		next = memory->next;
		if (memory->context != context)
			continue;
		memory->kind = EXTERNAL_KIND; /* so that its last buffer does not end it */
		while (memory->buffers)
			external_give(memory->buffers);
		memory->kind = 0;
		end_unused(memory);
	}
	space_drop();
}
