/* SPDX-License-Identifier: Apache-2.0
 *
 * Times a call of the driver through the filter library against the same call without it:
 *
 *     driver launch|graph|allocate|random|information FILTER DRIVER ROUNDS [PROCESSES]
 *
 * Both libraries are in this one process, as the filter loads the driver anyway, and they take
 * turns: what disturbs a round disturbs both. Prints the median round of each, and the median of
 * the rounds' differences, in ns for one call: "BARE FILTERED DIFFERENCE".
 *
 * PROCESSES makes the quota's ledger as long as if that many had used the card.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define GPUSHARE_FOR_HOST /* there are no containers here */
#include "cuda_driver.h"
#include "gpushare_abi.h"
#include "rounds.h"

#define CALLS 250 /* of a round; fewer than a driver queues before a launch has to wait */
#define QUEUED_NS UINT64_C(3000000)
#define KERNEL_NS UINT64_C(1000)
#define LIVE 1024

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			    ".visible .entry spin(.param .u64 spin_duration_ns)\n{\n\tret;\n}\n";

struct driver {
	__typeof__(&cuLaunchKernel) launch;
	__typeof__(&cuGraphLaunch) launch_graph;
	__typeof__(&cuMemAlloc_v2) allocate;
	__typeof__(&cuMemFree_v2) release;
	__typeof__(&cuMemGetInfo_v2) information;
};

static CUfunction kernel;
static CUgraphExec graph; /* of one such kernel */
static __typeof__(&cuCtxSynchronize) synchronize;

static void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
		exit(1);
	}
}

static void *symbol(void *library, const char *name)
{
	void *address = library ? dlsym(library, name) : NULL;

	if (!address) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return address;
}

/* The function `name` of `library`. */
#define OF(library, name) ((__typeof__(&name))symbol(library, #name))

static struct driver driver_of(void *library)
{
	return (struct driver){
		.launch = OF(library, cuLaunchKernel),
		.launch_graph = OF(library, cuGraphLaunch),
		.allocate = OF(library, cuMemAlloc_v2),
		.release = OF(library, cuMemFree_v2),
		.information = OF(library, cuMemGetInfo_v2),
	};
}

/* What a launch costs is learned by its grid, so those of two lengths have two. */
static void launch_once(const struct driver *driver, unsigned int blocks, uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	check(driver->launch(kernel, blocks, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "launch");
}

/* A launch into an empty queue wakes the card, one into a full queue waits: keep it in between. */
static void launch_prepare(const struct driver *driver)
{
	check(synchronize(), "synchronize");
	launch_once(driver, 1024, QUEUED_NS);
}

static void launch_call(const struct driver *driver)
{
	launch_once(driver, 1, KERNEL_NS);
}

static void graph_call(const struct driver *driver)
{
	check(driver->launch_graph(graph, NULL), "graph launch");
}

static void allocate_call(const struct driver *driver)
{
	CUdeviceptr pointer;

	check(driver->allocate(&pointer, 1 << 20), "allocate");
	check(driver->release(pointer), "free");
}

static CUdeviceptr live[LIVE];
static uint32_t drawn = 1;

/* Free a buffer drawn at random among 1024 and put another of its size in its place. */
static void random_call(const struct driver *driver)
{
	drawn = drawn * 1664525 + 1013904223;
	CUdeviceptr *buffer = &live[drawn >> 22];

	check(driver->release(*buffer), "free");
	check(driver->allocate(buffer, 64 << 10), "allocate");
}

/* The buffers are the round's own: what one library allocated the other must not free. */
static void random_prepare(const struct driver *driver)
{
	for (int i = 0; i < LIVE; i++)
		check(driver->allocate(&live[i], 64 << 10), "allocate");
}

static void random_end(const struct driver *driver)
{
	for (int i = 0; i < LIVE; i++)
		check(driver->release(live[i]), "free");
}

static void information_call(const struct driver *driver)
{
	size_t left, total;

	check(driver->information(&left, &total), "memory information");
}

static void nothing(const struct driver *driver)
{
	(void)driver;
}

/* What is timed, and what comes before and after it in each round. */
struct row {
	const char *name;
	void (*prepare)(const struct driver *);
	void (*call)(const struct driver *);
	void (*end)(const struct driver *);
};

static const struct row rows[] = {
	{"launch", launch_prepare, launch_call, nothing},
	{"graph", launch_prepare, graph_call, nothing},
	{"allocate", nothing, allocate_call, nothing},
	{"random", random_prepare, random_call, random_end},
	{"information", nothing, information_call, nothing},
};

static const struct row *row_of(const char *name)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (strcmp(rows[i].name, name) == 0)
			return &rows[i];
	fprintf(stderr, "there is no row %s\n", name);
	exit(2);
}

static double round_of(const struct driver *driver, const struct row *row)
{
	row->prepare(driver);
	const double begun = now_ns();
	for (int i = 0; i < CALLS; i++)
		row->call(driver);
	const double each_ns = (now_ns() - begun) / CALLS;
	row->end(driver);
	return each_ns;
}

static void make_graph(void *library)
{
	uint64_t duration_ns = KERNEL_NS;
	void *parameters[] = {&duration_ns};
	const CUDA_KERNEL_NODE_PARAMS node = {.func = kernel,
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = parameters};
	CUgraph made;
	CUgraphNode added;

	check(OF(library, cuGraphCreate)(&made, 0), "graph");
	check(OF(library, cuGraphAddKernelNode)(&added, made, NULL, 0, &node), "node");
	check(OF(library, cuGraphInstantiateWithFlags)(&graph, made, 0), "instance");
}

static void start(void *library)
{
	CUcontext context;
	CUmodule module;

	synchronize = OF(library, cuCtxSynchronize);
	check(OF(library, cuInit)(0), "cuInit");
	check(OF(library, cuDevicePrimaryCtxRetain)(&context, 0), "context");
	check(OF(library, cuCtxSetCurrent)(context), "context");
	check(OF(library, cuModuleLoadData)(&module, image), "module");
	check(OF(library, cuModuleGetFunction)(&kernel, module, "spin"), "function");
	make_graph(library);
}

static void lengthen_ledger(unsigned int processes)
{
	const char *directory = getenv(GPUSHARE_TENANT_DIR_ENV);
	char path[4096];

	snprintf(path, sizeof(path), "%s/" GPUSHARE_STATUS_NAME,
		directory ? directory : GPUSHARE_TENANT_DIR);
	int file = open(path, O_RDWR | O_CLOEXEC);
	struct gpushare_status_header *status =
		mmap(NULL, GPUSHARE_STATUS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (file < 0 || status == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	atomic_store(&status->high_water, processes);
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: driver ROW FILTER DRIVER ROUNDS [PROCESSES]\n");
		return 2;
	}
	void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	const struct driver filtered = driver_of(library);
	const struct driver bare = driver_of(dlopen(argv[3], RTLD_NOW | RTLD_NOLOAD));
	const size_t rounds = (size_t)strtoul(argv[4], NULL, 10);
	const struct row *row = row_of(argv[1]);

	if (filtered.launch == bare.launch) {
		fprintf(stderr, "%s is no filter over %s\n", argv[2], argv[3]);
		return 1;
	}
	start(library);
	if (argc > 5)
		lengthen_ledger((unsigned int)strtoul(argv[5], NULL, 10));
	double *times = calloc(rounds, 2 * sizeof(*times));
	if (!times || rounds == 0)
		return 1;
	for (size_t i = 0; i < rounds; i++) {
		/* Each goes first every other time. */
		if (i % 2 == 0)
			times[i] = round_of(&bare, row);
		times[rounds + i] = round_of(&filtered, row);
		if (i % 2 != 0)
			times[i] = round_of(&bare, row);
	}
	report(times, times + rounds, rounds);
	free(times);
	return 0;
}
