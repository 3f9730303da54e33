/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `sending` is a leaf; a message may be sent with any other lock held.
 */
#include "channel.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "gpushare_abi.h"
#include "quota/descriptor.h"
#include "quota/pages.h"

#define RECONNECT_SECONDS 1

static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER;
static struct kept_descriptor connection = {.number = -1};
static time_t last_attempt = -RECONNECT_SECONDS;

static int connect_to_daemon(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", pages.directory,
		GPUSHARE_SOCKET_NAME);

	if (length < 0 || (size_t)length >= sizeof(address.sun_path))
		return -1;
	int low = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (low < 0)
		return -1;
	if (connect(low, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		close(low);
		return -1;
	}
	return low;
}

static bool reconnect(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec - last_attempt < RECONNECT_SECONDS)
		return false;
	last_attempt = now.tv_sec;
	return descriptor_keep(&connection, connect_to_daemon());
}

static bool send_once(const void *message, size_t bytes)
{
	return send(connection.number, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
	       errno == EAGAIN || errno == EWOULDBLOCK;
}

/* False if there is no daemon to receive it. */
static bool send_bytes(const void *message, size_t bytes)
{
	int saved = errno, cancellation;

	pthread_setcancelstate(
		PTHREAD_CANCEL_DISABLE, &cancellation); /* otherwise the lock would stay locked */
	pthread_mutex_lock(&sending);
	bool sent = descriptor_is_ours(&connection) && send_once(message, bytes);
	if (!sent)
		descriptor_close(&connection); /* the daemon was restarted */
	if (!sent && reconnect())
		sent = send_once(message, bytes);
	pthread_mutex_unlock(&sending);
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
	return sent;
}

static void send_message(const struct gpushare_message *message)
{
	send_bytes(message, offsetof(struct gpushare_message, text) + message->text_bytes);
}

void channel_log(unsigned level, const char *text)
{
	struct gpushare_message message = {
		.type = GPUSHARE_MESSAGE_LOG, .level = level, .pid = (uint32_t)getpid()};

	if (!pages_are_open())
		return;
	message.text_bytes = (uint32_t)strnlen(text, sizeof(message.text));
	memcpy(message.text, text, message.text_bytes);
	send_message(&message);
}

bool channel_report_shortfall(unsigned card, uint64_t bytes)
{
	const struct gpushare_shortfall shortfall = {.type = GPUSHARE_MESSAGE_SHORTFALL,
		.card = card,
		.pid = (uint32_t)getpid(),
		.rest_bytes = sizeof(shortfall.wanted_bytes),
		.wanted_bytes = bytes};

	return send_bytes(&shortfall, sizeof(shortfall));
}

void channel_ask_for_restore(void)
{
	const struct gpushare_message message = {
		.type = GPUSHARE_MESSAGE_RESTORE, .pid = (uint32_t)getpid()};

	send_message(&message);
}

void channel_before_fork(void)
{
	pthread_mutex_lock(&sending);
}

void channel_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&sending);
}

void channel_after_fork_in_child(void)
{
	/* The connection belongs to the parent. */
	descriptor_close(&connection);
	last_attempt = -RECONNECT_SECONDS;
	pthread_mutex_unlock(&sending);
}
