/* SPDX-License-Identifier: Apache-2.0
 *
 * The C client of the daemon's control socket (gpushare/protocol says what is spoken there).
 * Used by the launcher and by the hook: one request, one answer.
 */
#ifndef GPUSHARE_RUNTIME_CLIENT_H
#define GPUSHARE_RUNTIME_CLIENT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define CLIENT_REQUEST_MAX 4096 /* bytes; protocol.MAX_REQUEST_BYTES */
#define CLIENT_REPLY_MAX 65536	/* protocol.MAX_REPLY_BYTES */
#define CLIENT_ACK_MS 1000	/* connecting included; protocol.ACK_SECONDS */
#define CLIENT_FINAL_MS 10000	/* after the acknowledgement; protocol.REPLY_SECONDS */
#define CLIENT_START_MS 30000	/* of a daemon that is starting; protocol.START_SECONDS */
#define CLIENT_FDS_MAX 4

struct request {
	char text[CLIENT_REQUEST_MAX];
	size_t length;
	bool overflow;	  /* it did not fit; request_end says so */
	bool pins_mounts; /* its descriptors keep mounts busy until they are read */
};

void request_begin(struct request *request, const char *op);
void request_string(struct request *request, const char *name, const char *value);
void request_integer(struct request *request, const char *name, long long value);
/* False when the request is longer than the daemon takes. */
bool request_end(struct request *request);

enum client_result {
	CLIENT_OK,
	CLIENT_REFUSED,	    /* the daemon refused: `message` is its reason */
	CLIENT_FORBIDDEN,   /* the daemon, or the kernel at its socket, denied this caller */
	CLIENT_UNREACHABLE, /* no daemon, or none that acknowledges: nothing has been done */
	CLIENT_BROKEN,	    /* acknowledged, and then no proper answer: it may have been done */
};

struct reply {
	char code[32];			    /* of a refusal: protocol.CODE_*; else "" */
	char message[CLIENT_REPLY_MAX + 1]; /* why, for anything but CLIENT_OK */
	char key[17];			    /* of CLIENT_OK: the tenant's, or "" */
	bool binds;			    /* of CLIENT_OK: the launcher binds the container */
	/* With `binds`: the file below /proc that the launcher is to cover in it, or "", and with
	 * which file of the host. */
	char covers[64], copy[PATH_MAX];
};

/* How long to wait, in milliseconds: for a daemon that is being started (0: not at all), and after
 * the acknowledgement for the final answer. */
struct patience {
	int start_ms;
	int final_ms;
};

/* How to start gpushared on this machine, as a sentence without its full stop. */
const char *client_start_advice(void);

/* Send `request` and wait for the final answer. A request must be safe to repeat: after a
 * daemon that ended during it, the client repeats it once, when a daemon is back. */
enum client_result client_call(const char *socket_path, const struct request *request,
	const int *fds, size_t fd_count, struct patience patience, struct reply *reply);

#endif
