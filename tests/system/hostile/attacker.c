/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant that attacks what it was given, from within its container: attacker WHAT. A line on
 * stdout for each thing that it could do and should not; "done" at the end. Static: the image needs
 * nothing for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TENANT "/.gpushare/tenant/"
#define FDS 200

static void could(const char *what, bool it)
{
	if (it)
		printf("could %s\n", what);
}

/* The page of what was granted, by every way to a writable descriptor of it. */
static void grant(void)
{
	static const char *const others[] = {
		"/proc/self/fd/%d", "/proc/thread-self/fd/%d", "/proc/1/fd/%d", "/dev/fd/%d"};
	char path[64];
	int fd = open(TENANT "grant", O_RDONLY);

	could("not even read it", fd < 0);
	could("open it to write", open(TENANT "grant", O_RDWR) >= 0);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		snprintf(path, sizeof(path), others[i], fd);
		could("open its descriptor again to write", open(path, O_RDWR) >= 0);
		could("open its descriptor again to write only", open(path, O_WRONLY) >= 0);
		could("truncate it", truncate(path, 0) == 0);
	}
	could("map it to write",
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
	void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	could("make its mapping writable", mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
	could("change its mode", chmod(TENANT "grant", 0666) == 0 || fchmod(fd, 0666) == 0);
	could("remove it", unlink(TENANT "grant") == 0);
	could("put another in its place", rename(TENANT "status", TENANT "grant") == 0);
	could("make a file beside it", open(TENANT "new", O_CREAT | O_WRONLY, 0600) >= 0);
	could("link it elsewhere", link(TENANT "grant", "/tmp/grant") == 0);
	could("take its folder away", rename("/.gpushare/tenant", "/.gpushare/old") == 0);
	could("take all of ours away", rename("/.gpushare", "/old") == 0);
	could("remove the socket", unlink(TENANT "socket") == 0);
}

/* What it may write, in ways that are not meant: the daemon reads it. */
static void status(void)
{
	int fd = open(TENANT "status", O_RDWR);
	could("not write its own page", fd < 0);
	for (int i = 0; i < 200; i++) {
		char noise[4096];
		memset(noise, i * 37, sizeof(noise));
		(void)!pwrite(fd, noise, sizeof(noise), i * 4096L);
		(void)!ftruncate(fd, i % 2 ? 0 : i * 100L);
	}
	(void)!ftruncate(fd, 0);
	could("make it large", ftruncate(fd, 1L << 40) == 0 && fallocate(fd, 0, 0, 1L << 30) == 0);
	(void)!ftruncate(fd, 0);
	(void)!fchmod(fd, 0);
	(void)!fchown(fd, 12345, 12345);
}

/* Of CLOCK_MONOTONIC, which the host has as well, in nanoseconds. */
static long nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Locks and leases on everything, kept: the next process that opens the files might wait for us. */
static void hold(void)
{
	static const char *const names[] = {TENANT "status", TENANT "grant"};
	signal(SIGIO, SIG_IGN);
	puts("ready");
	fflush(stdout);
	for (;;) {
		long begun = nanoseconds();
		for (size_t i = 0; i < 2; i++) {
			int fd = open(names[i], i == 0 ? O_RDWR : O_RDONLY);
			struct flock lock = {.l_type = i == 0 ? F_WRLCK : F_RDLCK};
			bool leased = fcntl(fd, F_SETLEASE, F_WRLCK) == 0 ||
				      fcntl(fd, F_SETLEASE, F_RDLCK) == 0;
			(void)fcntl(fd, F_OFD_SETLK, &lock);
			if (leased) {
				printf("leased %s\n", names[i]);
			} else {
				close(fd);
			}
		}
		printf("tried %ld\n", begun);
		fflush(stdout);
		usleep(20000);
	}
}

static int joined(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = TENANT "socket"};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void send_descriptors(int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * FDS)];
		struct cmsghdr align;
	} control = {{0}};
	char text[] = "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
	struct iovec data = {text, sizeof(text)};
	struct msghdr message = {.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int) * FDS);
	int fds[FDS];
	for (size_t i = 0; i < FDS; i++)
		fds[i] = fd;
	memcpy(CMSG_DATA(rights), fds, sizeof(fds));
	(void)!sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Connections as fast as they can be made, some kept, some with descriptors, noise and size. */
static void flood(void)
{
	char noise[70000];
	memset(noise, 0xa5, sizeof(noise));
	puts("ready");
	fflush(stdout);
	for (unsigned long turn = 0;; turn++) {
		int fd = joined();
		if (fd < 0)
			continue;
		if (turn % 4 == 1)
			send_descriptors(fd);
		if (turn % 4 == 2)
			(void)!send(fd, noise, turn % sizeof(noise), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (turn % 4 != 0)
			close(fd);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} attacks[] = {{"grant", grant}, {"status", status}, {"hold", hold}, {"flood", flood}};

	for (size_t i = 0; argc == 2 && i < sizeof(attacks) / sizeof(attacks[0]); i++)
		if (strcmp(argv[1], attacks[i].name) == 0) {
			attacks[i].run();
			puts("done");
			return 0;
		}
	return 2;
}
