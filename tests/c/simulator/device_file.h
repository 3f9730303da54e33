/* SPDX-License-Identifier: Apache-2.0
 *
 * A device file for one C test program: two cards of 1 GiB, of which 64 MiB are reserved.
 */
#ifndef GPUSHARE_TESTS_SIMULATOR_DEVICE_FILE_H
#define GPUSHARE_TESTS_SIMULATOR_DEVICE_FILE_H

#include "device.h"

#define MIB (UINT64_C(1) << 20)
#define CARD_BYTES (1024 * MIB)
#define RESERVED_BYTES (64 * MIB)
#define CONTEXT_BYTES (32 * MIB)

#define FIRST_CARD_UUID "GPU-00000000-0000-0000-0000-000000000001"

/* Make the file and name it in the environment; it goes with the process. */
void device_file_make(void);

#endif
