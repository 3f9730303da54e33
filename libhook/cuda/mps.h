/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant of a card in MPS mode: each of its processes has to be a client of the card's MPS
 * server. If it is not, the driver gives it the whole card, without an error (Multi-Process Service
 * manual, "Architecture").
 */
#ifndef GPUSHARE_MPS_H
#define GPUSHARE_MPS_H

/* Before the driver's cuInit: set the variables from which the driver takes the server and the
 * limits. Return NULL, also for a tenant without MPS, or the reason why it cannot be a client. */
const char *mps_prepare(void);

/* After it: return NULL if the process is a client, or need not be one, or the reason. */
const char *mps_verify(void);

#endif
