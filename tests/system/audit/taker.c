/* SPDX-License-Identifier: Apache-2.0 */
/* taker BYTES [CARD]: takes so much of a card, by default the first, and keeps it. Linked
 * statically with the driver, so that no library stands between: it says what it got, and then
 * works on without an end. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long CUdeviceptr;

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);

static int take(size_t bytes, int card)
{
	const struct timespec moment = {.tv_nsec = 20000000};
	void *context = NULL;
	CUdeviceptr pointer = 0;
	int device = 0;
	int code = cuInit(0);

	if (!code)
		code = cuDeviceGet(&device, card);
	if (!code)
		code = cuDevicePrimaryCtxRetain(&context, device);
	if (!code)
		code = cuCtxSetCurrent(context);
	if (!code)
		code = cuMemAlloc_v2(&pointer, bytes);
	printf("{\"event\":\"driver\",\"code\":%d}\n", code);
	fflush(stdout);
	while (!code) /* beats, by which it is told from one that is frozen */
		nanosleep(&moment, NULL);
	return code;
}

int main(int argc, char **argv)
{
	return take(strtoull(argc > 1 ? argv[1] : "0", NULL, 10), argc > 2 ? atoi(argv[2]) : 0);
}
