/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables of an MPS client (Multi-Process Service manual, release 615, "Environment
 * Variables"). gpushared writes them to a file that the tenant cannot change; the tenant's own only
 * lower its limits. The driver drops every memory limit of a client if one entry of the variable is
 * malformed or names a card that the process does not see (measured with driver 615.71.09, NVIDIA
 * Dynamo's documentation): the variable is written anew, with gpushared's entry.
 */
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose.h"
#include "quota/pages.h"

#define PIPES "CUDA_MPS_PIPE_DIRECTORY"
#define PERCENTAGE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define PINNED "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define PRIORITY "CUDA_MPS_CLIENT_PRIORITY"

#define FILE_BYTES 4096
#define MIB_OF_GIB 1024

/* What would remain of a limit, or replace it, if gpushared grants none. */
static const char *const owned[] = {
	PIPES, PERCENTAGE, PINNED, PRIORITY, "CUDA_MPS_PROTOCOL_VERSION"};
#define OWNED (sizeof(owned) / sizeof(owned[0]))

static char reason[512];

static const char *failed(const char *path, const char *why)
{
	snprintf(reason, sizeof(reason), "%s: %s", path, why);
	return reason;
}

static bool is_client(void)
{
	return atomic_load(&pages.grant->mps) != 0;
}

/* Read the file of variables into `text`. Return NULL or the reason. */
static const char *read_file(char text[FILE_BYTES])
{
	char path[sizeof(pages.directory) + sizeof("/" GPUSHARE_MPS_NAME)];
	ssize_t bytes;

	stpcpy(stpcpy(path, pages.directory), "/" GPUSHARE_MPS_NAME);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return failed(path, strerror(errno));
	do
		bytes = read(fd, text, FILE_BYTES - 1);
	while (bytes < 0 && errno == EINTR);
	close(fd);
	if (bytes <= 0 || text[bytes - 1] != '\n')
		return failed(path, "is not complete");
	text[bytes] = '\0';
	return NULL;
}

/* A number at `text` that ends with one of `ends`. Return what follows, NULL if there is none. */
static const char *read_number(const char *text, const char *ends, uint64_t *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return NULL;
	errno = 0;
	*value = strtoull(text, &end, 10);
	return errno == 0 && *end && strchr(ends, *end) ? end : NULL;
}

/* The MiB of an entry `CARD=4G`; UINT64_MAX if it is malformed, or of another card: this tenant has
 * one, which its processes see as number 0. `length` is the entry's. */
static uint64_t pinned_mib(const char *entry, size_t length)
{
	const char *uuid = grant_card(0)->uuid;
	const char *assigned = memchr(entry, '=', length);
	size_t name = assigned ? (size_t)(assigned - entry) : 0;
	uint64_t value;

	if (!name || !((name == 1 && *entry == '0') ||
			     (name == strlen(uuid) && strncmp(entry, uuid, name) == 0)))
		return UINT64_MAX;
	const char *unit = read_number(assigned + 1, "GM", &value);
	if (!unit || unit + 1 != entry + length || value == 0)
		return UINT64_MAX;
	if (*unit == 'G' && value > UINT64_MAX / MIB_OF_GIB)
		return UINT64_MAX;
	return *unit == 'G' ? value * MIB_OF_GIB : value;
}

/* The least of all valid entries of this tenant's card, in MiB; UINT64_MAX if there are none. */
static uint64_t least_pinned_mib(const char *entries)
{
	uint64_t least = UINT64_MAX;

	for (;;) {
		size_t length = strcspn(entries, ",");
		uint64_t mib = pinned_mib(entries, length);

		least = mib < least ? mib : least;
		if (!entries[length])
			return least;
		entries += length + 1;
	}
}

/* `granted` is one entry, or "". */
static void narrow_pinned(const char *granted, const char *own, char value[128])
{
	uint64_t most = least_pinned_mib(granted);
	uint64_t asked = own ? least_pinned_mib(own) : UINT64_MAX;
	uint64_t mib = asked < most ? asked : most;

	if (mib == UINT64_MAX) {
		*value = '\0';
		return;
	}
	size_t name = *granted ? strcspn(granted, "=") : 1;
	snprintf(value, 128, "%.*s=%lluM", (int)(name < 64 ? name : 64), *granted ? granted : "0",
		(unsigned long long)mib);
}

/* Percent of the multiprocessors, as text; "" for all of them. */
static void narrow_percentage(const char *granted, const char *own, char value[128])
{
	char *end;
	double most = *granted ? strtod(granted, NULL) : 100;
	double asked = own ? strtod(own, &end) : 100;

	/* Also false for NaN. */
	if (own && end != own && !*end && asked > 0 && asked < most)
		most = asked;
	*value = '\0';
	if (most > 0 && most < 100)
		snprintf(value, 128, "%g", most);
}

/* 1 is below normal, and all that a client can choose is to go behind the others. */
static void narrow_priority(const char *granted, const char *own, char value[128])
{
	*value = '\0';
	if (strcmp(granted, "1") == 0 || (own && strcmp(own, "1") == 0))
		strcpy(value, "1");
}

/* A folder beside the tenant's pages, which are elsewhere where the root is the host's own. */
static void place_pipes(const char *granted, char value[128])
{
	const bool is_beside = *granted && *granted != '/';

	if (snprintf(value, 128, "%s%s%s", is_beside ? pages.directory : "", is_beside ? "/" : "",
		    granted) >= 128)
		*value = '\0';
}

static const char *assign(const char *name, const char *granted)
{
	const char *own = getenv(name);
	char value[128];

	if (strcmp(name, PERCENTAGE) == 0)
		narrow_percentage(granted, own, value);
	else if (strcmp(name, PINNED) == 0)
		narrow_pinned(granted, own, value);
	else if (strcmp(name, PRIORITY) == 0)
		narrow_priority(granted, own, value);
	else if (strcmp(name, PIPES) == 0)
		place_pipes(granted, value);
	else
		snprintf(value, sizeof(value), "%s", granted);
	if (*value ? setenv(name, value, 1) : unsetenv(name))
		return failed(name, strerror(errno));
	return NULL;
}

/* The value of `name` in the file's `text`, in `value`; "" if it is not there. */
static void granted_value(const char *text, const char *name, char value[128])
{
	size_t length = strlen(name);

	*value = '\0';
	for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
		size_t rest = strcspn(line, "\n");

		if (rest > length && line[length] == '=' && strncmp(line, name, length) == 0)
			snprintf(value, 128, "%.*s", (int)(rest - length - 1), line + length + 1);
	}
}

static const char *find_server(void)
{
	const char *directory = getenv(PIPES);
	char path[256];

	if (!directory ||
		snprintf(path, sizeof(path), "%s/control", directory) >= (int)sizeof(path))
		return failed(PIPES, "is not set");
	if (access(path, F_OK) != 0)
		return failed(path, strerror(errno));
	return NULL;
}

const char *mps_prepare(void)
{
	char text[FILE_BYTES], value[128];

	if (!is_client())
		return NULL;
	const char *why = read_file(text);
	for (unsigned i = 0; !why && i < OWNED; i++) {
		granted_value(text, owned[i], value);
		why = assign(owned[i], value);
	}
	return why ? why : find_server();
}

const char *mps_verify(void)
{
	int enabled = 0, count = 0;

	if (!is_client())
		return NULL;
	if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count == 0)
		return NULL; /* without a device, there is nothing to use */
	/* Drivers of older releases do not know the attribute. */
	if (REAL(cuDeviceGetAttribute)(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0) ==
			CUDA_SUCCESS &&
		!enabled)
		return "the driver does not use it";
	return find_server();
}
