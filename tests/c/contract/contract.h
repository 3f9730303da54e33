/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cases of cases.inc share. A case is a function that makes its own expectations of a CUDA
 * driver, simulated or real, and takes every figure from the card. The first expectation that does
 * not hold ends the process.
 */
#ifndef GPUSHARE_TESTS_CONTRACT_H
#define GPUSHARE_TESTS_CONTRACT_H

#include "cuda_driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#define MIB ((size_t)1 << 20)
#define MS UINT64_C(1000000)

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fails(__FILE__, __LINE__, #condition " does not hold");                    \
	} while (0)
/* As CHECK, of what a driver, or who stands before it, does soon. */
#define BECOMES(condition)                                                                         \
	do {                                                                                       \
		for (int left = 30000; !(condition); left--) {                                     \
			if (left == 0)                                                             \
				fails(__FILE__, __LINE__, #condition " does not become true");     \
			usleep(1000);                                                              \
		}                                                                                  \
	} while (0)
#define EQUAL(value, wanted)                                                                       \
	expect_equal((long long)(value), (long long)(wanted), #value, __FILE__, __LINE__)
/* Results of calls: success, one error, any error. */
#define OK(call) expect_result(call, CUDA_SUCCESS, #call, __FILE__, __LINE__)
#define IS(error, call) expect_result(call, error, #call, __FILE__, __LINE__)
#define FAILS(call) CHECK((call) != CUDA_SUCCESS)
/* The card has as many bytes free as `before`. A driver may keep something at the first use of a
 * feature: of a case that runs twice, only the second run must leave nothing. */
#define UNCHANGED(before)                                                                          \
	do {                                                                                       \
		if (settled)                                                                       \
			EQUAL(free_bytes(), before);                                               \
	} while (0)

extern bool settled;

_Noreturn void fails(const char *file, int line, const char *what);
void expect_equal(long long value, long long wanted, const char *what, const char *file, int line);
void expect_result(CUresult result, CUresult wanted, const char *call, const char *file, int line);
/* End the case: this card or driver lacks something. */
_Noreturn void skip(const char *why);

/* Initialise the driver, and make the primary context of card 0 current. */
CUcontext begin(void);
size_t free_bytes(void);
/* What physical memory of card 0 is a multiple of. */
size_t granule(void);
int attribute(CUdevice_attribute name);
/* Bytes that NVML has of a process on card 0; -1 where it lists none of that PID. */
long long listed_bytes(pid_t pid);
CUdeviceptr allocated(size_t bytes);
/* Leave no more than `leave` bytes of the card free, and give it all back. */
void fill(size_t leave);
void empty(void);

CUstream stream_new(void);
CUevent event_new(unsigned int flags);
/* Launch a kernel that takes so much of the card. */
CUresult launch_ns(CUstream stream, uint64_t duration_ns);
/* Milliseconds of the card between two events that are reached. */
float elapsed_ms(CUevent start, CUevent end);

/* Physical memory of a card, with this kind of handle, and a mapping of it. */
CUmemGenericAllocationHandle physical(
	CUdevice device, size_t bytes, CUmemAllocationHandleType handle_type);
CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t bytes);
void unmap(CUdeviceptr pointer, size_t bytes);

/* A process that runs `body` with one end of a socket; to be started before `begin`. */
struct peer {
	pid_t pid;
	int socket;
};

struct peer peer_start(void (*body)(int socket));
void peer_kill(struct peer peer);
/* Wait until a process that has ended holds nothing: the simulator looks for the dead at most once
 * in a millisecond, when it is asked how much is free. */
void dead_are_seen(void);
void say_bytes(int socket, const void *bytes, size_t size);
void hear_bytes(int socket, void *bytes, size_t size);
void say(int socket, uint64_t word);
uint64_t hear(int socket);
void say_fd(int socket, int fd);
int hear_fd(int socket);

#define CASE(name, ...) void name(void);
#include "cases.inc"
#undef CASE

#endif
