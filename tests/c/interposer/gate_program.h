/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler's side of the tenant's only card, and a kernel that takes as long as it is told.
 */
#ifndef TEST_GATE_PROGRAM_H
#define TEST_GATE_PROGRAM_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_driver.h"
#include "gpushare_abi.h"

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* A card, a tenant with its wake-up FIFO, and a scheduler with a heartbeat: before the driver is
 * asked for anything. */
void gate_prepare(void);

/* The driver, the primary context and the kernel; the context in a further thread. */
void gate_program_start(void);
void gate_program_enter(void);

struct gpushare_gate *the_gate(void);

/* Change the mode and wake the threads that wait. */
void gate_set(enum gpushare_gate_mode mode);

/* The heartbeat stays at `ns` from now on; 0: none ever was. */
void gate_stop_beating(uint64_t ns);

/* Unread bytes in the wake-up FIFO. */
unsigned wakeup_count(void);

CUresult launch_on(CUstream stream, uint64_t duration_ns);
void launch(uint64_t duration_ns);

/* With a kernel of the current context's own; and one more in the primary context, from a
 * thread. */
CUresult launch_in_current(uint64_t duration_ns);
void launch_elsewhere(void);

/* Of a short kernel, without its parameter. */
CUresult launch_incompletely(void);

/* This process's work as it stands between two changes of it. */
struct work {
	uint32_t waiting, forced;
	uint64_t busy_ns, since_ns, pending_ns, submitted, ended, throttled_ns;
};
struct work own_work(void);

/* Until it is so: a condition that never comes ends the test by its time-out. */
void until_idle(void);
void until_waiting(uint32_t threads);

void pause_a_little(void);

/* A further thread, which is joined. */
pthread_t thread_that(void *(*body)(void *), void *argument);
void join(pthread_t thread);

uint64_t now_ns(void);
/* What the simulator is to do wrong on the card. */
struct sim_faults *device_faults(void);
/* Card time that the simulator has given to all contexts. */
uint64_t served_ns(void);

#endif
