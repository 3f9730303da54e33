/* SPDX-License-Identifier: Apache-2.0 */
#include "cards.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "channel/log.h"
#include "quota/pages.h"

#define MAX_DEVICES 64
#define NOT_GRANTED (-1)
#define VISIBLE "CUDA_VISIBLE_DEVICES"

static struct {
	_Atomic bool found;
	_Atomic int device_count;
	_Atomic int card[MAX_DEVICES]; /* by device */
} cards;

/* In NVML's form, but without the leading "GPU-" or "MIG-". */
static void uuid_write(char text[37], const CUuuid *uuid)
{
	const unsigned char *byte = (const unsigned char *)uuid->bytes;

	for (int i = 0; i < 16; i++) {
		*text++ = "0123456789abcdef"[byte[i] >> 4];
		*text++ = "0123456789abcdef"[byte[i] & 15];
		if (i == 3 || i == 5 || i == 7 || i == 9)
			*text++ = '-';
	}
	*text = '\0';
}

static int card_by_uuid(const CUuuid *uuid)
{
	char text[37];

	uuid_write(text, uuid);
	for (unsigned card = 0; card < pages.card_count; card++) {
		const char *granted = grant_card(card)->uuid;
		const size_t kind = 4;
		if (strlen(granted) > kind && strcmp(granted + kind, text) == 0)
			return (int)card;
	}
	return NOT_GRANTED;
}

/* For a device of a partitioned card, _v2 returns the instance's UUID, the older form the
 * card's. */
static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
	CUresult result = REAL(cuDeviceGetUuid_v2)(uuid, device);

	return result == CUDA_SUCCESS ? result : REAL(cuDeviceGetUuid)(uuid, device);
}

void cards_make_visible(void)
{
	const char *named = getenv(VISIBLE);

	if (named && *named && strcmp(named, pages.grant->first_uuid) == 0)
		setenv(VISIBLE, grant_card(0)->uuid, 1);
}

CUresult cards_find(void)
{
	int count = 0;

	if (atomic_load_explicit(&cards.found, memory_order_acquire))
		return CUDA_SUCCESS;
	if (!pages_are_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = REAL(cuDeviceGetCount)(&count);
	if (result != CUDA_SUCCESS)
		return result;
	if (count > MAX_DEVICES)
		count = MAX_DEVICES;
	for (int ordinal = 0; ordinal < count; ordinal++) {
		CUdevice device = ordinal;
		CUuuid uuid;
		int card = NOT_GRANTED;
		if (REAL(cuDeviceGet)(&device, ordinal) == CUDA_SUCCESS &&
			device_uuid(&uuid, device) == CUDA_SUCCESS)
			card = card_by_uuid(&uuid);
		if (card == NOT_GRANTED)
			log_line(LOG_WARNING, "device %d does not belong to this container",
				ordinal);
		atomic_store(&cards.card[ordinal], card);
	}
	atomic_store(&cards.device_count, count);
	atomic_store_explicit(&cards.found, true, memory_order_release);
	return CUDA_SUCCESS;
}

CUresult card_of_device(unsigned *card, CUdevice device)
{
	CUresult result = cards_find();

	if (result != CUDA_SUCCESS)
		return result;
	if (device < 0 || device >= atomic_load(&cards.device_count))
		return CUDA_ERROR_INVALID_DEVICE;
	int found = atomic_load_explicit(&cards.card[device], memory_order_relaxed);
	if (found == NOT_GRANTED)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	*card = (unsigned)found;
	return CUDA_SUCCESS;
}

/* With a single device, the driver is not called: its ordinal is 0. */
static CUresult device_current(CUdevice *device)
{
	*device = 0;
	if (atomic_load_explicit(&cards.device_count, memory_order_acquire) == 1)
		return CUDA_SUCCESS;
	return REAL(cuCtxGetDevice)(device);
}

CUresult card_current(unsigned *card)
{
	CUdevice device;
	CUresult result = device_current(&device);

	return result == CUDA_SUCCESS ? card_of_device(card, device) : result;
}

bool location_is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult card_of_location(unsigned *card, const CUmemLocation *location)
{
	/* Not a switch over the enumeration: the driver may be newer than it. */
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return card_of_device(card, location->id);
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		return card_of_device(card, location->id & 0xff);
	return card_current(card);
}

static CUresult device_of_context(CUdevice *device, CUcontext context)
{
	CUcontext current;
	CUresult result = REAL(cuCtxGetCurrent)(&current);

	if (result != CUDA_SUCCESS || context == current)
		return result == CUDA_SUCCESS ? device_current(device) : result;
	result = REAL(cuCtxPushCurrent_v2)(context);
	if (result != CUDA_SUCCESS)
		return result;
	result = device_current(device);
	REAL(cuCtxPopCurrent_v2)(&context);
	return result;
}

CUresult device_of_stream(CUdevice *device, CUstream stream)
{
	CUcontext context;

	if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
		atomic_load_explicit(&cards.device_count, memory_order_acquire) == 1)
		return device_current(device);
	CUresult result = REAL(cuStreamGetCtx)(stream, &context);
	return result == CUDA_SUCCESS ? device_of_context(device, context) : result;
}
