/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel/channel.h"
#include "quota/process_table.h"
#include "quota/page_lock.h"
#include "quota/pages.h"

#define CHILD_SECONDS 120

static char directory[] = "/tmp/gpushare-tenant-XXXXXX";
static char *grant;
static char *status;
static pid_t creator;

static void remove_files(void)
{
	static const char *const names[] = {
		GPUSHARE_GRANT_NAME, GPUSHARE_STATUS_NAME, GPUSHARE_WAKEUP_NAME};
	char path[64];

	if (getpid() != creator)
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		unlink(path);
	}
	rmdir(directory);
}

static char *create_file(const char *name, size_t bytes)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mapping != MAP_FAILED);
	close(fd);
	return mapping;
}

/* What cuda/fork.c does for the parts that are in the test. */
static void before_fork(void)
{
	page_lock_before_fork();
	pages_before_fork();
	channel_before_fork();
}

static void after_fork_in_parent(void)
{
	channel_after_fork_in_parent();
	pages_after_fork();
	page_lock_after_fork_in_parent();
}

static void after_fork_in_child(void)
{
	process_table_forget();
	channel_after_fork_in_child();
	pages_after_fork();
	page_lock_after_fork_in_child();
}

void tenant_create(uint64_t quota_bytes)
{
	struct stat there;

	/* The library would take the container's own tenant instead. */
	CHECK(stat(GPUSHARE_TENANT_DIR, &there) != 0);
	CHECK(mkdtemp(directory));
	creator = getpid();
	atexit(remove_files);
	setenv(GPUSHARE_TENANT_DIR_ENV, directory, 1);
	grant = create_file(GPUSHARE_GRANT_NAME, GPUSHARE_GRANT_BYTES);
	status = create_file(GPUSHARE_STATUS_NAME, GPUSHARE_STATUS_BYTES);

	struct gpushare_grant_header *header = (void *)grant;
	header->magic = GPUSHARE_ABI_MAGIC;
	header->abi_version = GPUSHARE_ABI_VERSION;
	header->card_count = 1;
	struct gpushare_status_header *used = (void *)status;
	used->magic = GPUSHARE_ABI_MAGIC;
	used->abi_version = GPUSHARE_ABI_VERSION;
	tenant_set_memory(quota_bytes);

	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
	CHECK(pages_open(PAGES_WRITE) == NULL);
}

struct gpushare_grant_card *tenant_card(void)
{
	return (void *)(grant + GPUSHARE_GRANT_CARD_OFFSET(0));
}

void tenant_set_memory(uint64_t quota_bytes)
{
	tenant_card()->quota_bytes = quota_bytes;
	tenant_card()->limit_bytes = quota_bytes;
}

void tenant_reset(uint64_t quota_bytes)
{
	/* As a fork's child would: the record is dead then, for its life sign is gone. */
	page_lock_before_fork();
	process_table_forget();
	page_lock_after_fork_in_child();
	memset(status + GPUSHARE_PAGE_BYTES, 0, GPUSHARE_STATUS_BYTES - GPUSHARE_PAGE_BYTES);
	pages.status->high_water = 0;
	pages.status->sharing = 0;
	tenant_card()->context_bytes = 0;
	tenant_card()->overhead_bytes = 0;
	tenant_set_memory(quota_bytes);
	CHECK(process_table_join() == NULL);
}

uint64_t tenant_used_bytes(void)
{
	uint64_t bytes = 0;

	for (unsigned number = 0; number < process_count(); number++)
		bytes += card_usage(0)->held[number];
	return bytes;
}

pid_t start_child(void (*body)(void))
{
	const pid_t parent = getpid();
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		/* Neither outlives its parent nor waits for ever. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_Exit(1);
		alarm(CHILD_SECONDS);
		body();
		_Exit(0);
	}
	return pid;
}

int wait_child(pid_t pid)
{
	int state;

	CHECK(waitpid(pid, &state, 0) == pid);
	return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

int in_child(void (*body)(void))
{
	return wait_child(start_child(body));
}
