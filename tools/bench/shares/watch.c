/* SPDX-License-Identifier: Apache-2.0
 *
 * The truth of a simulated machine: how much of the card every process had, by the engine itself.
 *
 *     watch PERIOD_MS
 *
 * Prints a line for the first card every period, until a signal ends it:
 *
 *     MOMENT [PID SERVED]...
 *
 * with the moment on CLOCK_MONOTONIC up to which the card was settled, and the card time that the
 * contexts of each process have had by then, both in ns of real time. It takes part as a process of
 * its own, so that it can bring the card up to the present, and holds nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "device.h"
#include "engine.h"

struct reading {
	uint64_t owner;
	uint64_t served_ns;
};

static int pid_of(uint64_t owner)
{
	static uint64_t known[SIM_PROCESSES];
	static int pids[SIM_PROCESSES];
	const uint32_t place = tag_process(owner);

	if (known[place] != owner && process_alive(owner, &pids[place]))
		known[place] = owner;
	return known[place] == owner ? pids[place] : 0;
}

static void print_card(struct sim_card *card)
{
	static struct reading readings[SIM_CONTEXTS];
	uint64_t moment;
	size_t count = 0;

	card_lock(card);
	engine_settle(card, clock_ns());
	moment = card->clock_ns;
	for (uint32_t i = 0; i < card->contexts_high; i++) {
		const uint64_t owner = atomic_load(&card->contexts[i].owner);

		if (owner)
			readings[count++] =
				(struct reading){owner, atomic_load(&card->contexts[i].served_ns)};
	}
	card_unlock(card);
	printf("%llu", (unsigned long long)moment);
	for (size_t i = 0; i < count; i++)
		printf(" %d %llu", pid_of(readings[i].owner),
			(unsigned long long)readings[i].served_ns);
	putchar('\n');
}

int main(int argc, char **argv)
{
	const double period_ns = argc == 2 ? strtod(argv[1], NULL) * 1e6 : 0;

	if (period_ns <= 0) {
		fprintf(stderr, "usage: watch PERIOD_MS\n");
		return 2;
	}
	if (device_attach() != DEVICE_READY) {
		fprintf(stderr, "watch: no device at %s\n", getenv(SIM_DEVICE_ENV));
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	for (;;) {
		const struct timespec pause = {.tv_sec = (time_t)(period_ns / 1e9),
			.tv_nsec = (long)period_ns % 1000000000};

		print_card(&device->cards[0]);
		nanosleep(&pause, NULL);
	}
}
