/* SPDX-License-Identifier: Apache-2.0 */
#include "module_cost.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/image.h"
#include "quota/ledger.h"

#define EAGER 1 /* CU_MODULE_EAGER_LOADING */

/* By the handle of what was loaded; an image may have both. */
static struct allocations device_parts;
static struct allocations managed_parts;

/* 10 * major + minor of the card that an image is for; 0 if there is none. */
static unsigned capability(void)
{
	CUdevice device = 0;
	int major = 0, minor = 0;

	if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		device = 0;
	if (REAL(cuDeviceGetAttribute)(
		    &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
		REAL(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
			device) != CUDA_SUCCESS)
		return 0;
	return (unsigned)(10 * major + minor);
}

/* Drivers before CUDA 11.7 cannot be queried, and load everything. */
static bool code_comes_at_once(void)
{
	CUmodule_loading_mode mode;

	return REAL(cuModuleGetLoadingMode)(&mode) != CUDA_SUCCESS || mode == EAGER;
}

static uint64_t sum(uint64_t one, uint64_t other)
{
	uint64_t both;

	return __builtin_add_overflow(one, other, &both) ? UINT64_MAX : both;
}

static struct module_bytes module_bytes(CUresult result, const struct declared_bytes *declared)
{
	struct module_bytes bytes = {0, 0};

	if (result != CUDA_SUCCESS)
		return bytes;
	bytes.device = sum(declared->globals, declared->constants);
	if (declared->code && code_comes_at_once())
		bytes.device = sum(bytes.device, declared->code);
	bytes.managed = declared->managed;
	return bytes;
}

struct module_bytes module_cost_measure(const void *image)
{
	struct declared_bytes declared;
	CUresult result = image_measure(&declared, image, capability());

	return module_bytes(result, &declared);
}

static bool read_whole(int file, unsigned char *to, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t got = read(file, to + done, size - done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

/* A copy, because another process may truncate the file meanwhile. */
static struct module_bytes measure_open(int file, size_t size)
{
	struct declared_bytes declared;
	struct module_bytes bytes = {0, 0};
	void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return bytes;
	if (read_whole(file, copy, size))
		bytes = module_bytes(
			image_measure_sized(&declared, copy, size, capability()), &declared);
	munmap(copy, size);
	return bytes;
}

/* Only a regular file: what is read from a pipe would be lost to the driver. */
struct module_bytes module_cost_measure_file(const char *path)
{
	struct module_bytes bytes = {0, 0};
	struct stat status;
	int saved = errno;
	int file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;

	if (file >= 0) {
		if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
			bytes = measure_open(file, (size_t)status.st_size);
		close(file);
	}
	errno = saved;
	return bytes;
}

/* Reserving nothing always succeeds, even over the quota. */
static CUresult part_reserve(struct charge *charge, enum gpushare_kind kind, uint64_t bytes)
{
	*charge = (struct charge){.kind = kind};
	return bytes ? charge_reserve_current(charge, kind, bytes) : CUDA_SUCCESS;
}

static void part_release(const struct charge *charge)
{
	if (charge->bytes)
		ledger_release(charge->card, charge->kind, charge->bytes);
}

CUresult module_cost_reserve(struct module_cost *cost, struct module_bytes bytes)
{
	CUresult result = part_reserve(&cost->device, GPUSHARE_KIND_MODULE, bytes.device);

	if (result != CUDA_SUCCESS)
		return result;
	result = part_reserve(&cost->managed, GPUSHARE_KIND_MANAGED, bytes.managed);
	if (result != CUDA_SUCCESS)
		part_release(&cost->device);
	return result;
}

unsigned module_cost_card(const struct module_cost *cost)
{
	return cost->device.bytes ? cost->device.card : OOM_RETRY_NO_CARD;
}

CUresult module_cost_settle(const struct module_cost *cost, CUresult result, uint64_t handle)
{
	if (cost->device.bytes)
		charge_settle_in(&device_parts, &cost->device, result, handle);
	if (cost->managed.bytes)
		charge_settle_in(&managed_parts, &cost->managed, result, handle);
	return result;
}

struct module_charge module_cost_take(uint64_t handle)
{
	struct module_charge charge = {.device = {.bytes = 0}, .managed = {.bytes = 0}};

	allocations_take(&device_parts, handle, &charge.device);
	allocations_take(&managed_parts, handle, &charge.managed);
	return charge;
}

void module_cost_free(const struct module_charge *charge, CUresult result)
{
	charge_free(&device_parts, charge->device.bytes ? &charge->device : NULL, result);
	charge_free(&managed_parts, charge->managed.bytes ? &charge->managed : NULL, result);
}

bool module_cost_is_charged(uint64_t handle)
{
	struct allocation entry;

	return allocations_find(&device_parts, handle, &entry) ||
	       allocations_find(&managed_parts, handle, &entry);
}

void module_costs_end_context(uint64_t context, unsigned card)
{
	charge_end_in(&device_parts, context, card);
	charge_end_in(&managed_parts, context, card);
}

void module_costs_after_fork_in_child(void)
{
	allocations_forget(&device_parts);
	allocations_forget(&managed_parts);
}
