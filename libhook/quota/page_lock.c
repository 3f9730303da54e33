/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `threads`, then the page's lock.
 */
#include "page_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>

#include "channel/log.h"
#include "descriptor.h"
#include "pages.h"
#include "process.h"

#ifndef F_OFD_SETLK /* <fcntl.h> of glibc before 2.20 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define PAGE_LOCK_WAIT_NS 5000000000

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static struct kept_descriptor status = {.number = -1};
static int life_sign = -1; /* the record that carries this process's life sign */
static int cancellation;   /* the holder's cancellation state; the holder is not cancelled, or the
			      lock would stay locked */

static struct flock byte(short type, off_t offset)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
	return lock;
}

static off_t record_offset(unsigned number)
{
	return GPUSHARE_STATUS_PROCESS_OFFSET +
	       (off_t)number * (off_t)sizeof(struct gpushare_process);
}

static bool open_status(void)
{
	if (!descriptor_keep(&status, pages_open_status()) ||
		status.identity.st_dev != pages.status_device ||
		status.identity.st_ino != pages.status_inode) {
		descriptor_close(&status);
		return false;
	}
	if (life_sign >= 0) {
		struct flock lock = byte(F_WRLCK, record_offset((unsigned)life_sign));
		fcntl(status.number, F_OFD_SETLK, &lock);
	}
	return true;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* F_OFD_SETLKW would wait for as long as a stopped holder stays stopped. */
static bool lock_byte_within(off_t offset, uint64_t wait_ns)
{
	uint64_t deadline = now_ns() + wait_ns;
	struct timespec pause = {.tv_nsec = 20000};

	for (;;) {
		struct flock lock = byte(F_WRLCK, offset);
		if (fcntl(status.number, F_OFD_SETLK, &lock) == 0)
			return true;
		if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || now_ns() >= deadline)
			return false;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 1000000)
			pause.tv_nsec *= 2;
	}
}

/* The caller holds `threads`, and does not any more if the answer is false. */
static bool lock_file_within(uint64_t wait_ns, int before)
{
	cancellation = before;
	if ((descriptor_is_ours(&status) || open_status()) && lock_byte_within(0, wait_ns))
		return true;
	if (wait_ns != 0)
		log_line(LOG_ERROR, "%s/%s: cannot take the lock (errno %d)", pages.directory,
			GPUSHARE_STATUS_NAME, errno);
	pthread_mutex_unlock(&threads);
	return false;
}

bool page_lock(void)
{
	int saved = errno, before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_mutex_lock(&threads);
	bool locked = lock_file_within(PAGE_LOCK_WAIT_NS, before);
	if (!locked)
		pthread_setcancelstate(before, NULL);
	errno = saved;
	return locked;
}

bool page_try_lock(void)
{
	int saved = errno, before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	bool locked = pthread_mutex_trylock(&threads) == 0 && lock_file_within(0, before);
	if (!locked)
		pthread_setcancelstate(before, NULL);
	errno = saved;
	return locked;
}

void page_unlock(void)
{
	int saved = errno, before = cancellation;
	struct flock lock = byte(F_UNLCK, 0);

	if (descriptor_is_ours(&status))
		fcntl(status.number, F_OFD_SETLK, &lock);
	pthread_mutex_unlock(&threads);
	pthread_setcancelstate(before, NULL);
	errno = saved;
}

bool life_sign_set(unsigned number)
{
	struct flock lock = byte(F_WRLCK, record_offset(number));

	if (fcntl(status.number, F_OFD_SETLK, &lock) != 0)
		return false;
	life_sign = (int)number;
	return true;
}

bool life_sign_is_set(unsigned number)
{
	struct flock lock = byte(F_WRLCK, record_offset(number));

	/* If the kernel cannot be queried, the process counts as alive: one record too many wastes
	 * room, one too few exceeds the quota. */
	return fcntl(status.number, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void page_lock_before_fork(void)
{
	pthread_mutex_lock(&threads);
}

void page_lock_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&threads);
}

void page_lock_after_fork_in_child(void)
{
	descriptor_close(&status);
	life_sign = -1;
	pthread_mutex_unlock(&threads);
}
