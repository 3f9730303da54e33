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
#include <string.h>
#include <sys/prctl.h>

#include "../rounds.h"
#include "cuda_driver.h"

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
	double kernels;	      /* of a step */
	double graph;	      /* so many of them are one graph; 0: each is launched by itself */
	double gap_us;	      /* after each step */
	double rate;	      /* requests per second, one step each; 0: a step follows the last */
	double on_ms, off_ms; /* works and does not in turns; 0: always works */
	double slow;
	double seed;
} plan = {.kernel_us = 100,
	.spread = 0.8,
	.jitter = 0.2,
	.least_us = 5,
	.kernels = 200,
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
	{"--gap-us", &plan.gap_us},
	{"--rate", &plan.rate},
	{"--on-ms", &plan.on_ms},
	{"--off-ms", &plan.off_ms},
	{"--slow", &plan.slow},
	{"--seed", &plan.seed},
};

struct kernel {
	uint64_t length_ns;
	unsigned int grid;
};

/* Where it works. */
static CUstream stream;
static CUfunction function;
static CUgraphExec *graphs; /* with --graph: the step's */
static struct kernel *step;
static unsigned short drawn[3];

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

static double gauss(void)
{
	const double radius = sqrt(-2 * log(1 - erand48(drawn)));

	return radius * cos(2 * M_PI * erand48(drawn));
}

static struct kernel kernel_draw(void)
{
	double us = plan.kernel_us * exp(plan.spread * gauss());
	double rung;

	us = fmin(fmax(us, plan.least_us), plan.kernel_us * LONGEST);
	rung = round(log(us) / log(LADDER));
	return (struct kernel){.length_ns = (uint64_t)(pow(LADDER, rung) * 1e3),
		.grid = (unsigned int)fmax(1, GRID_PER_US * pow(LADDER, rung))};
}

static uint64_t length_draw(const struct kernel *kernel)
{
	if (plan.jitter == 0)
		return kernel->length_ns;
	return (uint64_t)((double)kernel->length_ns * exp(plan.jitter * gauss()));
}

static void kernel_launch(const struct kernel *kernel)
{
	uint64_t length_ns = length_draw(kernel);
	void *parameters[] = {&length_ns};

	check(cuLaunchKernel(function, kernel->grid, 1, 1, 128, 1, 1, 0, stream, parameters, NULL),
		"cuLaunchKernel");
}

/* A graph of the `count` kernels from `first`; lengths are drawn once, as the parameters of a graph
 * that is only replayed are. */
static CUgraphExec graph_make(size_t first, size_t count)
{
	CUgraph graph;
	CUgraphExec made;
	CUgraphNode last = NULL;

	check(cuGraphCreate(&graph, 0), "cuGraphCreate");
	for (size_t i = first; i < first + count; i++) {
		uint64_t length_ns = length_draw(&step[i]);
		void *parameters[] = {&length_ns};
		const CUDA_KERNEL_NODE_PARAMS node = {.func = function,
			.gridDimX = step[i].grid,
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

static void step_launch(void)
{
	for (size_t i = 0; i < graph_count(); i++)
		check(cuGraphLaunch(graphs[i], stream), "cuGraphLaunch");
	for (size_t i = 0; i < (size_t)plan.kernels && !graphs; i++)
		kernel_launch(&step[i]);
}

static void step_wait(void)
{
	check(cuStreamSynchronize(stream), "cuStreamSynchronize");
}

static void step_run(void)
{
	step_launch();
	step_wait();
	if (plan.gap_us > 0)
		sleep_until(now_ns() + plan.gap_us * 1e3 * plan.slow);
}

static void serve_requests(void)
{
	for (double arrives = now_ns();;) {
		arrives -= log(1 - erand48(drawn)) / plan.rate * SECOND_NS * plan.slow;
		sleep_until(arrives);
		step_run();
		printf("request %.0f %.0f\n", arrives, (now_ns() - arrives) / plan.slow);
	}
}

static void work_in_phases(void)
{
	for (;;) {
		const double began = now_ns();

		kernel_launch(&step[0]);
		step_wait();
		printf("resumed %.0f %.0f\n", began, (now_ns() - began) / plan.slow);
		while (now_ns() < began + plan.on_ms * 1e6 * plan.slow)
			step_run();
		sleep_until(now_ns() + plan.off_ms * 1e6 * plan.slow);
	}
}

static void open_card(void)
{
	CUcontext context;
	CUmodule module;

	check(cuInit(0), "cuInit");
	check(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
	check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	check(cuModuleLoadData(&module, image), "cuModuleLoadData");
	check(cuModuleGetFunction(&function, module, "spin"), "cuModuleGetFunction");
}

static void step_draw(void)
{
	for (size_t i = 0; i < (size_t)plan.kernels; i++)
		step[i] = kernel_draw();
	for (size_t i = 0; i < graph_count(); i++) {
		const size_t first = i * (size_t)plan.graph;

		graphs[i] =
			graph_make(first, (size_t)fmin(plan.graph, plan.kernels - (double)first));
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
	options_read(argc, argv);
	if (plan.kernels < 0 || plan.slow <= 0)
		return 2;
	drawn[0] = (unsigned short)plan.seed;
	drawn[2] = 0x330e;
	step = calloc((size_t)plan.kernels + 1, sizeof(*step));
	graphs = graph_count() ? calloc(graph_count(), sizeof(*graphs)) : NULL;
	if (!step || (graph_count() && !graphs))
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A late wake-up of this process would be taken for one of the card's. */
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	open_card();
	step_draw();
	printf("ready\n");
	if (plan.rate > 0)
		serve_requests();
	if (plan.off_ms > 0)
		work_in_phases();
	for (;;)
		step_run();
	return 0;
}
