/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the simulated libnvidia-ml. There is no state here: every result is read
 * from the device file, which the last access brought up to date.
 */
#ifndef GPUSHARE_SIMULATOR_NVML_LIBRARY_H
#define GPUSHARE_SIMULATOR_NVML_LIBRARY_H

#include "device.h"
#include "nvml_api.h"

#define REQUIRE(condition, error)                                                                  \
	do {                                                                                       \
		if (!(condition))                                                                  \
			return error;                                                              \
	} while (0)

/* Declare `card` as the card of the handle, or return the error if there is none. */
#define REQUIRE_CARD(card, handle)                                                                 \
	struct sim_card *card;                                                                     \
	do {                                                                                       \
		nvmlReturn_t card_status_ = library_card(handle, &card);                           \
		if (card_status_ != NVML_SUCCESS)                                                  \
			return card_status_;                                                       \
	} while (0)

nvmlReturn_t library_status(void);
nvmlReturn_t library_card(nvmlDevice_t handle, struct sim_card **card);
nvmlDevice_t library_handle(uint32_t index);
uint32_t card_index(const struct sim_card *card);

/* The result that a test injected for queries about the card, after the injected delay. */
nvmlReturn_t fault_answer(const struct sim_faults *faults);
bool card_lies(const struct sim_card *card, enum sim_lie lie);

/* Whether the entry is the card, or an instance of it. */
bool card_has(const struct sim_card *card, uint32_t entry);
/* The position of an instance among its card's. */
uint32_t instance_index(const struct sim_card *instance);

/* Serve the card up to now and keep its lock; returns the time. card_unlock ends it. */
uint64_t card_look(struct sim_card *card);

/* Copy a text into the caller's buffer, or return that it is too small. */
nvmlReturn_t text_out(char *to, unsigned int length, const char *text);

/* A process that has a context on a card. */
struct process {
	unsigned int pid;      /* in this process's PID namespace */
	uint32_t gpu_instance; /* UINT32_MAX: none */
	uint32_t compute_instance;
	uint64_t used_bytes;
	uint64_t sampled_ns; /* busy_sampled_ns, */
	uint64_t sampled_epoch;
	uint64_t sampled_at;	   /* its end, in microseconds of the wall clock, */
	unsigned int busy_percent; /* and the percent of all periods */
	unsigned int encoder_percent, decoder_percent; /* as the test says */
	bool mps_client;
};

/* The living and visible processes on a card and its instances, one entry per PID. Returns their
 * number. */
unsigned int processes_on(struct sim_card *card, struct process processes[SIM_PROCESSES]);

#endif
