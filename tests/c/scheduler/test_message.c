/* SPDX-License-Identifier: Apache-2.0
 *
 * Which messages are acted on.
 */
#include "control.h"

#include "expect.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define HEAD offsetof(struct schedule_message, shares)
#define SHARE sizeof(struct schedule_share)

static struct schedule_message right(void)
{
	struct schedule_message message = {
		.type = SCHEDULE_TENANT,
		.version = SCHEDULE_VERSION,
		.key = "0123456789abcdef",
		.card_count = 2,
		.shares = {{.uuid = "GPU-a", .permille = 1}, {.uuid = "GPU-b", .permille = 1000}},
	};
	return message;
}

static void a_length_that_is_not_the_cards_is_refused(void)
{
	const struct schedule_message message = right();

	EXPECT_EQUAL(message_check(&message, HEAD + 2 * SHARE), 0);
	for (size_t length = 0; length <= sizeof(message); length++)
		EXPECT((message_check(&message, length) == 0) == (length == HEAD + 2 * SHARE));
}

static void another_version_is_told_so(void)
{
	struct schedule_message message = right();

	message.version++;
	EXPECT_EQUAL(message_check(&message, HEAD + 2 * SHARE), EPROTO);
}

static void a_part_that_is_none_is_refused(void)
{
	struct schedule_message message;

#define REFUSED(change)                                                                            \
	do {                                                                                       \
		message = right();                                                                 \
		change;                                                                            \
		EXPECT_EQUAL(message_check(&message, HEAD + 2 * SHARE), EINVAL);                   \
	} while (0)
	REFUSED(message.shares[1].permille = 0);
	REFUSED(message.shares[1].permille = 1001);
	REFUSED(message.shares[0].capped = 2);
	REFUSED(message.shares[0].online = 2);
	REFUSED(message.shares[0].measured = 2);
	REFUSED(message.shares[0].correction_permille = 1001);
	REFUSED(message.shares[1].correction_permille = -1001);
	REFUSED(message.shares[0].uuid[0] = '\0');
	REFUSED(memset(message.shares[0].uuid, 'x', sizeof(message.shares[0].uuid)));
	REFUSED(memset(message.key, 'x', sizeof(message.key)));
	REFUSED(message.key[0] = '\0');
	REFUSED(memcpy(message.shares[1].uuid, "GPU-a", 6)); /* twice the same card */
	REFUSED(message.type = 0);
	REFUSED(message.type = 9);
	REFUSED(message.card_count = UINT32_MAX);
#undef REFUSED
}

int main(void)
{
	a_length_that_is_not_the_cards_is_refused();
	another_version_is_told_so();
	a_part_that_is_none_is_refused();
	return 0;
}
