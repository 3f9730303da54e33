/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `opening` is a leaf.
 */
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct pages pages;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool opened;
static char reason[512];

/* A program that can set its own environment must not be able to choose its own quota: in a
 * container the environment is never read, and on the host only if the fixed directory does not
 * exist. */
static const char *tenant_directory(void)
{
#ifdef GPUSHARE_FOR_HOST
	struct stat status;

	if (stat(GPUSHARE_TENANT_DIR, &status) == 0 || (errno != ENOENT && errno != ENOTDIR))
		return GPUSHARE_TENANT_DIR;
	const char *named = secure_getenv(GPUSHARE_TENANT_DIR_ENV);
	return named && named[0] == '/' ? named : GPUSHARE_TENANT_DIR;
#else
	return GPUSHARE_TENANT_DIR;
#endif
}

static const char *failed(const char *name, const char *why)
{
	snprintf(reason, sizeof(reason), "%s/%s: %s", pages.directory, name, why);
	return reason;
}

static int open_page(const char *name, int flags)
{
	char path[sizeof(pages.directory) + 16];

	/* Not snprintf: its code is another page fault or two in a program that does not use it. */
	stpcpy(stpcpy(stpcpy(path, pages.directory), "/"), name);
	return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

/* Map a whole page file. Return the mapping, or NULL and set `why`; `status` receives the file's
 * status. */
static void *map_page(
	const char *name, size_t bytes, bool writable, struct stat *status, const char **why)
{
	void *mapping = MAP_FAILED;
	int fd = open_page(name, writable ? O_RDWR : O_RDONLY);

	if (fd < 0) {
		*why = failed(name, strerror(errno));
		return NULL;
	}
	/* If it were shorter than the layout, a read past its end would kill the process with
	 * SIGBUS. */
	if (fstat(fd, status) != 0 || status->st_size < (off_t)bytes) {
		*why = failed(name, "is too short");
	} else {
		mapping = mmap(
			NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
		if (mapping == MAP_FAILED)
			*why = failed(name, strerror(errno));
	}
	close(fd);
	return mapping == MAP_FAILED ? NULL : mapping;
}

static const char *check(const char *name, uint64_t magic, uint32_t version)
{
	if (magic != GPUSHARE_ABI_MAGIC)
		return failed(name, "was not written by gpushared");
	if (version != GPUSHARE_ABI_VERSION)
		return failed(name, "was written by a different version of gpushare");
	return NULL;
}

static const char *map_pages(enum pages_access access)
{
	const char *directory = tenant_directory();
	const char *why = NULL;
	struct stat status;

	if (strlen(directory) >= sizeof(pages.directory))
		return "the path in " GPUSHARE_TENANT_DIR_ENV " is too long";
	strcpy(pages.directory, directory);

	struct gpushare_grant_header *grant =
		map_page(GPUSHARE_GRANT_NAME, GPUSHARE_GRANT_BYTES, false, &status, &why);
	if (!grant)
		return why;
	why = check(GPUSHARE_GRANT_NAME, grant->magic, grant->abi_version);
	if (!why && (grant->card_count == 0 || grant->card_count > GPUSHARE_MAX_CARDS))
		why = failed(GPUSHARE_GRANT_NAME, "grants no card");

	/* A container that is started before the bind takes no quota: until the bind its memory is
	 * not watched. */
	if (!why && access == PAGES_WRITE && atomic_load(&grant->unbound))
		why = failed(GPUSHARE_GRANT_NAME,
			"the container was started before gpushared knew of its process");

	struct gpushare_status_header *used = NULL;
	if (!why)
		used = map_page(GPUSHARE_STATUS_NAME, GPUSHARE_STATUS_BYTES, access == PAGES_WRITE,
			&status, &why);
	if (used)
		why = check(GPUSHARE_STATUS_NAME, used->magic, used->abi_version);
	if (why) {
		munmap(grant, GPUSHARE_GRANT_BYTES);
		if (used)
			munmap(used, GPUSHARE_STATUS_BYTES);
		return why;
	}
	pages.card_count = grant->card_count;
	pages.grant = grant;
	pages.status = used;
	pages.status_device = status.st_dev;
	pages.status_inode = status.st_ino;
	return NULL;
}

bool pages_are_open(void)
{
	return atomic_load_explicit(&opened, memory_order_acquire);
}

const char *pages_open(enum pages_access access)
{
	int saved = errno, cancellation;
	const char *why = NULL;

	if (pages_are_open())
		return NULL;
	pthread_setcancelstate(
		PTHREAD_CANCEL_DISABLE, &cancellation); /* otherwise the lock would stay locked */
	pthread_mutex_lock(&opening);
	if (!pages_are_open()) {
		why = map_pages(access);
		if (!why)
			atomic_store_explicit(&opened, true, memory_order_release);
	}
	pthread_mutex_unlock(&opening);
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
	return why;
}

int pages_open_status(void)
{
	return open_page(GPUSHARE_STATUS_NAME, O_RDWR);
}

void pages_before_fork(void)
{
	pthread_mutex_lock(&opening);
}

void pages_after_fork(void)
{
	pthread_mutex_unlock(&opening);
}
