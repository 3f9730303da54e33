/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's process, as training, inference and replayed graphs use a card:
 *
 *     work [--KEY NUMBER]...
 *
 * A step is a sequence of kernels, then a wait for the card, then a gap. The sequence is drawn once
 * and repeated, as that of a network is: the length of each kernel is log-normal, its grid goes by
 * its length, and each time that it is launched it takes a little more or less. Lengths are card
 * time, which the simulator multiplies by its slow motion; --slow says by how much, for what the
 * host does by itself. Prints "ready", and then, all in ns on CLOCK_MONOTONIC and of card time:
 *
 *     request ARRIVED TOOK    from its arrival until its step was done, with --rate
 *     resumed BEGAN TOOK      the first kernel after an idle phase, with --on and --off
 *
 * It works until a signal ends it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "../rounds.h"
#include "cuda_driver.h"

#define CARDS 4
#define SECOND_NS 1e9
#define LADDER 1.1	/* kernels of one step that differ by less have the same grid */
#define LONGEST 20	/* times the median: of a log-normal draw */
#define GRID_PER_US 4.4 /* blocks: 132 multiprocessors, 30 us each */

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			    ".visible .entry spin(.param .u64 spin_duration_ns)\n{\n\tret;\n}\n";

/* The options, in card time. */
static struct {
	double kernel_us; /* the median kernel's length */
	double spread;	  /* sigma of its logarithm: how much kernels of a step differ, */
	double jitter;	  /* and how much the same kernel does from launch to launch */
	double least_us;
	double kernels;	     /* of a step */
	double graph;	     /* so many of them are one graph; 0: each is launched by itself */
	double copy_bytes;   /* to the card, before each step */
	double within_bytes; /* within the card, before each step, so many times: */
	double copies;
	double stops;	      /* it stops itself before it waits: another process continues it */
	double reload;	      /* the module is loaded again before each step */
	double gap_us;	      /* after each step */
	double rate;	      /* requests per second, one step each; 0: a step follows the last */
	double on_ms, off_ms; /* works and does not in turns; 0: always works */
	double contexts, streams; /* each at the same time; streams are of every context */
	double cards;		  /* every step is on all of them, and waits for all */
	double slow;
	double seed;
} plan = {.kernel_us = 100,
	.spread = 0.8,
	.jitter = 0.2,
	.least_us = 5,
	.kernels = 200,
	.copies = 1,
	.contexts = 1,
	.streams = 1,
	.cards = 1,
	.slow = 1,
	.seed = 1};

static const struct {
	const char *name;
	double *value;
} options[] = {
	{"--kernel-us", &plan.kernel_us},
	{"--spread", &plan.spread},
	{"--jitter", &plan.jitter},
	{"--least-us", &plan.least_us},
	{"--kernels", &plan.kernels},
	{"--graph", &plan.graph},
	{"--copy-bytes", &plan.copy_bytes},
	{"--within-bytes", &plan.within_bytes},
	{"--copies", &plan.copies},
	{"--stops", &plan.stops},
	{"--reload", &plan.reload},
	{"--gap-us", &plan.gap_us},
	{"--rate", &plan.rate},
	{"--on-ms", &plan.on_ms},
	{"--off-ms", &plan.off_ms},
	{"--contexts", &plan.contexts},
	{"--streams", &plan.streams},
	{"--cards", &plan.cards},
	{"--slow", &plan.slow},
	{"--seed", &plan.seed},
};

struct kernel {
	uint64_t length_ns;
	unsigned int grid;
};

/* Where a worker works on one card. */
struct lane {
	CUcontext context;
	CUstream stream;
	CUmodule module;
	CUfunction function;
	CUgraphExec *graphs; /* with --graph: the step's */
	CUdeviceptr buffer, within;
};

struct worker {
	pthread_t thread;
	unsigned short drawn[3];
	struct kernel *step;
	struct lane lanes[CARDS];
};

static void *host_buffer;

static void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "work: %s: CUDA error %d\n", what, (int)result);
		exit(1);
	}
}

static void sleep_until(double moment_ns)
{
	const struct timespec moment = {.tv_sec = (time_t)(moment_ns / SECOND_NS),
		.tv_nsec = (long)fmod(moment_ns, SECOND_NS)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR)
		;
}

static double gauss(struct worker *worker)
{
	const double radius = sqrt(-2 * log(1 - erand48(worker->drawn)));

	return radius * cos(2 * M_PI * erand48(worker->drawn));
}

static struct kernel kernel_draw(struct worker *worker)
{
	double us = plan.kernel_us * exp(plan.spread * gauss(worker));
	double rung;

	us = fmin(fmax(us, plan.least_us), plan.kernel_us * LONGEST);
	rung = round(log(us) / log(LADDER));
	return (struct kernel){.length_ns = (uint64_t)(pow(LADDER, rung) * 1e3),
		.grid = (unsigned int)fmax(1, GRID_PER_US * pow(LADDER, rung))};
}

static uint64_t length_draw(struct worker *worker, const struct kernel *kernel)
{
	if (plan.jitter == 0)
		return kernel->length_ns;
	return (uint64_t)((double)kernel->length_ns * exp(plan.jitter * gauss(worker)));
}

static void kernel_launch(
	struct worker *worker, const struct lane *lane, const struct kernel *kernel)
{
	uint64_t length_ns = length_draw(worker, kernel);
	void *parameters[] = {&length_ns};

	check(cuLaunchKernel(lane->function, kernel->grid, 1, 1, 128, 1, 1, 0, lane->stream,
		      parameters, NULL),
		"cuLaunchKernel");
}

/* A graph of the `count` kernels from `first`; lengths are drawn once, as the parameters of a graph
 * that is only replayed are. */
static CUgraphExec graph_make(
	struct worker *worker, const struct lane *lane, size_t first, size_t count)
{
	CUgraph graph;
	CUgraphExec made;
	CUgraphNode last = NULL;

	check(cuGraphCreate(&graph, 0), "cuGraphCreate");
	for (size_t i = first; i < first + count; i++) {
		uint64_t length_ns = length_draw(worker, &worker->step[i]);
		void *parameters[] = {&length_ns};
		const CUDA_KERNEL_NODE_PARAMS node = {.func = lane->function,
			.gridDimX = worker->step[i].grid,
			.gridDimY = 1,
			.gridDimZ = 1,
			.blockDimX = 128,
			.blockDimY = 1,
			.blockDimZ = 1,
			.kernelParams = parameters};

		check(cuGraphAddKernelNode_v2(
			      &last, graph, last ? &last : NULL, last ? 1 : 0, &node),
			"cuGraphAddKernelNode");
	}
	check(cuGraphInstantiateWithFlags(&made, graph, 0), "cuGraphInstantiate");
	check(cuGraphDestroy(graph), "cuGraphDestroy");
	return made;
}

static size_t graph_count(void)
{
	return plan.graph > 0 ? (size_t)ceil(plan.kernels / plan.graph) : 0;
}

static void lane_enter(const struct lane *lane)
{
	if (plan.cards > 1)
		check(cuCtxSetCurrent(lane->context), "cuCtxSetCurrent");
}

/* The lanes go side by side: what works on several cards at once launches on all, piece by piece.
 */
static void step_launch(struct worker *worker)
{
	const size_t pieces = plan.graph > 0 ? graph_count() : (size_t)plan.kernels;

	for (size_t i = 0; i < pieces; i++) {
		for (size_t card = 0; card < (size_t)plan.cards; card++) {
			const struct lane *lane = &worker->lanes[card];

			lane_enter(lane);
			if (lane->graphs)
				check(cuGraphLaunch(lane->graphs[i], lane->stream),
					"cuGraphLaunch");
			else
				kernel_launch(worker, lane, &worker->step[i]);
		}
	}
}

static void module_load(struct lane *lane)
{
	check(cuModuleLoadData(&lane->module, image), "cuModuleLoadData");
	check(cuModuleGetFunction(&lane->function, lane->module, "spin"), "cuModuleGetFunction");
}

static void step_reload(struct worker *worker)
{
	for (size_t card = 0; card < (size_t)plan.cards && plan.reload > 0; card++) {
		struct lane *lane = &worker->lanes[card];

		lane_enter(lane);
		check(cuModuleUnload(lane->module), "cuModuleUnload");
		module_load(lane);
	}
}

static void copy_within(const struct lane *lane)
{
	const size_t bytes = (size_t)plan.within_bytes;

	for (double copy = 0; copy < plan.copies && bytes > 0; copy++)
		check(cuMemcpyDtoDAsync_v2(lane->within + bytes, lane->within, bytes, lane->stream),
			"cuMemcpyDtoDAsync");
}

static void step_copy(struct worker *worker)
{
	for (size_t card = 0; card < (size_t)plan.cards && plan.copy_bytes > 0; card++) {
		const struct lane *lane = &worker->lanes[card];

		lane_enter(lane);
		check(cuMemcpyHtoDAsync_v2(
			      lane->buffer, host_buffer, (size_t)plan.copy_bytes, lane->stream),
			"cuMemcpyHtoDAsync");
	}
	for (size_t card = 0; card < (size_t)plan.cards; card++) {
		lane_enter(&worker->lanes[card]);
		copy_within(&worker->lanes[card]);
	}
}

static void step_wait(struct worker *worker)
{
	for (size_t card = 0; card < (size_t)plan.cards; card++) {
		lane_enter(&worker->lanes[card]);
		check(cuStreamSynchronize(worker->lanes[card].stream), "cuStreamSynchronize");
	}
}

static void step_run(struct worker *worker)
{
	step_reload(worker);
	step_copy(worker);
	step_launch(worker);
	if (plan.stops > 0)
		raise(SIGSTOP);
	step_wait(worker);
	if (plan.gap_us > 0)
		sleep_until(now_ns() + plan.gap_us * 1e3 * plan.slow);
}

static void serve_requests(struct worker *worker)
{
	for (double arrives = now_ns();;) {
		arrives -= log(1 - erand48(worker->drawn)) / plan.rate * SECOND_NS * plan.slow;
		sleep_until(arrives);
		step_run(worker);
		printf("request %.0f %.0f\n", arrives, (now_ns() - arrives) / plan.slow);
	}
}

static void work_in_phases(struct worker *worker)
{
	for (;;) {
		const double began = now_ns();

		kernel_launch(worker, &worker->lanes[0], &worker->step[0]);
		step_wait(worker);
		printf("resumed %.0f %.0f\n", began, (now_ns() - began) / plan.slow);
		while (now_ns() < began + plan.on_ms * 1e6 * plan.slow)
			step_run(worker);
		sleep_until(now_ns() + plan.off_ms * 1e6 * plan.slow);
	}
}

static void *worker_run(void *argument)
{
	struct worker *worker = argument;

	check(cuCtxSetCurrent(worker->lanes[0].context), "cuCtxSetCurrent");
	if (plan.rate > 0)
		serve_requests(worker);
	if (plan.off_ms > 0)
		work_in_phases(worker);
	for (;;)
		step_run(worker);
	return NULL;
}

static void lane_open(struct worker *worker, struct lane *lane, CUcontext context)
{
	lane->context = context;
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	check(cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	module_load(lane);
	if (plan.copy_bytes > 0)
		check(cuMemAlloc_v2(&lane->buffer, (size_t)plan.copy_bytes), "cuMemAlloc");
	if (plan.within_bytes > 0)
		check(cuMemAlloc_v2(&lane->within, 2 * (size_t)plan.within_bytes), "cuMemAlloc");
	if (graph_count() == 0)
		return;
	lane->graphs = calloc(graph_count(), sizeof(CUgraphExec));
	for (size_t i = 0; lane->graphs && i < graph_count(); i++) {
		const size_t first = i * (size_t)plan.graph;

		lane->graphs[i] = graph_make(worker, lane, first,
			(size_t)fmin(plan.graph, plan.kernels - (double)first));
	}
}

static void worker_make(struct worker *worker, size_t number, const CUcontext *contexts)
{
	worker->drawn[0] = (unsigned short)plan.seed;
	worker->drawn[1] = (unsigned short)number;
	worker->drawn[2] = 0x330e;
	worker->step = calloc((size_t)plan.kernels + 1, sizeof(*worker->step));
	if (!worker->step)
		exit(1);
	for (size_t i = 0; i < (size_t)plan.kernels; i++)
		worker->step[i] = kernel_draw(worker);
	for (size_t card = 0; card < (size_t)plan.cards; card++)
		lane_open(worker, &worker->lanes[card], contexts[card]);
}

static void contexts_make(CUcontext *contexts)
{
	for (int card = 0; card < (int)plan.cards; card++) {
		check(cuCtxCreate_v2(&contexts[card], 0, card), "cuCtxCreate");
		check(cuCtxPopCurrent_v2(&contexts[card]), "cuCtxPopCurrent");
	}
}

static void options_read(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		size_t option = 0;

		while (option < sizeof(options) / sizeof(options[0]) &&
			strcmp(options[option].name, argv[i]) != 0)
			option++;
		if (option == sizeof(options) / sizeof(options[0])) {
			fprintf(stderr, "work: there is no option %s\n", argv[i]);
			exit(2);
		}
		*options[option].value = strtod(argv[i + 1], NULL);
	}
}

int main(int argc, char **argv)
{
	size_t count, made = 0;
	struct worker *workers;

	options_read(argc, argv);
	if (plan.cards > CARDS || plan.kernels < 0 || plan.slow <= 0)
		return 2;
	count = (size_t)(plan.contexts * plan.streams);
	workers = calloc(count, sizeof(*workers));
	host_buffer = calloc(1, (size_t)plan.copy_bytes + 1);
	if (!workers || !host_buffer)
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A late wake-up of this process would be taken for one of the card's. */
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	check(cuInit(0), "cuInit");
	for (size_t context = 0; context < (size_t)plan.contexts; context++) {
		CUcontext contexts[CARDS];

		contexts_make(contexts);
		for (size_t stream = 0; stream < (size_t)plan.streams; stream++, made++)
			worker_make(&workers[made], made, contexts);
	}
	printf("ready\n");
	for (size_t i = 1; i < count; i++)
		if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]) != 0)
			return 1;
	worker_run(&workers[0]);
	return 0;
}
