/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* SOCK_CLOEXEC, struct timeval */
#include "client.h"

#include "cleanup.h"
#include "json.h"
#include "lock.h"

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 100 }; /* how often it is looked whether a daemon is there by now */

static void put(struct request *request, const char *text)
{
	size_t length = strlen(text);
	if (length > sizeof(request->text) - request->length) {
		request->overflow = true;
		return;
	}
	memcpy(request->text + request->length, text, length);
	request->length += length;
}

static void put_quoted(struct request *request, const char *text)
{
	if (!json_quote(request->text, sizeof(request->text), &request->length, text))
		request->overflow = true;
}

void request_begin(struct request *request, const char *op)
{
	request->length = 0;
	request->overflow = request->pins_mounts = false;
	put(request, "{\"op\":");
	put_quoted(request, op);
}

static void put_name(struct request *request, const char *name)
{
	put(request, ",");
	put_quoted(request, name);
	put(request, ":");
}

void request_string(struct request *request, const char *name, const char *value)
{
	put_name(request, name);
	put_quoted(request, value);
}

void request_integer(struct request *request, const char *name, long long value)
{
	char digits[24];
	put_name(request, name);
	snprintf(digits, sizeof(digits), "%lld", value);
	put(request, digits);
}

bool request_end(struct request *request)
{
	put(request, "}");
	return !request->overflow;
}

/* CLOCK_MONOTONIC in milliseconds: a step of the wall clock lengthens no wait. */
static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum client_result say(struct reply *reply, enum client_result result, const char *why)
{
	reply->code[0] = '\0';
	snprintf(reply->message, sizeof(reply->message), "%s", why);
	return result;
}

/* A socket connected to the daemon, -1 with errno. A daemon that is stopped has a full backlog,
 * where connect(2) and sendmsg(2) wait as long as SO_SNDTIMEO says (unix(7), socket(7)). */
static int connect_within(const char *path, int wait_ms)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval wait = {.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000L};
	size_t length = strlen(path);

	if (length >= sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(address.sun_path, path, length);
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) < 0)
		return -1;
	int failed;
	do {
		failed = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	} while (failed && errno == EINTR);
	return failed ? -1 : steal_fd(&fd);
}

static int send_request(int fd, const struct request *request, const int *fds, size_t fd_count)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * CLIENT_FDS_MAX)];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec text = {
		.iov_base = (void *)(uintptr_t)request->text, .iov_len = request->length};
	struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1};

	if (fd_count > 0) {
		message.msg_control = control.bytes;
		/* glibc and musl disagree about the type of both lengths. */
		message.msg_controllen =
			(__typeof__(message.msg_controllen))CMSG_SPACE(sizeof(int) * fd_count);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = (__typeof__(rights->cmsg_len))CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
	}
	ssize_t sent;
	do {
		sent = sendmsg(fd, &message, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}

/* One packet before `deadline`: its length, 0 for the connection's end, -1 with errno (ETIMEDOUT,
 * EMSGSIZE). Descriptors that come along are dropped by the kernel: nothing asks for them. */
static ssize_t receive(int fd, char *packet, size_t room, int64_t deadline)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	for (;;) {
		int64_t left = deadline - now_ms();
		int ready = poll(&wait, 1, left > 0 ? (int)left : 0);
		if (ready == 0)
			errno = ETIMEDOUT;
		if (ready == 0 || (ready < 0 && errno != EINTR))
			return -1;
		if (ready < 0)
			continue;
		ssize_t length = recv(fd, packet, room, MSG_DONTWAIT | MSG_TRUNC);
		if (length < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (length > (ssize_t)room) {
			errno = EMSGSIZE;
			return -1;
		}
		return length;
	}
}

enum packet_kind {
	PACKET_MALFORMED,
	PACKET_STARTING, /* there will be an acknowledgement when the daemon is ready */
	PACKET_ACK,
	PACKET_ROW, /* the launcher's and the hook's requests have none; a later daemon's may */
	PACKET_DONE,
	PACKET_REFUSAL,
};

/* What `packet` is; the text of a refusal goes to `reply`. */
static enum packet_kind packet_read(char *packet, size_t length, struct reply *reply)
{
	struct json json;
	struct json_text key, error = {0}, code = {0}, tenant = {0}, bind = {0};
	struct json_text covers = {0}, copy = {0};
	bool ack = false, answers = false, ok = false, row = false, starting = false;

	json_begin(&json, packet, length);
	if (!json_enter_object(&json))
		return PACKET_MALFORMED;
	while (json_next_key(&json, &key)) {
		bool taken = false;
		if (json_text_is(&key, "ok"))
			taken = answers = json_boolean(&json, &ok);
		else if (json_text_is(&key, "ack"))
			taken = json_boolean(&json, &ack);
		else if (json_text_is(&key, "starting"))
			taken = json_boolean(&json, &starting);
		else if (json_text_is(&key, "error"))
			taken = json_string(&json, &error);
		else if (json_text_is(&key, "code"))
			taken = json_string(&json, &code);
		else if (json_text_is(&key, "key"))
			taken = json_string(&json, &tenant);
		else if (json_text_is(&key, "bind"))
			taken = json_string(&json, &bind);
		else if (json_text_is(&key, "covers"))
			taken = json_string(&json, &covers);
		else if (json_text_is(&key, "copy"))
			taken = json_string(&json, &copy);
		else if (json_text_is(&key, "row"))
			row = true;
		if (!taken)
			json_skip(&json);
	}
	if (!json_finish(&json))
		return PACKET_MALFORMED;
	if (answers && ok) {
		reply->binds = tenant.at &&
			       json_text_copy(&tenant, reply->key, sizeof(reply->key)) && bind.at &&
			       json_text_is(&bind, "launcher");
		if (!covers.at || !copy.at ||
			!json_text_copy(&covers, reply->covers, sizeof(reply->covers)) ||
			!json_text_copy(&copy, reply->copy, sizeof(reply->copy)))
			reply->covers[0] = '\0';
		return PACKET_DONE;
	}
	if (!code.at || !json_text_copy(&code, reply->code, sizeof(reply->code)))
		reply->code[0] = '\0';
	if (answers && error.at && json_text_copy(&error, reply->message, sizeof(reply->message)))
		return PACKET_REFUSAL;
	if (starting)
		return PACKET_STARTING;
	return ack ? PACKET_ACK : row ? PACKET_ROW : PACKET_MALFORMED;
}

/* One call: how long it has gone on, and what is known of the daemon by now. */
struct call {
	int64_t start_deadline; /* after it, a daemon that starts is no daemon */
	int64_t quiet_since;	/* when the daemon was last at a call, or starting; or its begin */
	struct timespec served; /* the modification time of its socket, when last looked at */
	int final_ms;
	bool starting; /* reported by the daemon itself, on this connection */
	bool acknowledged;
	bool again; /* the daemon has gone, and may be called again */
};

/* Whether the daemon has served a client since the last look: it sets the time of its socket. */
static bool has_served(struct call *call, const char *socket_path)
{
	struct stat found;
	struct timespec before = call->served;

	if (stat(socket_path, &found) < 0)
		return false;
	call->served = found.st_mtim;
	return before.tv_sec != found.st_mtim.tv_sec || before.tv_nsec != found.st_mtim.tv_nsec;
}

/* Whether to wait for an acknowledgement. A daemon that lives has CLIENT_ACK_MS for it, from when
 * it last served a client; where none lives, whoever holds the socket is about to start one. */
static bool is_worth_waiting(struct call *call, const char *socket_path)
{
	int64_t now = now_ms();

	if (now >= call->start_deadline)
		return now < call->quiet_since + CLIENT_ACK_MS;
	if (has_served(call, socket_path) || call->starting || lock_look(socket_path) != LOCK_HELD)
		call->quiet_since = now;
	return now < call->quiet_since + CLIENT_ACK_MS;
}

static enum client_result no_packet(
	struct call *call, const char *socket_path, struct reply *reply, ssize_t got)
{
	int error = errno;
	bool gone = got == 0 || error == ECONNRESET;
	const char *why = got == 0 ? "closed the connection" : strerror(error);

	/* It lived until now, however long the request was in its queue. A daemon that is killed
	 * holds its lock for a moment after its connections have ended. */
	if (gone && call->acknowledged)
		call->quiet_since = now_ms();
	call->again = gone && is_worth_waiting(call, socket_path);
	if (call->acknowledged)
		snprintf(reply->message, sizeof(reply->message), "accepted the request, then %s%s",
			got == 0 ? "" : "sent no response: ", why);
	else if (!gone && (call->starting || lock_look(socket_path) != LOCK_HELD))
		snprintf(reply->message, sizeof(reply->message), "is still starting");
	else
		snprintf(reply->message, sizeof(reply->message),
			"did not acknowledge the request: %s", why);
	return call->acknowledged ? CLIENT_BROKEN : CLIENT_UNREACHABLE;
}

/* The next packet before an acknowledgement, as long as that is worth waiting for; as `receive`. */
static ssize_t receive_first(
	int fd, char *packet, size_t room, struct call *call, const char *socket_path)
{
	for (;;) {
		ssize_t length = receive(fd, packet, room, now_ms() + LOOK_MS);
		if (length >= 0 || errno != ETIMEDOUT)
			return length;
		if (!is_worth_waiting(call, socket_path)) {
			errno = ETIMEDOUT;
			return -1;
		}
	}
}

static enum client_result converse(
	int fd, const char *socket_path, struct call *call, struct reply *reply)
{
	char packet[CLIENT_REPLY_MAX];
	int64_t deadline = 0;

	for (;;) {
		ssize_t length = call->acknowledged ? receive(fd, packet, sizeof(packet), deadline)
						    : receive_first(fd, packet, sizeof(packet),
							      call, socket_path);
		if (length <= 0)
			return no_packet(call, socket_path, reply, length);
		switch (packet_read(packet, (size_t)length, reply)) {
		case PACKET_STARTING:
			call->starting = true;
			break;
		case PACKET_ACK:
			/* Once more for as long as the request is in the daemon's queue. */
			deadline = now_ms() + call->final_ms;
			call->acknowledged = true;
			break;
		case PACKET_ROW:
			break;
		case PACKET_DONE:
			return CLIENT_OK;
		case PACKET_REFUSAL:
			return strcmp(reply->code, "forbidden") ? CLIENT_REFUSED : CLIENT_FORBIDDEN;
		case PACKET_MALFORMED:
			return say(reply, CLIENT_BROKEN, "sent an invalid response");
		}
	}
}

/* What becomes of a call whose request could not be sent. */
static enum client_result not_sent(struct call *call, const char *socket_path, struct reply *reply)
{
	int error = errno;

	call->again = (error == EPIPE || error == ECONNRESET || error == EAGAIN) &&
		      is_worth_waiting(call, socket_path);
	return say(reply, CLIENT_UNREACHABLE,
		error == EAGAIN ? "does not read requests" : strerror(error));
}

/* Whether the daemon answers at all. Descriptors that lie unread in the queue of a daemon that
 * hangs keep the container's mounts busy, also after this process has ended. */
static enum client_result greet(
	int fd, const char *socket_path, struct call *call, struct reply *reply)
{
	struct request hello;

	request_begin(&hello, "hello");
	request_end(&hello);
	if (send_request(fd, &hello, NULL, 0) < 0)
		return not_sent(call, socket_path, reply);
	return converse(fd, socket_path, call, reply);
}

/* Ask on a connection of its own. */
static enum client_result ask(const char *socket_path, const struct request *request,
	const int *fds, size_t fd_count, struct call *call, struct reply *reply)
{
	CLEANUP_FD int fd = connect_within(socket_path, CLIENT_ACK_MS);

	call->starting = call->acknowledged = call->again = false;
	if (fd < 0) {
		int error = errno;
		bool full = error == EAGAIN, nobody = error == ENOENT || error == ECONNREFUSED;
		enum lock_state lock = lock_look(socket_path);
		/* A daemon takes its lock first, and releases it last: it makes its socket. A
		 * daemon that stops removes its socket; one that was killed leaves it, and a
		 * service manager starts the next. */
		bool killed = error == ECONNREFUSED && lock == LOCK_FREE &&
			      now_ms() < call->start_deadline;
		call->again = (full || killed || (nobody && lock == LOCK_HELD)) &&
			      is_worth_waiting(call, socket_path);
		return say(reply, error == EACCES ? CLIENT_FORBIDDEN : CLIENT_UNREACHABLE,
			full ? "does not accept connections" : strerror(error));
	}
	if (request->pins_mounts) {
		enum client_result greeted = greet(fd, socket_path, call, reply);
		if (greeted != CLIENT_OK)
			return greeted;
	}
	if (send_request(fd, request, fds, fd_count) < 0)
		return not_sent(call, socket_path, reply);
	return converse(fd, socket_path, call, reply);
}

const char *client_start_advice(void)
{
	/* sd_booted(3). */
	if (access("/run/systemd/system", F_OK) == 0)
		return "Run systemctl start gpushared, or see gpushare doctor";
	return "Start gpushared as root: gpushare doctor says how";
}

enum client_result client_call(const char *socket_path, const struct request *request,
	const int *fds, size_t fd_count, struct patience patience, struct reply *reply)
{
	const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L / 2};
	struct call call = {.quiet_since = now_ms(), .final_ms = patience.final_ms};
	bool acknowledged = false;

	call.start_deadline = call.quiet_since + patience.start_ms;
	has_served(&call, socket_path);
	for (;;) {
		enum client_result result = ask(socket_path, request, fds, fd_count, &call, reply);
		/* Twice acknowledged and twice gone: it may be the request that ends the daemon. */
		if (!call.again || (call.acknowledged && acknowledged))
			return result;
		acknowledged = acknowledged || call.acknowledged;
		nanosleep(&pause, NULL);
	}
}
