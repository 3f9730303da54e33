/* SPDX-License-Identifier: Apache-2.0
 *
 * An LD_AUDIT library (rtld-audit(7)) that writes down to $GPU_RECORDER_LOG, a line each,
 *   - which tables of undocumented functions a program asks a driver library for: NAME and the id;
 *   - which of NVML's lists of processes it calls for, and how many each answer had: NAME, "count"
 *     and the number, or "error" and what was returned.
 *
 *	cc -shared -fPIC -o recorder.so recorder.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define ID_BYTES 16

typedef int (*table_function)(const void **table, const void *id, void *third, void *fourth);

static table_function real_nvml, real_cuda;

static void line_write(char *line, int length)
{
	const char *log = getenv("GPU_RECORDER_LOG");
	int fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

	line[length++] = '\n';
	if (fd >= 0) {
		ssize_t written = write(fd, line, (size_t)length);
		(void)written; /* then the log is short, and its reader sees that */
		close(fd);
	}
}

/* The id is where we believe it is, not where a header says: read it as a stranger's memory. */
static void record(const char *name, const void *id)
{
	unsigned char bytes[ID_BYTES] = {0};
	struct iovec here = {bytes, sizeof bytes}, there = {(void *)(uintptr_t)id, sizeof bytes};
	char line[128];
	int length = snprintf(line, sizeof line, "%s ", name);

	if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)sizeof bytes)
		for (int i = 0; i < ID_BYTES; i++)
			length += snprintf(
				line + length, sizeof line - (size_t)length, "%02x", bytes[i]);
	else
		length += snprintf(line + length, sizeof line - (size_t)length, "unreadable");
	line_write(line, length);
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

/* Each has the number of its answer's elements where its second parameter points. */
#define LISTS(X)                                                                                   \
	X(nvmlDeviceGetComputeRunningProcesses)                                                    \
	X(nvmlDeviceGetComputeRunningProcesses_v2)                                                 \
	X(nvmlDeviceGetComputeRunningProcesses_v3)                                                 \
	X(nvmlDeviceGetGraphicsRunningProcesses)                                                   \
	X(nvmlDeviceGetGraphicsRunningProcesses_v2)                                                \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3)                                                \
	X(nvmlDeviceGetMPSComputeRunningProcesses)                                                 \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v2)                                              \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                                              \
	X(nvmlDeviceGetAccountingPids)

typedef int (*list_function)(void *device, unsigned int *count, void *processes);

static void record_list(const char *name, int result, const unsigned int *count)
{
	char line[128];
	int length = result || !count
			     ? snprintf(line, sizeof line - 1, "%s error %d", name, result)
			     : snprintf(line, sizeof line - 1, "%s count %u", name, *count);

	line_write(line, length);
}

#define LIST(name)                                                                                 \
	static list_function real_##name;                                                          \
	static int list_##name(void *device, unsigned int *count, void *processes)                 \
	{                                                                                          \
		int result = real_##name(device, count, processes);                                \
		record_list(#name, result, count);                                                 \
		return result;                                                                     \
	}
LISTS(LIST)
#undef LIST

static const struct list {
	const char *name;
	list_function *real;
	list_function ours;
} lists[] = {
#define LIST(name) {#name, &real_##name, list_##name},
	LISTS(LIST)
#undef LIST
};

unsigned int la_version(unsigned int version)
{
	return version;
}

/* What a driver's library, or a filter before one, looks up for itself is not the program's asking.
 */
static bool is_driver(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	return !strncmp(name, "libnvidia-ml.so", 15) || !strncmp(name, "libcuda.so", 10);
}

unsigned int la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)lmid;
	*cookie = is_driver(map->l_name);
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *referring,
	uintptr_t *defining, unsigned int *flags, const char *name)
{
	(void)index;
	(void)defining;
	(void)flags;
	if (*referring)
		return symbol->st_value;
	if (!strcmp(name, "nvmlInternalGetExportTable")) {
		real_nvml = (table_function)(uintptr_t)symbol->st_value;
		return (uintptr_t)nvml_table;
	}
	if (!strcmp(name, "cuGetExportTable")) {
		real_cuda = (table_function)(uintptr_t)symbol->st_value;
		return (uintptr_t)cuda_table;
	}
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		if (!strcmp(name, lists[i].name)) {
			*lists[i].real = (list_function)(uintptr_t)symbol->st_value;
			return (uintptr_t)lists[i].ours;
		}
	return symbol->st_value;
}
