/* SPDX-License-Identifier: Apache-2.0 */
#include "device_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expect.h"

static char path[] = "/tmp/gpushare-simulator-XXXXXX";
static pid_t maker;

static void remove_file(void)
{
	if (getpid() == maker)
		unlink(path);
}

void device_file_make(void)
{
	static struct {
		struct sim_header header;
		struct sim_profile profiles[2];
	} made = {.header = {.magic = SIM_MAGIC,
			  .layout = SIM_LAYOUT,
			  .card_count = 2,
			  .cuda_version = 13000,
			  .time_scale_q16 = 1 << 16}};
	int fd = mkstemp(path);

	EXPECT(fd >= 0);
	maker = getpid();
	atexit(remove_file);
	for (int i = 0; i < 2; i++) {
		struct sim_profile *profile = &made.profiles[i];

		strcpy(profile->name, "Test Card");
		profile->uuid[15] = (uint8_t)(i + 1);
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
