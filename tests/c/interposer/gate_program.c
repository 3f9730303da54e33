/* SPDX-License-Identifier: Apache-2.0 */
#include "gate_program.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device_file.h"
#include "quota/ledger.h"
#include "quota/pages.h"
#include "tenant.h"

#define BEAT_NS 20000000

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			    ".visible .entry spin(.param .u64 spin_duration_ns)\n{\n\tret;\n}\n";

static _Atomic bool beats = true;
static CUcontext primary;
static CUfunction kernel;
static int wakeup = -1;

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

struct gpushare_gate *the_gate(void)
{
	return &tenant_card()->gate;
}

static void tell(void)
{
	atomic_fetch_add(&the_gate()->epoch, 1);
	syscall(SYS_futex, &the_gate()->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void gate_set(enum gpushare_gate_mode mode)
{
	atomic_store(&the_gate()->mode, mode);
	tell();
}

static void *beat(void *unused)
{
	const struct timespec pause = {.tv_nsec = BEAT_NS};

	for (;;) {
		if (atomic_load(&beats))
			atomic_store(&the_gate()->heartbeat_ns, now_ns());
		nanosleep(&pause, NULL);
	}
	return unused;
}

void gate_stop_beating(uint64_t ns)
{
	atomic_store(&beats, false);
	atomic_store(&the_gate()->heartbeat_ns, ns);
}

static void remove_wakeup(void)
{
	char path[300];

	snprintf(
		path, sizeof(path), "%s/%s", getenv(GPUSHARE_TENANT_DIR_ENV), GPUSHARE_WAKEUP_NAME);
	unlink(path);
}

void gate_prepare(void)
{
	char path[300];

	device_file_make();
	tenant_create(512 * MIB);
	strcpy(tenant_card()->uuid, FIRST_CARD_UUID);
	snprintf(
		path, sizeof(path), "%s/%s", getenv(GPUSHARE_TENANT_DIR_ENV), GPUSHARE_WAKEUP_NAME);
	CHECK(mkfifo(path, 0600) == 0);
	atexit(remove_wakeup);
	wakeup = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	CHECK(wakeup >= 0);
	*the_gate() = (struct gpushare_gate){.in_flight_max_ns = 2 * MILLISECOND,
		.timing_interval_ns = 500 * MICROSECOND,
		.wait_max_ns = 60 * SECOND,
		.pieces_min = 1};
	atomic_store(&the_gate()->heartbeat_ns, now_ns());
	pthread_detach(thread_that(beat, NULL));
}

unsigned wakeup_count(void)
{
	char bytes[4096];
	ssize_t count = read(wakeup, bytes, sizeof(bytes));

	return count > 0 ? (unsigned)count : 0;
}

void gate_program_enter(void)
{
	CHECK(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
}

void gate_program_start(void)
{
	CUmodule module;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
	gate_program_enter();
	CHECK(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
	CHECK(cuModuleGetFunction(&kernel, module, "spin") == CUDA_SUCCESS);
}

CUresult launch_on(CUstream stream, uint64_t duration_ns)
{
	/* Long ones look different from short ones, as they do in programs. */
	const unsigned width = duration_ns < MILLISECOND ? 1 : 8;
	void *parameters[] = {&duration_ns};

	return cuLaunchKernel(kernel, width, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

void launch(uint64_t duration_ns)
{
	CHECK(launch_on(NULL, duration_ns) == CUDA_SUCCESS);
}

CUresult launch_in_current(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};
	CUfunction own;
	CUmodule module;

	CHECK(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
	CHECK(cuModuleGetFunction(&own, module, "spin") == CUDA_SUCCESS);
	return cuLaunchKernel(own, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

pthread_t thread_that(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, body, argument) == 0);
	return thread;
}

void join(pthread_t thread)
{
	CHECK(pthread_join(thread, NULL) == 0);
}

static void *launch_in_primary(void *unused)
{
	gate_program_enter();
	launch(10 * MICROSECOND);
	return unused;
}

void launch_elsewhere(void)
{
	join(thread_that(launch_in_primary, NULL));
}

CUresult launch_incompletely(void)
{
	return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

struct work own_work(void)
{
	const struct gpushare_work *page = card_work(0, 0);
	struct work work;
	uint32_t done;

	do {
		done = atomic_load(&page->done);
		work = (struct work){.waiting = atomic_load(&page->waiting),
			.forced = atomic_load(&page->forced),
			.busy_ns = atomic_load(&page->busy_ns),
			.since_ns = atomic_load(&page->since_ns),
			.pending_ns = atomic_load(&page->pending_ns),
			.submitted = atomic_load(&page->submitted),
			.ended = atomic_load(&page->ended),
			.throttled_ns = atomic_load(&page->throttled_ns)};
	} while (atomic_load(&page->begun) != done);
	return work;
}

void pause_a_little(void)
{
	const struct timespec pause = {.tv_nsec = 100000};

	nanosleep(&pause, NULL);
}

void until_idle(void)
{
	for (;;) {
		const struct work work = own_work();
		if (work.submitted == work.ended)
			break;
		pause_a_little();
	}
}

void until_waiting(uint32_t threads)
{
	while (own_work().waiting != threads)
		pause_a_little();
}

/* The driver's lock on the file goes with any descriptor of it that is closed: this one never
 * is. */
static struct sim_device *device_file(void)
{
	static struct sim_device *file;

	if (!file) {
		const char *path = getenv(SIM_DEVICE_ENV);
		CHECK(path);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		CHECK(fd >= 0);
		file = mmap(NULL, SIM_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(file != MAP_FAILED);
	}
	return file;
}

struct sim_faults *device_faults(void)
{
	return &device_file()->faults[0];
}

uint64_t served_ns(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < SIM_CONTEXTS; i++)
		sum += atomic_load(&device_file()->cards[0].contexts[i].served_ns);
	return sum;
}
