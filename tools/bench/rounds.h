/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs share that time calls by rounds: CLOCK_MONOTONIC, and medians.
 */
#ifndef BENCH_ROUNDS_H
#define BENCH_ROUNDS_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline int ascending(const void *left, const void *right)
{
	const double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static inline double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), ascending);
	return values[count / 2];
}

/* Print the median of each, and that of the rounds' differences, and leave the values sorted. */
static inline void report(double *bare, double *filtered, size_t count)
{
	double *differences = calloc(count, sizeof(*differences));

	for (size_t i = 0; differences && i < count; i++)
		differences[i] = filtered[i] - bare[i];
	printf("%.2f %.2f %.2f\n", median(bare, count), median(filtered, count),
		differences ? median(differences, count) : 0);
	free(differences);
}

#endif
