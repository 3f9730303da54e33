/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that several processes hold: physical memory that was exported, and allocations that were
 * opened by IPC handle. It is counted once. When the process on whose account it is releases it or
 * dies, another holder becomes its keeper by one write, so that no kill loses it or counts it
 * twice. All of these are called with the card's lock held.
 */
#ifndef GPUSHARE_SIMULATOR_PIECE_H
#define GPUSHARE_SIMULATOR_PIECE_H

#include "device.h"

/* The memory on a process's account: its own and the pieces that it keeps. */
uint64_t process_bytes(const struct sim_card *card, uint32_t process);
uint64_t pieces_bytes(const struct sim_card *card);

/* A number for one more piece of this process; the lock need not be held. */
uint64_t piece_number(void);

/* Make a piece of memory that this process holds alone and has reserved; false if there is no
 * slot. */
bool piece_share(struct sim_card *card, uint64_t number, uint64_t bytes);
/* Hold the piece of a creator. A piece without holders goes to this process's account: false if it
 * does not fit there. */
bool piece_hold(struct sim_card *card, uint64_t maker, uint64_t number, uint64_t bytes);
void piece_drop(struct sim_card *card, uint64_t maker, uint64_t number);

/* The slots that hold any piece, as bits. */
void pieces_holders(const struct sim_card *card, uint64_t holders[SIM_PROCESSES / 64]);
/* Clear what the process of a slot held; the caller recomputes the card's sum. */
void pieces_forget(struct sim_card *card, uint32_t process);

#endif
