/* SPDX-License-Identifier: Apache-2.0
 *
 * This process as a client of an MPS server (gpushare/simulator/mps.py): whether there is one, the
 * devices that it gives, and the faults that it passes on. As with a real
 * driver, a process whose pipe directory has no control daemon does without MPS, and is told
 * nothing. (Multi-Process Service manual, release 615.)
 */
#ifndef GPUSHARE_SIMULATOR_MPS_H
#define GPUSHARE_SIMULATOR_MPS_H

#include "driver.h"

/* Once, from cuInit: wait until a server accepts this process. CUDA_SUCCESS also without one. */
CUresult mps_connect(void);
/* Whether this process is the client of a server. */
bool mps_active(void);
/* The devices that the server offers, as CUDA_VISIBLE_DEVICES lists them; null: all. */
const char *mps_devices(void);
/* Once the devices are known: NVML lists this process as a client. */
void mps_list(void);

/* The error of each call after a fault in this process, after one in another client of the server,
 * or after the end of the server. */
CUresult mps_status(void);
/* A kernel of this process has faulted. */
void mps_fault(void);

#endif
