/* SPDX-License-Identifier: Apache-2.0 */
#include "made.h"

#include "expect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/gpushare-simulator-XXXXXX";

static void remove_file(void)
{
	unlink(path);
}

static void make_device(void)
{
	static struct {
		struct sim_header header;
		struct sim_profile profiles[2];
	} made = {.header = {.magic = SIM_MAGIC,
			  .layout = SIM_LAYOUT,
			  .card_count = 2,
			  .cuda_version = 13000,
			  .slow_motion_q16 = 1 << 16}};
	int fd = mkstemp(path);

	EXPECT(fd >= 0);
	atexit(remove_file);
	for (int i = 0; i < 2; i++) {
		struct sim_profile *profile = &made.profiles[i];

		strcpy(profile->name, "Test Card");
		profile->memory_bytes = CARD_BYTES;
		profile->reserved_bytes = RESERVED_BYTES;
		profile->context_bytes = CONTEXT_BYTES;
		profile->slice_ns = 2000000;
		profile->switch_preempt_ns = 160000;
		profile->switch_drained_ns = 30000;
		profile->link_bytes_per_second = UINT64_C(50000000000);
		profile->memory_bytes_per_second = UINT64_C(1000000000000);
		profile->compute_major = 9;
		profile->multiprocessors = 10;
		profile->threads_per_multiprocessor = 1024;
	}
	EXPECT_EQUAL(write(fd, &made, sizeof(made)), sizeof(made));
	EXPECT_EQUAL(ftruncate(fd, SIM_FILE_BYTES), 0);
	close(fd); /* before the driver opens it */
	setenv(SIM_DEVICE_ENV, path, 1);
}

CUcontext made_context(void)
{
	CUcontext context;

	make_device();
	EXPECT_EQUAL(cuInit(0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	return context;
}

size_t free_bytes(void)
{
	size_t free_, total;

	EXPECT_EQUAL(cuMemGetInfo_v2(&free_, &total), CUDA_SUCCESS);
	EXPECT_EQUAL(total, CARD_BYTES - RESERVED_BYTES);
	return free_;
}

CUkernel timed_kernel(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
				  ".visible .entry spin(.param .u64 duration_ns) { ret; }\n";
	static CUkernel kernel;
	CUlibrary library;

	if (!kernel) {
		EXPECT_EQUAL(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0),
			CUDA_SUCCESS);
		EXPECT_EQUAL(cuLibraryGetKernel(&kernel, library, "spin"), CUDA_SUCCESS);
	}
	return kernel;
}

CUresult launch_ns(CUstream stream, uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return cuLaunchKernel(
		(CUfunction)(void *)timed_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}
