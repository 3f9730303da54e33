/* SPDX-License-Identifier: Apache-2.0
 *
 * A test says what it expects; the first that does not hold ends it, with the line and both values.
 */
#ifndef GPUSHARE_TESTS_SIMULATOR_EXPECT_H
#define GPUSHARE_TESTS_SIMULATOR_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__,           \
				#condition);                                                       \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define EXPECT_EQUAL(value, wanted)                                                                \
	do {                                                                                       \
		long long value_ = (long long)(value), wanted_ = (long long)(wanted);              \
		if (value_ != wanted_) {                                                           \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__,       \
				#value, value_, wanted_);                                          \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
