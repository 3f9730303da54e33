/* SPDX-License-Identifier: Apache-2.0
 *
 * What an image would have loaded into a program of the host: it leaves a note of the program that
 * loaded it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void)
{
	char path[4096], note[64];
	snprintf(path, sizeof(path), "%s/loaded-%d", EVIL_FOLDER, getpid());
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	int length = snprintf(note, sizeof(note), "uid %d\n", (int)getuid());
	(void)!write(fd, note, (size_t)length);
	close(fd);
}
