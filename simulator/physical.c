/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory without addresses: cuMemCreate. It is a memfd, so that two mappings show the same bytes
 * and a descriptor can carry it to another process. Once exported it is a piece of the card
 * (piece.h), counted once for all processes that hold a handle or a mapping of it. A process has
 * one object for it, and a handle for each import.
 */
#include "physical.h"

#include "memory.h"
#include "multicast.h"
#include "piece.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_NAME "gpushare-sim-memory"
#define PHYSICAL_KIND UINT64_C(0x5048595349434131)
#define IMPORT_KIND UINT64_C(0x494d504f52543131)

/* Under the space's latch. */
static struct physical *all;

/* The handle of an import. */
struct import {
	uint64_t kind;
	struct physical *physical;
};

static struct import *import_of(CUmemGenericAllocationHandle handle)
{
	struct import *import = (struct import *)handle;

	return import && import->kind == IMPORT_KIND ? import : NULL;
}

struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical = (struct physical *)handle;

	if (import_of(handle))
		return import_of(handle)->physical;
	return physical && physical->kind == PHYSICAL_KIND ? physical : NULL;
}

/* Its memory returns to the card, or passes to another holder. */
static void uncount(struct physical *physical)
{
	if (!physical->card)
		return;
	card_lock(physical->card);
	if (physical->shared)
		piece_drop(physical->card, physical->maker, physical->number);
	else
		card_release(physical->card, physical->bytes);
	card_unlock(physical->card);
}

void physical_drop(struct physical *physical)
{
	if (--physical->references > 0)
		return;
	for (struct physical **link = &all; *link; link = &(*link)->next) {
		if (*link == physical) {
			*link = physical->next;
			break;
		}
	}
	close(physical->fd);
	uncount(physical);
	physical->kind = 0;
	free(physical);
}

static bool on_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult properties_check(const CUmemAllocationProp *properties)
{
	REQUIRE(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED,
		CUDA_ERROR_INVALID_VALUE);
	if (!on_host(&properties->location)) {
		REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
			CUDA_ERROR_INVALID_VALUE);
		REQUIRE(device_valid(properties->location.id), CUDA_ERROR_INVALID_DEVICE);
	}
	REQUIRE(properties->requestedHandleTypes <= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		CUDA_ERROR_NOT_SUPPORTED);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
	CUmemAllocationGranularity_flags option)
{
	CUresult result;

	(void)option;
	REQUIRE_DRIVER();
	result = properties_check(properties);
	REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
	if (result == CUDA_SUCCESS)
		*bytes = UNIT_BYTES;
	return result;
}

static int memory_file(const struct physical *physical)
{
	const CUmemLocation *location = &physical->properties.location;
	char name[128];
	int fd;

	/* Another process may number the cards differently (CUDA_VISIBLE_DEVICES). */
	snprintf(name, sizeof(name), FD_NAME "-%d-%d-%" PRIu64 "-%" PRIu64, (int)location->type,
		physical->card ? (int)card_place(physical->card) : location->id, physical->maker,
		physical->number);
	fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC); /* glibc 2.27 has a function */
	if (fd >= 0 && ftruncate(fd, (off_t)physical->bytes) != 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void link_in(struct physical *physical)
{
	physical->kind = PHYSICAL_KIND;
	physical->references = 1;
	physical->next = all;
	all = physical;
}

/* With the latch held: take it from the card, and create its file. */
static CUresult make(struct physical *physical)
{
	bool fits = true;

	physical->number = piece_number();
	physical->fd = memory_file(physical);
	REQUIRE(physical->fd >= 0, CUDA_ERROR_OUT_OF_MEMORY);
	if (physical->card) {
		card_lock(physical->card);
		fits = card_reserve(physical->card, physical->bytes);
		card_unlock(physical->card);
	}
	if (!fits) {
		close(physical->fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	link_in(physical);
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct physical *physical;
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(handle && bytes > 0 && bytes % UNIT_BYTES == 0 && flags == 0,
		CUDA_ERROR_INVALID_VALUE);
	result = properties_check(properties);
	if (result != CUDA_SUCCESS)
		return result;
	if (!on_host(&properties->location))
		REQUIRE_NO_FAULT(device_card(properties->location.id));
	physical = calloc(1, sizeof(*physical));
	REQUIRE(physical, CUDA_ERROR_OUT_OF_MEMORY);
	physical->properties = *properties;
	physical->bytes = bytes;
	physical->maker = process_tag();
	if (!on_host(&properties->location))
		physical->card = device_card(properties->location.id);
	space_take();
	result = make(physical);
	space_drop();
	if (result != CUDA_SUCCESS)
		free(physical);
	else
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	bool known;

	REQUIRE_DRIVER();
	space_take();
	struct physical *physical = physical_of(handle);
	struct import *import = import_of(handle);

	known = physical != NULL;
	if (import) {
		import->kind = 0;
		free(import);
	}
	if (known)
		physical_drop(physical);
	else
		known = multicast_release(handle);
	space_drop();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	REQUIRE_DRIVER();
	REQUIRE(properties && physical_of(handle), CUDA_ERROR_INVALID_VALUE);
	*properties = physical_of(handle)->properties;
	return CUDA_SUCCESS;
}

/* From now on, other processes may hold it too. */
static bool share(struct physical *physical)
{
	space_take();
	if (physical->card && !physical->shared) {
		card_lock(physical->card);
		physical->shared = piece_share(physical->card, physical->number, physical->bytes);
		card_unlock(physical->card);
	}
	space_drop();
	return !physical->card || physical->shared;
}

CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	struct physical *physical;
	int fd;

	REQUIRE_DRIVER();
	physical = physical_of(handle);
	REQUIRE(exported && physical && flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(physical->properties.requestedHandleTypes & type, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(share(physical), CUDA_ERROR_OUT_OF_MEMORY);
	fd = dup(physical->fd);
	REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(exported, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

/* The contents of a descriptor: the memfd's name and size identify them. False for another file. */
static bool describe_file(int fd, struct physical *physical)
{
	CUmemLocation *location = &physical->properties.location;
	char link[64], name[160] = "";
	struct stat file;
	int type;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, name, sizeof(name) - 1) <= 0 || fstat(fd, &file) != 0 ||
		sscanf(name, "/memfd:" FD_NAME "-%d-%d-%" SCNu64 "-%" SCNu64, &type, &location->id,
			&physical->maker, &physical->number) != 4)
		return false;
	location->type = (CUmemLocationType)type;
	physical->bytes = (size_t)file.st_size;
	physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	physical->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (on_host(location))
		return true;
	if (location->id < 0 || location->id >= (int)device_entries())
		return false;
	physical->card = card_at((uint32_t)location->id);
	location->id = device_ordinal(physical->card);
	if (location->id < 0)
		return false;
	physical->shared = true;
	return true;
}

static struct physical *known(const struct physical *wanted)
{
	for (struct physical *physical = all; physical; physical = physical->next) {
		if (physical->maker == wanted->maker && physical->number == wanted->number)
			return physical;
	}
	return NULL;
}

/* With the latch held. */
static CUresult hold(const struct physical *described, int fd, struct physical **result)
{
	struct physical *physical = known(described);
	bool held = true;

	*result = physical;
	if (physical) {
		physical->references++;
		return CUDA_SUCCESS;
	}
	physical = malloc(sizeof(*physical));
	REQUIRE(physical, CUDA_ERROR_OUT_OF_MEMORY);
	*physical = *described;
	physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (physical->card && physical->fd >= 0) {
		card_lock(physical->card);
		held = piece_hold(
			physical->card, physical->maker, physical->number, physical->bytes);
		card_unlock(physical->card);
	}
	if (physical->fd < 0 || !held) {
		CUresult why = held ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;

		if (physical->fd >= 0)
			close(physical->fd);
		free(physical);
		return why;
	}
	link_in(physical);
	*result = physical;
	return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *exported, CUmemAllocationHandleType type)
{
	struct physical described = {.kind = 0};
	struct import *import;
	int fd = (int)(intptr_t)exported;
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(handle, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(describe_file(fd, &described), CUDA_ERROR_INVALID_VALUE);
	if (described.card)
		REQUIRE_NO_FAULT(described.card);
	import = malloc(sizeof(*import));
	REQUIRE(import, CUDA_ERROR_OUT_OF_MEMORY);
	import->kind = IMPORT_KIND;
	space_take();
	result = hold(&described, fd, &import->physical);
	space_drop();
	if (result == CUDA_SUCCESS)
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)import;
	else
		free(import);
	return result;
}

/* Empty pages stay empty. */
static bool copy_file(int to, int from, size_t bytes)
{
	char page[4096], empty[4096] = {0};
	size_t at = 0;

	while (at < bytes && pread(from, page, sizeof(page), (off_t)at) == sizeof(page) &&
		(memcmp(page, empty, sizeof(page)) == 0 ||
			pwrite(to, page, sizeof(page), (off_t)at) == sizeof(page)))
		at += sizeof(page);
	return at == bytes;
}

/* If there is no memory for a copy, it stays shared. */
static void part(struct physical *physical)
{
	struct physical own = *physical;

	own.maker = process_tag();
	own.number = piece_number();
	own.shared = false;
	own.fd = memory_file(&own);
	if (own.fd < 0 || !copy_file(own.fd, physical->fd, own.bytes)) {
		if (own.fd >= 0)
			close(own.fd);
		return;
	}
	uncount(physical);
	close(physical->fd);
	*physical = own;
	card_lock(own.card);
	own.card->shares[tag_process(process_tag())].evicted_bytes += own.bytes;
	card_unlock(own.card);
	mappings_show(physical);
}

void physicals_part(void)
{
	space_take();
	for (struct physical *physical = all; physical; physical = physical->next)
		if (physical->shared)
			part(physical);
	space_drop();
}
