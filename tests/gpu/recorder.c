/* SPDX-License-Identifier: Apache-2.0
 *
 * An LD_AUDIT library (rtld-audit(7)) that writes down which tables of undocumented functions a
 * program asks a driver library for: NAME and the table's id, a line each, to $GPU_RECORDER_LOG.
 *
 *	cc -shared -fPIC -o recorder.so recorder.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define ID_BYTES 16

typedef int (*table_function)(const void **table, const void *id, void *third, void *fourth);

static table_function real_nvml, real_cuda;

/* The id is where we believe it is, not where a header says: read it as a stranger's memory. */
static void record(const char *name, const void *id)
{
	unsigned char bytes[ID_BYTES] = {0};
	struct iovec here = {bytes, sizeof bytes}, there = {(void *)(uintptr_t)id, sizeof bytes};
	const char *log = getenv("GPU_RECORDER_LOG");
	char line[128];
	int length = snprintf(line, sizeof line, "%s ", name);

	if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)sizeof bytes)
		for (int i = 0; i < ID_BYTES; i++)
			length += snprintf(
				line + length, sizeof line - (size_t)length, "%02x", bytes[i]);
	else
		length += snprintf(line + length, sizeof line - (size_t)length, "unreadable");
	line[length++] = '\n';
	int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	if (fd >= 0) {
		ssize_t written = write(fd, line, (size_t)length);
		(void)written; /* then the log is short, and its reader sees that */
		close(fd);
	}
}

static int nvml_table(const void **table, const void *id, void *third, void *fourth)
{
	record("nvmlInternalGetExportTable", id);
	return real_nvml(table, id, third, fourth);
}

static int cuda_table(const void **table, const void *id, void *third, void *fourth)
{
	record("cuGetExportTable", id);
	return real_cuda(table, id, third, fourth);
}

unsigned int la_version(unsigned int version)
{
	return version;
}

unsigned int la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)map;
	(void)lmid;
	(void)cookie;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *referring,
	uintptr_t *defining, unsigned int *flags, const char *name)
{
	(void)index;
	(void)referring;
	(void)defining;
	(void)flags;
	if (!strcmp(name, "nvmlInternalGetExportTable")) {
		real_nvml = (table_function)(uintptr_t)symbol->st_value;
		return (uintptr_t)nvml_table;
	}
	if (!strcmp(name, "cuGetExportTable")) {
		real_cuda = (table_function)(uintptr_t)symbol->st_value;
		return (uintptr_t)cuda_table;
	}
	return symbol->st_value;
}
