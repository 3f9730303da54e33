/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"
#include "mps.h"

#include <pthread.h>

_Atomic bool driver_started;

CUresult driver_status(void)
{
	if (!atomic_load_explicit(&driver_started, memory_order_acquire))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* As the real driver does in a child forked after cuInit. */
	return device_state() == DEVICE_READY ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* All threads may call cuInit; the first looks for the devices. */
static CUresult start(void)
{
	static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&starting);
	if (!atomic_load(&driver_started)) {
		result = mps_connect();
		if (result == CUDA_SUCCESS) {
			devices_find();
			mps_list();
			if (device_count() == 0)
				result = CUDA_ERROR_NO_DEVICE;
			else
				checkpoint_serve();
		}
		atomic_store_explicit(
			&driver_started, result == CUDA_SUCCESS, memory_order_release);
	}
	pthread_mutex_unlock(&starting);
	return result;
}

CUresult cuInit(unsigned int flags)
{
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	switch (device_attach()) {
	case DEVICE_ABSENT:
		return CUDA_ERROR_NO_DEVICE;
	case DEVICE_FORKED:
		return CUDA_ERROR_NOT_INITIALIZED;
	case DEVICE_READY:
		break;
	}
	return start();
}

/* Works before cuInit too, like the real one; without a device it returns the newest simulated
 * version. */
CUresult cuDriverGetVersion(int *version)
{
	REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
	*version = device_attach() == DEVICE_ABSENT ? 13000 : (int)device->header.cuda_version;
	return CUDA_SUCCESS;
}

/* Its tables are undocumented and one of them checks that the driver is genuine, which a simulator
 * must not answer. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	REQUIRE(table && id, CUDA_ERROR_INVALID_VALUE);
	*table = NULL;
	return CUDA_ERROR_INVALID_VALUE; /* as for an identifier that a driver does not know */
}

uint64_t duration_scaled(uint64_t duration_ns)
{
	return (uint64_t)((unsigned __int128)duration_ns * device->header.time_scale_q16 >> 16);
}
